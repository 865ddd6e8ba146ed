"""Every arm in every case with every value it may be tuned to, checked as the files of a real run are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from isthmus.config import OWN_MODEL, IslandConfig, RunConfig
from isthmus.config.load import tokenizer_problems
from isthmus.config.problems import Problem, relation_problems, validated
from isthmus.config.rooms import optimizer_problems, room_problems
from isthmus.lab.checks import arm_place
from isthmus.lab.keys import beyond_files, flat_own, flat_shared, known_keys, tables_of
from isthmus.lab.setup import NOBODY, merged
from isthmus.lab.study_file import Arm, SharedTable, Study
from isthmus.lab.table import Scalar

_Settings = Mapping[str, Any]
_Found = dict[Problem, list[dict[str, Scalar]]]
"""Problems, whose keys are flat ones, and the combinations that have them."""


def trial_problems(study: Study) -> list[Problem]:
    """Everything that is wrong with merged settings, said once and where it is written."""
    found = [(arm, *_trials(study, arm)) for arm in study.arms]
    problems = []
    for arm, broken, count in found:
        for problem, combinations in broken.items():
            everywhere = all(problem in other for _, other, _ in found)
            problems.append(_placed(study, arm, problem, combinations, count, everywhere=everywhere))
    return list(dict.fromkeys(problems))


def _trials(study: Study, arm: Arm) -> tuple[_Found, int]:
    """What is wrong with an arm, and how many combinations it has."""
    found: _Found = defaultdict(list)
    trials = [
        (case, values) for case in _distinct([*study.cases, study.tune_case]) for values in study.combinations(arm)
    ]
    for case, values in trials:
        settings = {key: value for key, value in merged(study, arm, case, values).items() if key in known_keys()}
        for problem in dict.fromkeys(_setting_problems(study, arm, settings)):
            found[problem].append({**case, **values})
    return found, len(trials)


def _distinct(cases: list[dict[str, Scalar]]) -> list[dict[str, Scalar]]:
    return [case for index, case in enumerate(cases) if case not in cases[:index]]


def _setting_problems(study: Study, arm: Arm, settings: _Settings) -> Iterator[Problem]:
    beyond: list[Problem] = []
    validated(study.path, SharedTable, beyond_files(settings), beyond)
    yield from beyond
    run, problems = _run(study, settings)
    yield from _prefixed("run.", problems)
    if arm.own.keys() != {*arm.islands}:
        yield from _island_problems(study, run, settings, {}, "")
    for name, table in arm.own.items():
        own = {key: value for key, value in flat_own(table).items() if key in known_keys()}
        yield from _island_problems(study, run, settings, own, f"own.{name}.")
    yield from _share_problems(study, arm, settings)


def _run(study: Study, settings: _Settings) -> tuple[RunConfig | None, list[Problem]]:
    problems: list[Problem] = []
    tables = tables_of(settings, "run")
    tables["run"] = {**tables.get("run", {}), "name": "trial", "owner": NOBODY}
    run = validated(study.path, RunConfig, tables, problems)
    if run is not None:
        problems += room_problems(study.path, run)
        problems += tokenizer_problems(study.path, study.root, run)
        if run.model.preset == OWN_MODEL:
            what = f'got "{OWN_MODEL}"; wanted a preset: the lab builds its models itself'
            problems.append(Problem(study.path, "model.preset", what))
    return run, problems


def _island_problems(
    study: Study, run: RunConfig | None, settings: _Settings, own: _Settings, place: str
) -> Iterator[Problem]:
    """What is wrong with the ``island.toml`` of an island; what it has of its own is said to be at ``place``."""
    problems: list[Problem] = []
    tables = tables_of({**settings, **own}, "island")
    tables["island"] = {**tables.get("island", {}), "name": "trial"}
    config = validated(study.path, IslandConfig, tables, problems)
    if config is not None:
        problems += optimizer_problems(study.path, "island.optimizer", config.island.optimizer)
        if run is not None and config.island.window_steps is not None:
            broken = run.mixing.window_relations(config.island.window_steps)
            problems += relation_problems(study.path, ("island",), broken)
    for each in _prefixed("island.", problems):
        yield from _prefixed(place if _flat_key(each.key) in own else "", [each])


def _share_problems(study: Study, arm: Arm, settings: _Settings) -> Iterator[Problem]:
    key = "island.data.shares"
    for slot, name in enumerate(arm.islands):
        own = flat_own(arm.own[name]) if name in arm.own else {}
        shares = own.get(key, settings.get(key))
        if isinstance(shares, tuple) and not any(shares[slot : slot + 1]):
            what = f"got {list(shares)}; wanted a share above 0 for slot {slot}, that of {name}"
            yield Problem(study.path, f"own.{name}.{key}" if key in own else key, what)


def _prefixed(prefix: str, problems: list[Problem]) -> Iterator[Problem]:
    for each in problems:
        yield Problem(each.file, prefix + each.key, each.what, each.mend)


def _flat_key(key: str) -> str:
    """The settable key that a place lies in: ``island.data.shares`` of ``island.data.shares[1]``."""
    return ".".join(key.split("[")[0].split(".")[:3])


def _placed(
    study: Study, arm: Arm, problem: Problem, combinations: list[dict[str, Scalar]], count: int, *, everywhere: bool
) -> Problem:
    """``problem`` with its key as it is written in the file, and where it is so if not always."""
    key, what = _flat_key(problem.key), problem.what
    if key in arm.tune:
        place = f"{arm_place(arm)}tune."
    elif key in flat_shared(arm) or key.startswith("own.") or not everywhere:
        place = arm_place(arm)
    else:
        place = "vary." if key in study.vary else "base."
    if len(combinations) < count and key not in combinations[0]:
        what += f" (where {', '.join(f'{name} = {value}' for name, value in combinations[0].items())})"
    return Problem(problem.file, place + problem.key, what, problem.mend)
