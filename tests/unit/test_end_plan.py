"""Plans for the end of a run: whoever follows one comes to the same outcome, the mean by mass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec
import pytest

from isthmus.end_plan import next_number, plan_end, unwanted
from isthmus.terms import EndPlan, Standing

Held = tuple[object, ...]
"""Symbolic weights: who has summed what in which order, as floating point would tell apart."""


def plan_of(standings: Mapping[str, Standing], number: int = 64, spare: int = 0) -> EndPlan | None:
    slots = {name: slot for slot, name in enumerate([*standings, *(f"absent{place}" for place in range(spare))])}
    return plan_end(standings, slots, run="run", author=next(iter(standings)), number=number)


def all_reach(masses: Sequence[int], results: Mapping[int, int] | None = None) -> dict[str, Standing]:
    names = [f"i{place:02d}" for place in range(len(masses))]
    return {
        name: Standing(number=1, mass=mass, reach=tuple(names), result=(results or {}).get(place, 0))
        for place, (name, mass) in enumerate(zip(names, masses, strict=True))
    }


def followed(plan: EndPlan, held: Mapping[str, Held]) -> dict[str, Held]:
    """What every member holds after all meetings."""
    held = dict(held)
    for step in plan.steps:
        terms = [(mass, held[name]) for name, mass in ((step.low, step.low_mass), (step.high, step.high_mass)) if mass]
        outcome = terms[0][1] if len(terms) == 1 else tuple(terms)
        held[step.low] = held[step.high] = outcome
    return held


def shares(held: Held) -> dict[object, Fraction]:
    """How much of each island's weights is in it."""
    if isinstance(held[0], str):
        return {held[0]: Fraction(1)}
    total = sum(mass for mass, _ in held)
    found: dict[object, Fraction] = {}
    for mass, part in held:
        for name, share in shares(part).items():
            found[name] = found.get(name, Fraction(0)) + share * Fraction(mass, total)
    return found


@pytest.mark.parametrize("count", [*range(2, 20), 31, 32, 33, 63, 64])
def test_members_come_to_the_same_sum_in_few_meetings(count: int):
    masses = [10 + 7 * place % 13 for place in range(count)]
    plan = plan_of(all_reach(masses))
    held = followed(plan, {name: (name,) for name in plan.members})
    assert len(set(held.values())) == 1
    assert shares(held["i00"]) == {
        name: Fraction(mass, sum(masses)) for name, mass in zip(plan.members, masses, strict=True)
    }
    most = max(len(plan.of(name)) for name in plan.members)
    assert most <= math.floor(math.log2(count)) + 2 * (count & (count - 1) != 0)


def test_an_island_without_mass_takes_the_outcome():
    plan = plan_of(all_reach([5, 0, 7]))
    held = followed(plan, {name: (name,) for name in plan.members})
    assert len(set(held.values())) == 1
    assert shares(held["i01"]) == {"i00": Fraction(5, 12), "i02": Fraction(7, 12)}


def test_islands_that_have_all_trained_nothing_weigh_the_same():
    plan = plan_of(all_reach([0, 0]))
    assert [(step.low_mass, step.high_mass) for step in plan.steps] == [(1, 1)]


@pytest.mark.parametrize("shape", ["line", "star", "two halves"])
def test_where_not_all_reach_each_other_mass_goes_up_a_tree_and_the_outcome_down(shape: str):
    names = [f"i{place:02d}" for place in range(7)]
    pairs = {
        "line": [*itertools.pairwise(names)],
        "star": [(names[3], name) for name in names if name != names[3]],
        "two halves": [*itertools.combinations(names[:4], 2), *itertools.combinations(names[3:], 2)],
    }[shape]
    reach = {name: tuple(other for one, other in pairs if one == name) for name in names}
    plan = plan_of({name: Standing(number=1, mass=3, reach=reach[name]) for name in names})
    linked = {frozenset(pair) for pair in pairs}
    assert all(frozenset((step.low, step.high)) in linked for step in plan.steps)
    held = followed(plan, {name: (name,) for name in names})
    assert len(set(held.values())) == 1
    assert shares(held["i00"]) == dict.fromkeys(names, Fraction(1, 7))


def test_islands_that_nobody_reaches_have_no_plan():
    standings = {name: Standing(number=1, mass=1, reach=()) for name in ("a", "b")}
    assert plan_of(standings) is None
    held = {"a": Standing(number=1, mass=1, reach=(), result=64), "b": standings["b"]}
    assert plan_of(held) is None


@pytest.mark.parametrize("holders", [{0}, {4}, {1, 5}, set(range(8)) - {3}])
def test_what_some_hold_whole_already_all_take(holders: set[int]):
    plan = plan_of(all_reach([1] * 8, dict.fromkeys(holders, 64)), number=130)
    assert plan.result == 64
    have = {name: ("outcome",) if place in holders else ("own", name) for place, name in enumerate(plan.members)}
    assert set(followed(plan, have).values()) == {("outcome",)}
    assert len(plan.steps) == 8 - len(holders)


def test_of_two_outcomes_the_newer_is_taken():
    plan = plan_of(all_reach([1] * 3, {0: 64, 2: 129}), number=200)
    assert plan.result == 129
    assert {(step.low, step.high, step.low_mass, step.high_mass) for step in plan.steps} >= {("i00", "i02", 0, 1)}


def test_a_plan_binds_with_more_than_half_of_the_runs_islands():
    assert plan_of(all_reach([1] * 3), spare=2).binding
    assert not plan_of(all_reach([1] * 3), spare=3).binding


def test_plan_numbers_grow_and_no_two_islands_choose_the_same():
    assert next_number([], 5) < next_number([next_number([], 5)], 2)
    assert len({next_number([70, 3], slot) for slot in range(64)}) == 64


def test_one_whose_weights_nobody_takes_is_left_out_and_nobody_else():
    standings = all_reach([1] * 5)
    assert unwanted(standings, "i00") == set()
    for name in ("i00", "i01", "i02", "i04"):
        shun = msgspec.structs.replace(standings[name], shuns=("i03",))
        standings[name] = shun
        assert unwanted(standings, "i00") == (set() if name != "i04" else {"i03"})
    assert unwanted(standings, "i03") == {"i00", "i01", "i02", "i04"}


def test_two_that_take_nothing_from_each_other_meet_by_way_of_others():
    standings = all_reach([1] * 4)
    standings["i00"] = msgspec.structs.replace(standings["i00"], shuns=("i01",))
    plan = plan_of(standings)
    assert {step.low for step in plan.steps if step.high == "i01"} != {"i00"}
    assert ("i00", "i01") not in {(step.low, step.high) for step in plan.steps}
    assert len(set(followed(plan, {name: (name,) for name in plan.members}).values())) == 1
