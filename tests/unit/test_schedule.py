"""When fragments depart, how large the outer step is, and which codec a publication gets."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from isthmus.schedule import (
    CALM,
    OuterPlan,
    OuterStep,
    RmsHistory,
    codec_choice,
    departure_offset,
    departures,
    learning_rate_scale,
    outer_step,
    slot_s,
)

STEADY = RmsHistory((1.0, 1.1, 0.9, 1.0, 1.0))
PLAN = OuterPlan(OuterStep(0.7, 0.5))


@pytest.mark.parametrize(("window", "fragments"), [(50, 24), (50, 3), (10, 10), (7, 3), (1, 1), (12, 5), (3, 8)])
def test_each_fragment_departs_once_in_every_window(window: int, fragments: int) -> None:
    for first in (1, window + 1, 7 * window + 1):
        steps = range(first, first + window)
        gone = [f for s in steps for f in departures(s, window_steps=window, num_fragments=fragments)]
        assert sorted(gone) == list(range(fragments))


@pytest.mark.parametrize(("window", "fragments"), [(50, 24), (50, 3), (10, 10), (7, 3), (12, 5)])
def test_no_two_fragments_depart_at_one_step(window: int, fragments: int) -> None:
    assert all(len(departures(s, window_steps=window, num_fragments=fragments)) <= 1 for s in range(200))


def test_more_fragments_than_steps_spread_evenly() -> None:
    sizes = Counter(len(departures(s, window_steps=4, num_fragments=10)) for s in range(1, 5))
    assert sizes == {2: 2, 3: 2}


def test_nothing_departs_before_the_first_step() -> None:
    assert departures(0, window_steps=3, num_fragments=8) == ()
    assert departures(0, window_steps=10, num_fragments=2) == ()


def test_offsets_are_staggered_over_the_window() -> None:
    assert [departure_offset(p, window_steps=50, num_fragments=4) for p in range(4)] == [13, 25, 38, 50]
    assert departures(63, window_steps=50, num_fragments=4) == (0,)
    assert departures(50, window_steps=50, num_fragments=4) == (3,)


def test_a_slot_is_the_time_between_departures() -> None:
    assert slot_s(0.2, window_steps=50, num_fragments=20) == pytest.approx(0.5)
    assert slot_s(0.2, window_steps=50, num_fragments=20, meetings=2) == pytest.approx(0.25)


def test_the_outer_step_is_calm_at_both_ends_of_the_run() -> None:
    assert outer_step(PLAN, progress=0.1, rounds=1) == CALM
    assert outer_step(PLAN, progress=0.1, rounds=2) == (0.7, 0.5)
    assert outer_step(PLAN, progress=0.79, rounds=9) == (0.7, 0.5)
    assert outer_step(PLAN, progress=0.8, rounds=9) == CALM


def test_the_calm_phases_are_the_plans() -> None:
    plan = OuterPlan(OuterStep(0.7, 0.5), calm_rounds=0, calm_share=0.0)
    assert outer_step(plan, progress=0.99, rounds=0) == (0.7, 0.5)
    assert outer_step(plan, progress=1.0, rounds=0) == CALM


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    def scale(progress: float) -> float:
        return learning_rate_scale(progress, warmup_share=0.1, final_share=0.2)

    assert [scale(p) for p in (0.0, 0.05, 0.1)] == pytest.approx([0.0, 0.5, 1.0])
    assert scale(0.55) == pytest.approx(0.6)
    assert scale(1.0) == pytest.approx(0.2)
    assert scale(1.3) == scale(1.0)
    assert scale(-1.0) == scale(0.0)


def test_a_run_may_have_no_warm_up_or_nothing_else() -> None:
    assert learning_rate_scale(0.0, warmup_share=0.0, final_share=0.1) == 1.0
    assert learning_rate_scale(1.0, warmup_share=1.0, final_share=0.1) == 1.0


def test_a_surge_is_coded_in_8_bits() -> None:
    choice = {"has_reference": True, "partner_is_newcomer": False}
    assert codec_choice("int4", rms=2.9, history=STEADY, **choice) == "int4"
    assert codec_choice("int4", rms=3.1, history=STEADY, **choice) == "int8"


@pytest.mark.parametrize("configured", ["int8", "bf16", "fp32"])
def test_a_surge_never_makes_the_codec_coarser(configured: str) -> None:
    kwargs = {"rms": 50.0, "history": STEADY, "has_reference": True, "partner_is_newcomer": False}
    assert codec_choice(configured, **kwargs) == configured


def test_too_short_a_history_knows_no_surge() -> None:
    history = RmsHistory((1.0, 1.0, 1.0))
    assert history.median() is None
    assert not history.surges(math.inf)


def test_publications_without_a_reference_or_to_a_newcomer_are_lossless() -> None:
    assert codec_choice("int4", rms=1, history=STEADY, has_reference=False, partner_is_newcomer=False) == "fp32"
    assert codec_choice("int4", rms=1, history=STEADY, has_reference=True, partner_is_newcomer=True) == "fp32"


def test_the_history_forgets_what_is_old() -> None:
    history = RmsHistory()
    for value in range(100):
        history = history.then(float(value))
    assert history.values == tuple(float(v) for v in range(100 - RmsHistory.LENGTH, 100))


def test_one_surge_does_not_move_the_median() -> None:
    assert STEADY.then(1000.0).median() == pytest.approx(1.0)
