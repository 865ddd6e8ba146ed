"""What can be said of a study's file whose form is wrong already, so that nobody has to mend it twice."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.config.problems import Problem, validated
from isthmus.lab.keys import flat_shared, key_problem
from isthmus.lab.study_file import SharedTable, dotted

_ROOMS = ("run", "island")


def malformed(path: Path, problems: Sequence[Problem]) -> list[Problem]:
    """All problems of the file at ``path``: those of its form, and the keys in it that cannot be set."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return list(problems)
    arms = document.get("arm")
    tables = [each if isinstance(each, Mapping) else {} for each in arms] if isinstance(arms, list) else []
    return list(dict.fromkeys([*_with_names(problems, tables), *_key_problems(path, document, tables)]))


def _with_names(problems: Sequence[Problem], arms: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """With an arm's name in place of its number, where it has one."""
    for problem in problems:
        found = re.fullmatch(r"arm\[(\d+)\]\.(.+)", problem.key)
        name = arms[int(found[1])].get("name") if found else None
        if found and isinstance(name, str):
            yield Problem(problem.file, f"arm {name}: {found[2]}", problem.what, problem.mend)
        else:
            yield problem


def _key_problems(path: Path, document: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    places = [("base.", document.get("base"))]
    places += [(f"arm {arm['name']}: ", arm) for arm in arms if isinstance(arm.get("name"), str)]
    grids = [("vary.", document.get("vary")), *((f"{place}tune.", arm.get("tune")) for place, arm in places[1:] if arm)]
    for place, table in places:
        if isinstance(table, Mapping):
            rooms = {room: table[room] for room in _ROOMS if room in table}
            shared = validated(path, SharedTable, rooms, [])
            yield from _refused(path, place, [] if shared is None else flat_shared(shared))
    for place, grid in grids:
        if isinstance(grid, Mapping):
            yield from _refused(path, place, dotted(grid))


def _refused(path: Path, place: str, keys: Sequence[str] | Mapping[str, Any]) -> Iterator[Problem]:
    for key in keys:
        problem = key_problem(path, place, key)
        if problem is not None:
            yield problem
