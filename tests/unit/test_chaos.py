"""Drills: what is struck when, and what is counted as lost."""

from __future__ import annotations

import itertools

import pytest

from isthmus.chaos.goodput import Cost, IslandCost, Span, Struck, island_cost
from isthmus.chaos.strikes import KINDS, pairs, plan_strikes
from isthmus.cli.main import main
from isthmus.observe import records
from isthmus.terms import Phase

NAMES = ("a", "b", "c", "d")
DRILL = Span(100.0, 200.0)


def stamp(at_s: float, step: int) -> records.Stamp:
    return {"t_s": at_s, "wall_s": at_s, "island": "a", "step": step, "tokens": 10 * step}


def step_at(at_s: float, step: int) -> records.StepDone:
    return records.StepDone(
        **stamp(at_s, step), loss_nats=1.0, step_tokens=10, step_s=1.0, sync_s=0.0, blocked_s=0.0, learning_rate=0.1,
        progress_tokens=10 * step,
    )  # fmt: skip


def start_at(at_s: float) -> records.RunStarted:
    return records.RunStarted(
        **stamp(at_s, 0), run="r", isthmus_version="", torch_version="", python_version="", slot=0, incarnation=1,
        batch_sequences=1, batch_tokens=10, precision="fp32", codec="int4", window_steps=8, num_fragments=1,
        num_parameters=1, token_budget=10**6, manifest_digest="",
    )  # fmt: skip


def trained(from_s: float, until_s: float, *, first_step: int) -> list[records.Record]:
    """A life: it trains from a time on, a step of ten tokens a second."""
    steps = [step_at(from_s + count, first_step + count - 1) for count in range(1, round(until_s - from_s) + 1)]
    return [records.PhaseChange(**stamp(from_s, first_step - 1), phase=Phase.TRAINING), *steps]


@pytest.mark.parametrize("seed", range(20))
def test_strikes_are_drawn_alike_and_never_overlap(seed: int):
    strikes = plan_strikes(seed, NAMES, duration_s=600.0, every_s=60.0)
    assert strikes == plan_strikes(seed, NAMES, duration_s=600.0, every_s=60.0)
    assert len(strikes) == 10
    assert all(one.end_s < other.at_s for one, other in itertools.pairwise(strikes))
    assert strikes[-1].end_s < 600.0 - 60.0 / 4
    assert {strike.kind for seed in range(9) for strike in plan_strikes(seed, NAMES, duration_s=600, every_s=60)} == {
        *KINDS
    }


def test_a_lone_island_is_cut_off_from_nobody():
    kinds = {strike.kind for strike in plan_strikes(1, ("a",), duration_s=3000.0, every_s=60.0)}
    assert kinds == {"kill", "stop"}


def test_a_cut_is_between_two_and_an_isolated_island_reaches_nobody():
    strikes = plan_strikes(3, NAMES, duration_s=3000.0, every_s=60.0)
    (one, other), *rest = pairs(next(strike for strike in strikes if strike.kind == "cut"), NAMES)
    assert not rest and one != other
    isolated = pairs(next(strike for strike in strikes if strike.kind == "isolate"), NAMES)
    assert len(isolated) == 3 and len({pair[0] for pair in isolated}) == 1


def test_an_island_that_trains_all_the_time_has_lost_nothing():
    cost = island_cost(trained(90.0, 200.0, first_step=1), Struck(), DRILL)
    assert (cost.tokens, cost.possible_tokens, cost.lost_tokens) == (1000, 1000.0, 0)
    assert (cost.stall_s, cost.step_s) == (0.0, 1.0)


def test_what_a_restart_goes_back_behind_is_lost_and_the_time_it_is_down_is_not():
    """It dies after 50 s, and is back 20 s later, 8 steps behind."""
    before, after = trained(90.0, 150.0, first_step=1), trained(170.0, 200.0, first_step=53)
    cost = island_cost(before + after, Struck(down=(Span(150.0, 165.0),)), DRILL)
    assert cost.lost_tokens == 80
    assert cost.possible_tokens == 10 * (50 + 30)
    assert cost.tokens == 10 * (50 + 30) - 80


def test_the_time_that_it_is_stopped_is_none_that_it_could_have_trained_in():
    before, after = trained(90.0, 140.0, first_step=1), trained(160.0, 200.0, first_step=51)[1:]
    cost = island_cost(before + after, Struck(stopped=(Span(140.5, 160.0),)), DRILL)
    assert cost.possible_tokens == pytest.approx(10 * 80.5)
    assert (cost.tokens, cost.stall_s) == (800, 0.0)


def test_a_step_that_takes_longer_is_a_stall_but_for_one_with_scores_in_it():
    before, after = trained(90.0, 140.0, first_step=1), trained(145.0, 200.0, first_step=51)[1:]
    assert island_cost(before + after, Struck(), DRILL).stall_s == 5.0
    scores = records.Evaluation(
        **stamp(143.0, 50), set_name="x", bits_per_byte=1.0, standard_error=0.1, num_bytes=1, run_tokens=1,
        manifest_digest="",
    )  # fmt: skip
    assert island_cost([*before, scores, *after], Struck(), DRILL).stall_s == 0.0


def test_an_island_that_is_dead_at_the_end_has_what_its_checkpoint_holds():
    life = trained(90.0, 150.0, first_step=1)
    saved = records.Checkpoint(**stamp(145.0, 55), name="x", num_bytes=1, seconds=0.1, blocked_s=0.1)
    life.insert(57, saved)
    cost = island_cost(life, Struck(down=(Span(150.0, 200.0),)), DRILL)
    assert cost.tokens == 550 - 100


def test_an_island_whose_run_is_over_could_have_trained_no_more():
    over = records.PhaseChange(**stamp(150.5, 60), phase=Phase.FINISHING)
    cost = island_cost([*trained(90.0, 150.0, first_step=1), over], Struck(), DRILL)
    assert cost.possible_tokens == pytest.approx(505.0)


def test_what_an_earlier_start_left_unended_is_no_life_of_this_drill():
    earlier = trained(10.0, 60.0, first_step=1)
    start = start_at(80.0)
    cost = island_cost([*earlier, start, *trained(90.0, 200.0, first_step=51)], Struck(), DRILL)
    assert (cost.tokens, cost.possible_tokens) == (1000, 1000.0)


def test_goodput_is_of_all_islands_together_and_stalls_are_counted_in_own_steps():
    cost = Cost({"a": IslandCost(90, 100.0, 0, 0.5, 2.0), "b": IslandCost(300, 300.0, 0, 0.5, 0.5)})
    assert cost.goodput == pytest.approx(390 / 400)
    assert cost.stall_steps == 1.0
    assert Cost().goodput == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kinds", "quake"], "no such strike"),
        (["--kinds", ""], "no such strike"),
        (["--minutes", "0.5"], "ends before its first strike"),
        ([], "run.toml"),
    ],
)
def test_a_drill_that_cannot_be_is_refused_in_one_line(tmp_path, capsys, arguments, words):
    assert main(["chaos", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
