from __future__ import annotations

import builtins
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from isthmus.errors import DataError, IsthmusError
from isthmus.lab.standings import stand
from isthmus.lab.statistics import estimate, holm, paired_difference
from study_rows import KEY, row, rows_by_seed, score, whole_study

CONTROL = {0: 2.00, 1: 2.04, 2: 1.98, 3: 2.10, 4: 2.05}
ARM = {0: 1.97, 1: 2.03, 2: 1.96, 3: 2.05, 4: 2.04}
MARGIN = 0.005

bits = st.floats(0.5, 8.0)
by_seed = st.dictionaries(st.integers(0, 9), bits, min_size=2)


def only(standings, arm, subject="joint"):
    (found,) = [entry for entry in standings.entries if (entry.arm, entry.subject) == (arm, subject)]
    return found


def against(arm_rows, control=(2.0, 2.1, 2.05), **changes):
    rows = [*rows_by_seed("control", control), *arm_rows]
    return only(stand(rows, arms=["control", "a"], control="control", margin=MARGIN, **changes), "a")


def test_a_mean_and_its_error_are_those_by_hand():
    found = estimate([1.0, 2.0, 3.0, 6.0])
    assert found.n == 4
    assert found.mean == 3.0
    assert found.standard_error == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))


def test_a_difference_is_the_one_by_hand():
    # Logs of the ratios of three seeds: -0.01, -0.02, -0.03; mean -0.02, error 0.01 / sqrt(3).
    control = {0: 2.0, 1: 3.0, 2: 4.0}
    arm = {seed: value * math.exp(-0.01 * (seed + 1)) for seed, value in control.items()}
    found = paired_difference(arm, control, MARGIN)
    error = 0.01 / math.sqrt(3)
    assert found.mean == pytest.approx(math.expm1(-0.02))
    assert found.standard_error == pytest.approx(math.exp(-0.02) * error)
    assert found.low == pytest.approx(math.expm1(-0.02 - 4.302652730 * error))
    assert found.high == pytest.approx(math.expm1(-0.02 + 4.302652730 * error))
    assert found.equivalence_low == pytest.approx(math.expm1(-0.02 - 2.919985580 * error))
    assert found.equivalence_high == pytest.approx(math.expm1(-0.02 + 2.919985580 * error))
    assert found.smallest_margin == pytest.approx(-math.expm1(-0.02 - 2.919985580 * error))
    # With two degrees of freedom, the chance beyond t is (1 - t / sqrt(2 + t * t)) / 2; here t = 2 * sqrt(3).
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))


def test_differences_agree_with_scipys_paired_t_test():
    logs = [[math.log(values[seed]) for seed in CONTROL] for values in (ARM, CONTROL)]
    theirs = stats.ttest_rel(*logs)
    found = paired_difference(ARM, CONTROL, MARGIN)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx([math.expm1(end) for end in theirs.confidence_interval(0.95)])
    below = stats.ttest_rel(logs[0], [value + math.log(1 - MARGIN) for value in logs[1]], alternative="greater")
    above = stats.ttest_rel(logs[0], [value + math.log(1 + MARGIN) for value in logs[1]], alternative="less")
    assert found.equivalence_p == pytest.approx(max(below.pvalue, above.pvalue))


def test_equivalence_holds_from_its_smallest_margin_on():
    smallest = paired_difference(ARM, CONTROL, MARGIN).smallest_margin
    over, under = (paired_difference(ARM, CONTROL, smallest * factor) for factor in (1.0001, 0.9999))
    assert "equivalent" in over.claim
    assert over.equivalence_p < 0.05
    assert "equivalent" not in under.claim
    assert under.equivalence_p > 0.05
    on_it = paired_difference(ARM, CONTROL, smallest)
    assert on_it.equivalence_p == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("logs", "claim"),
    [
        ((-0.011, -0.010, -0.009), "better"),
        ((0.011, 0.010, 0.009), "worse"),
        ((0.0002, -0.0001, -0.0002), "equivalent within 0.5 %"),
        ((-0.0021, -0.0020, -0.0019), "better, equivalent within 0.5 %"),
        ((0.02, -0.01, 0.005), "undecided"),
    ],
)
def test_claims_are_decided_by_the_intervals(logs, claim):
    control = {0: 2.0, 1: 2.1, 2: 2.2}
    arm = {seed: control[seed] * math.exp(log) for seed, log in enumerate(logs)}
    assert paired_difference(arm, control, MARGIN).claim == claim


def test_one_seed_has_a_mean_and_no_interval():
    found = paired_difference({3: 1.98}, {3: 2.0, 4: 2.1}, MARGIN)
    assert found.n == 1
    assert found.mean == pytest.approx(-0.01)
    assert (found.standard_error, found.low, found.high, found.p, found.smallest_margin) == (None,) * 5
    assert found.claim == "undecided (one seed)"
    assert estimate([2.0]) == type(estimate([2.0]))(n=1, mean=2.0, standard_error=None)
    assert paired_difference({1: 2.0}, {2: 2.0}, MARGIN).claim == "undecided (no common seed)"


def test_an_arm_that_is_the_control_is_equivalent_at_any_margin():
    found = paired_difference(CONTROL, CONTROL, 1e-6)
    assert (found.mean, found.low, found.high, found.p, found.smallest_margin) == (0, 0, 0, 1, 0)
    assert found.claim == "equivalent within 0.0001 %"


@given(by_seed, by_seed, st.floats(0.8, 1.25))
def test_a_factor_on_an_arm_is_a_factor_on_its_difference(arm, control, factor):
    plain = paired_difference(arm, control, MARGIN)
    shifted = paired_difference({seed: value * factor for seed, value in arm.items()}, control, MARGIN)
    assert (plain.mean is None) == (shifted.mean is None)
    for before, after in ((plain.mean, shifted.mean), (plain.low, shifted.low), (plain.high, shifted.high)):
        if before is not None:
            assert 1 + after == pytest.approx((1 + before) * factor, rel=1e-6)


@given(by_seed, by_seed)
def test_nothing_is_ever_not_a_number(arm, control):
    for value in msgspec.structs.asdict(paired_difference(arm, control, MARGIN)).values():
        assert not isinstance(value, float) or not math.isnan(value)


@given(by_seed)
def test_swapping_arm_and_control_turns_the_difference_over(arm):
    control = {seed: 2.0 + 0.1 * seed for seed in arm}
    one, other = paired_difference(arm, control, MARGIN), paired_difference(control, arm, MARGIN)
    assert one.p == pytest.approx(other.p)
    assert 1 + one.low == pytest.approx(1 / (1 + other.high))


def test_holms_p_is_the_one_by_hand_and_keeps_the_order_of_the_tests():
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holms_p_is_never_below_the_raw_one_nor_above_bonferronis(ps):
    for raw, adjusted in zip(ps, holm(ps), strict=True):
        assert raw <= adjusted <= min(1.0, len(ps) * raw) + 1e-12


def test_the_order_of_rows_does_not_matter():
    rows = whole_study(seeds=range(3))
    shuffled = random.Random(2).sample(rows, len(rows))
    arms = ["standard", "adamw"]
    one, other = (stand(table, arms=arms, control="standard", margin=MARGIN) for table in (rows, shuffled))
    assert one == other
    assert one.arms == ("standard", "adamw", "mesh 8", "one island", "pair 2", "pair 8")
    assert [case[KEY] for case in one.cases] == [500_000, 2_000_000, 8_000_000]


def test_every_comparison_of_joint_weights_is_counted_and_adjusted_for():
    standings = stand(whole_study(), arms=[], control="standard", margin=MARGIN)
    assert standings.comparisons == 5 * 3 * 2
    tested = [entry.difference for entry in standings.entries if entry.difference and entry.subject == "joint"]
    assert [each.p_holm for each in tested] == holm([each.p for each in tested])
    beside = [entry.difference for entry in standings.entries if entry.difference and entry.subject == "first"]
    assert beside
    assert all(each.p_holm is None for each in beside)


def test_a_diverged_seed_takes_the_mean_away_and_leaves_the_difference_undecided():
    rows = [*rows_by_seed("a", [2.0, 2.1]), row("a", 2, outcome="diverged", scores=(), detail="loss is nan")]
    found = against(rows)
    assert (found.runs.done, found.runs.diverged) == (2, 1)
    assert found.bits_per_byte.mean is None
    assert found.by_seed == {0: 2.0, 1: 2.1}
    assert found.difference.mean is None
    assert found.difference.claim == "undecided (1 of 3 diverged)"


def test_a_run_that_ends_without_a_finite_score_has_diverged():
    for value in (None, math.nan, math.inf):
        found = against(rows_by_seed("a", [2.0, value, 2.1]))
        assert found.difference.claim == "undecided (1 of 3 diverged)"


def test_a_failed_run_counts_like_a_diverged_one_and_is_named():
    rows = [row("a", 0), row("a", 1, outcome="failed"), row("a", 2, outcome="diverged")]
    assert against(rows).difference.claim == "undecided (1 of 3 diverged, 1 of 3 failed)"


def test_nothing_is_compared_with_a_control_that_diverged():
    rows = [*rows_by_seed("a", [2.0, 2.1]), row("control", 0), row("control", 1, outcome="diverged")]
    found = only(stand(rows, arms=[], control="control", margin=MARGIN), "a")
    assert found.bits_per_byte.mean == pytest.approx(2.05)
    assert found.difference.claim == "undecided (control: 1 of 2 diverged)"


def test_an_unfinished_arm_is_compared_over_the_seeds_that_are_there():
    found = against([row("a", 1, 2.0), row("a", 2, 2.0)])
    assert (found.runs.done, found.runs.missing) == (2, 1)
    assert found.difference.n == 2
    nothing = against([])
    assert (nothing.runs.missing, nothing.bits_per_byte.mean) == (3, None)
    assert nothing.difference.claim == "undecided (no common seed)"


def test_tuning_runs_are_not_compared():
    tuning = [row("a", 7, 1.0, stage="tune", values={"rate": 0.1})]
    assert against([*rows_by_seed("a", [2.0, 2.1, 2.05]), *tuning]).by_seed == {0: 2.0, 1: 2.1, 2: 2.05}


def test_the_lowest_slots_own_weights_are_shown_only_where_they_differ():
    def ended(own):
        return [row("a", seed, scores=(score(2.0), score(own, subject="first"))) for seed in range(3)]

    control = rows_by_seed("control", [2.0, 2.1, 2.2])
    for own, shown in ((2.0 + 1e-10, ["joint"]), (2.001, ["joint", "first"])):
        standings = stand([*control, *ended(own)], arms=["control", "a"], control="control", margin=MARGIN)
        assert [entry.subject for entry in standings.entries if entry.arm == "a"] == shown


def test_a_run_that_is_in_the_table_twice_is_refused():
    with pytest.raises(DataError, match="of the same run"):
        against([row("a", 0), row("a", 0)])


def test_a_score_that_cannot_be_is_refused():
    with pytest.raises(DataError, match="above 0"):
        against([row("a", 0, 0.0)])


def test_without_scipy_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without_scipy(name, *args, **kwargs):
        if name.split(".")[0] == "scipy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    with pytest.raises(IsthmusError, match=r"pip install 'isthmus\[lab\]'"):
        paired_difference(ARM, CONTROL, MARGIN)
    assert paired_difference({0: 1.0}, {0: 2.0}, MARGIN).mean == pytest.approx(-0.5)
