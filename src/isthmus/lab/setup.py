"""The settings of one run of a study, everything merged."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isthmus.config import BYTE_TOKENS, DEFAULT_SOURCES, IslandConfig, RunConfig, resolve_model
from isthmus.config.faults import FaultScript
from isthmus.data import DEFAULT_HELD_OUT
from isthmus.lab.keys import beyond_files, flat_own, flat_shared, tables_of
from isthmus.lab.study_file import Arm, SharedTable, Study, Tables
from isthmus.lab.table import Scalar

NOBODY = "nobody"
"""Stands for a run's owner where no roster is signed."""


@dataclass(frozen=True)
class Place:
    """One island of a run: its name, the tables of its ``island.toml``, the virtual seconds of its step."""

    name: str
    tables: Tables
    step_s: float


@dataclass(frozen=True)
class Links:
    """How islands reach each other; keys are those of ``LinkTable``.

    Attributes:
        shared: What holds for all.
        uneven: Spans from which every pair draws, before its own.
        own: Single directions' own: sender, receiver, values; later ones win.
        outages: From and until, in virtual seconds, and the two islands.
    """

    shared: dict[str, float | None]
    uneven: dict[str, tuple[float, float]]
    own: tuple[tuple[str, str, dict[str, float | None]], ...]
    outages: tuple[tuple[float, float, str, str], ...]


@dataclass(frozen=True)
class Setup:
    """All settings of one run.

    Attributes:
        run: Tables of ``run.toml`` without the owner; paths in them are absolute.
        islands: In the order of their slots.
        links: How they reach each other.
        faults: What goes wrong.
        seed: The run's.
        root: The directory that paths counted from.
    """

    run: Tables
    islands: tuple[Place, ...]
    links: Links
    faults: FaultScript
    seed: int
    root: Path

    def canonical(self) -> dict[str, Any]:
        """All that the result depends on, every default in it, as plain values.

        Names of the run and places of files do not count.
        """
        run = RunConfig.model_validate({**self.run, "run": {**self.run["run"], "owner": NOBODY}})
        islands = [{"name": each.name, "step_s": each.step_s, **self._canonical_island(each)} for each in self.islands]
        values = run.model_dump(mode="json", exclude={"model": True, "run": {"name", "owner"}})
        return {
            "run": self._written(values, "run"),
            "model": dataclasses.asdict(resolve_model(run.model)),
            "islands": islands,
            "links": dataclasses.asdict(self.links),
            "faults": self.faults.events(),
        }

    def _canonical_island(self, place: Place) -> dict[str, Any]:
        tables = {**place.tables, "island": {**place.tables.get("island", {}), "name": place.name}}
        left_out: Any = {"link": True, "records": True, "data": {"cache"}, "island": {"name"}}
        values = IslandConfig.model_validate(tables).model_dump(mode="json", exclude=left_out)
        return self._written(values, "island")

    def _written(self, values: Mapping[str, Any], room: Literal["run", "island"]) -> dict[str, Any]:
        return _with_paths(values, room, lambda path: os.path.relpath(path, self.root))


def merged(study: Study, arm: Arm, case: Mapping[str, Scalar], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """What holds for all islands of ``arm``, by flat key: base, then case, then arm, then tuned values."""
    return {**flat_shared(study.base), **case, **flat_shared(arm), **values}


def setup_of(study: Study, arm: Arm, case: Mapping[str, Scalar], values: Mapping[str, Scalar], seed: int) -> Setup:
    """The settings of one run of ``arm``; those of single islands win over all others."""
    settings = merged(study, arm, case, values)
    beyond = SharedTable.model_validate(beyond_files(settings))
    run = tables_of(settings, "run")
    run["run"] = {**run.get("run", {}), "name": arm.name, "seed": seed}
    shared = Place("", _anchored(study.root, tables_of(settings, "island"), "island"), beyond.step_s)
    return Setup(
        run=_anchored(study.root, run, "run"),
        islands=tuple(_place(study, arm, name, settings, shared) for name in arm.islands),
        links=_links(arm, beyond),
        faults=study.scripts.get(arm.name, FaultScript()),
        seed=seed,
        root=study.root,
    )


def _place(study: Study, arm: Arm, name: str, settings: Mapping[str, Any], shared: Place) -> Place:
    if name not in arm.own:
        return dataclasses.replace(shared, name=name)
    own = arm.own[name]
    tables = tables_of({**settings, **flat_own(own)}, "island")
    return Place(name, _anchored(study.root, tables, "island"), own.step_s or shared.step_s)


def _links(arm: Arm, beyond: SharedTable) -> Links:
    if len(arm.islands) == 1:
        return Links({}, {}, (), ())
    in_order = sorted(arm.links, key=lambda link: link.between is None)
    return Links(
        shared=beyond.link.model_dump(),
        uneven=arm.uneven.spans,
        own=tuple((*direction, link.own) for link in in_order for direction in link.directions),
        outages=tuple(
            sorted(
                (from_s, until_s, min(link.ends), max(link.ends))
                for link in arm.links
                for from_s, until_s in link.outages
            )
        ),
    )


def _anchored(root: Path, tables: Tables, room: Literal["run", "island"]) -> Tables:
    return _with_paths(tables, room, lambda path: str(root / path))


def _with_paths(tables: Mapping[str, Any], room: str, change: Callable[[str], str]) -> dict[str, Any]:
    """``tables`` with ``change`` made to the paths in ``data``; names that stand for no file stay."""
    data = dict(tables.get("data", {}))
    names = {DEFAULT_SOURCES} if room == "island" else {BYTE_TOKENS, *(spec.name for spec in DEFAULT_HELD_OUT)}
    for key in ("sources",) if room == "island" else ("tokenizer", "evaluate"):
        value = data.get(key)
        if isinstance(value, str):
            data[key] = value if value in names else change(value)
        elif value is not None:
            data[key] = tuple(each if each in names else change(each) for each in value)
    return {**tables, "data": data} if data else dict(tables)
