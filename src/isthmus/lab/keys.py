"""Settings of a study as one flat mapping: ``run.TABLE.KEY``, ``island.TABLE.KEY``, ``link.KEY`` and ``step_s``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.config import IslandConfig, RunConfig
from isthmus.config.problems import Problem, nearest
from isthmus.config.tables import Table
from isthmus.lab.study_file import LinkTable, OwnTable, SharedTable, Tables
from isthmus.model import ModelConfig

_ROOMS: dict[str, type[Table]] = {"run": RunConfig, "island": IslandConfig}
_BY_THE_LAB = ("run.run.name", "run.run.owner", "run.run.seed", "island.island.name")
_LIVE_LINK = "island.link"
_MEND_LINK = "Links are set in [base.link], in an arm's link, links and uneven, or as link.KEY."


@functools.cache
def known_keys() -> frozenset[str]:
    """All keys that a study may set."""
    keys = {"step_s", *(f"link.{key}" for key in LinkTable.model_fields)}
    for room, config in _ROOMS.items():
        for table, field in config.model_fields.items():
            assert isinstance(field.annotation, type) and issubclass(field.annotation, Table)
            keys |= {f"{room}.{table}.{key}" for key in field.annotation.model_fields}
    keys |= {f"run.model.{field.name}" for field in dataclasses.fields(ModelConfig)}
    return frozenset(key for key in keys if key not in _BY_THE_LAB and not key.startswith(f"{_LIVE_LINK}."))


def key_problem(path: Path, place: str, key: str) -> Problem | None:
    """What is wrong with ``key``, which stands at ``place`` of the study at ``path``; None if it may be set."""
    if key in known_keys():
        return None
    if key in _BY_THE_LAB:
        return Problem(path, f"{place}{key}", "the lab sets it itself", "Leave it out.")
    if key.startswith(f"{_LIVE_LINK}."):
        return Problem(path, f"{place}{key}", "an island's own link is for live runs", _MEND_LINK)
    return Problem(path, f"{place}{key}", "the key is unknown", _nearest_key(key))


def flat_shared(table: SharedTable) -> dict[str, Any]:
    """What is written in ``[base]`` or in an arm for all its islands."""
    written = table.model_dump(include={*SharedTable.model_fields}, exclude_unset=True)
    return _flat(written)


def flat_own(table: OwnTable) -> dict[str, Any]:
    """What is written for one island."""
    return _flat(table.model_dump(exclude_unset=True))


def tables_of(settings: Mapping[str, Any], room: str) -> Tables:
    """The tables of ``run.toml`` or ``island.toml`` in ``settings``; ``room`` is ``run`` or ``island``."""
    tables: Tables = {}
    for key, value in settings.items():
        parts = key.split(".")
        if parts[0] == room:
            tables.setdefault(parts[1], {})[parts[2]] = value
    return tables


def beyond_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``settings`` stands in no file of a run, as ``SharedTable`` takes it."""
    links = {key.removeprefix("link."): value for key, value in settings.items() if key.startswith("link.")}
    return {"link": links, **{key: settings[key] for key in ("step_s",) if key in settings}}


def _flat(written: Mapping[str, Any]) -> dict[str, Any]:
    flat = {f"link.{key}": value for key, value in written.get("link", {}).items()}
    for room in _ROOMS:
        for table, values in written.get(room, {}).items():
            flat |= {f"{room}.{table}.{key}": value for key, value in values.items()}
    return flat | {key: written[key] for key in ("step_s",) if key in written}


def _nearest_key(key: str) -> str:
    table, _, name = key.rpartition(".")
    known = [each.rpartition(".") for each in sorted(known_keys())]
    siblings = [other for room, _, other in known if room == table]
    if table and siblings:
        return nearest(name, siblings)
    namesakes = [f"{room}.{other}" for room, _, other in known if room and other == name]
    if namesakes:
        return f"Did you mean {' or '.join(namesakes)}?"
    return nearest(table or key, sorted({room or other for room, _, other in known}))
