"""What a study's file says of its own parts: every name in it must be known, every key settable."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from isthmus.config.faults import FaultScript
from isthmus.config.problems import Problem, nearest, shown
from isthmus.lab.controls import missing_controls
from isthmus.lab.keys import flat_own, flat_shared, key_problem
from isthmus.lab.study_file import Arm, Study


def name_problems(study: Study) -> list[Problem]:
    """Everything that is wrong with keys and with names of arms and islands."""
    problems = [
        *_study_problems(study),
        *_keys(study, "base.", flat_shared(study.base)),
        *_keys(study, "vary.", study.vary),
    ]
    for arm in study.arms:
        problems += _arm_problems(study, arm)
    return problems


def arm_place(arm: Arm) -> str:
    """How a key of an arm begins in a message."""
    return f"arm {arm.name}: "


def _keys(study: Study, place: str, keys: Iterable[str]) -> Iterator[Problem]:
    for key in keys:
        problem = key_problem(study.path, place, key)
        if problem is not None:
            yield problem


def _study_problems(study: Study) -> Iterator[Problem]:
    path, table = study.path, study.study
    names = _all_names(study)
    if table.control not in names:
        mend = nearest(table.control, names)
        yield Problem(path, "study.control", f"there is no arm {shown(table.control)}", mend)
    for key in table.tune_case:
        if key not in study.vary:
            mend = nearest(key, study.vary)
            yield Problem(path, f"study.tune_case.{key}", "the study does not vary it", mend)
    tuned = [*(arm.name for arm in study.arms if arm.tune), *missing_controls(study)]
    if tuned and not table.tuning_seeds:
        mend = "controls = false adds no arms that are tuned."
        yield Problem(
            path, "study.tuning_seeds", f"got none; wanted seeds on which values of {', '.join(tuned)} are chosen", mend
        )


def _arm_problems(study: Study, arm: Arm) -> Iterator[Problem]:
    place = arm_place(arm)
    yield from _keys(study, place, flat_shared(arm))
    yield from _keys(study, f"{place}tune.", arm.tune)
    for name, own in arm.own.items():
        yield from _keys(study, f"{place}own.{name}.", flat_own(own))
        yield from _unknown_islands(study, arm, f"own.{name}", (name,))
    if arm.tuned_like is not None:
        yield from _model_problems(study, arm, arm.tuned_like)
    for index, link in enumerate(arm.links):
        yield from _unknown_islands(study, arm, f"links[{index}]", link.ends)
    yield from _repeated_links(study, arm)
    if arm.name in study.scripts:
        yield from _clashes(study, arm, study.scripts[arm.name])


def _unknown_islands(study: Study, arm: Arm, key: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if name not in arm.islands:
            what = f"the arm has no island {name!r}"
            yield Problem(study.path, arm_place(arm) + key, what, nearest(name, arm.islands))


def _model_problems(study: Study, arm: Arm, name: str) -> Iterator[Problem]:
    key, model = f"{arm_place(arm)}tuned_like", study.find(name)
    others = [other for other in _all_names(study) if other != arm.name]
    if name not in others:
        yield Problem(study.path, key, f"there is no other arm {name!r}", nearest(name, others))
    elif model is not None and not model.tune:
        yield Problem(study.path, key, f"{name} is not tuned", "Name an arm that has a tune of its own.")


def _repeated_links(study: Study, arm: Arm) -> Iterator[Problem]:
    seen: set[tuple[bool, tuple[str, ...]]] = set()
    for index, link in enumerate(arm.links):
        both = link.between is not None
        key = both, tuple(sorted(link.ends)) if both else link.ends
        if key in seen:
            what = f"{' - '.join(link.ends)} has its own link already"
            yield Problem(study.path, f"{arm_place(arm)}links[{index}]", what, "Put all of it in one.")
        seen.add(key)


def _clashes(study: Study, arm: Arm, script: FaultScript) -> Iterator[Problem]:
    """Outages during which a fault cuts or heals the same pair: which of them would end it?"""
    for index, link in enumerate(arm.links):
        cuts = _cuts(script, tuple(sorted(link.ends)))
        for (from_s, until_s), (cut_s, heal_s) in itertools.product(link.outages, cuts):
            if from_s <= heal_s and cut_s <= until_s:
                what = f"{[from_s, until_s]} and a cut of {arm.faults} at {cut_s:g} s overlap"
                yield Problem(study.path, f"{arm_place(arm)}links[{index}].outages", what, "Leave one of them out.")


def _cuts(script: FaultScript, pair: tuple[str, ...]) -> list[tuple[float, float]]:
    times = [event.at_s for event in script.events() if event.islands == pair and event.kind in ("cut", "heal")]
    return list(itertools.zip_longest(times[::2], times[1::2], fillvalue=float("inf")))


def _all_names(study: Study) -> list[str]:
    return [*(arm.name for arm in study.arms), *missing_controls(study)]
