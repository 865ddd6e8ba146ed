"""A virtual run's files: the same tables as a real one's, checked alike, with keys that never leave the process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.config import IslandConfig, LoadedRun, RunConfig, RunPaths
from isthmus.config.problems import Problem, raise_problems, validated
from isthmus.config.render import render_toml
from isthmus.identity import Identity, certificate_to_base64, create_identity
from isthmus.lab.setup import Place, Setup
from isthmus.roster import Roster

_OWNER = "the lab"
_TITLE = "A run of the lab. This file says what it was; changing it changes nothing."


def load_setup(setup: Setup, run_dir: Path, cache: Path) -> dict[str, LoadedRun]:
    """A run as each of its islands would load it, by name in the order of slots; written down for people to read.

    Args:
        setup: The settings.
        run_dir: Where ``run.toml`` and each island's ``island.toml`` are written.
        cache: Where texts are cached.

    Raises:
        ConfigError: The settings are wrong.
    """
    paths, problems = RunPaths(run_dir), list[Problem]()
    tables = {**setup.run, "run": {**setup.run["run"], "owner": _OWNER}}
    run = validated(paths.run, RunConfig, tables, problems)
    configs = {
        island.name: validated(
            paths.island(island.name).config, IslandConfig, _own_tables(island, cache.resolve()), problems
        )
        for island in setup.islands
    }
    raise_problems(problems)
    assert run is not None
    identities = [create_identity(name) for name in configs]
    roster = _roster(run, identities)
    _write(paths.run, render_toml(run, _TITLE))
    loaded = {}
    for identity in identities:
        config, member = configs[identity.name], roster.find(identity.name)
        assert config is not None and member is not None
        own = paths.island(identity.name)
        _write(own.config, render_toml(config, _TITLE))
        loaded[identity.name] = LoadedRun(paths, run, roster, config, member, identity, own)
    return loaded


def _own_tables(place: Place, cache: Path) -> dict[str, Mapping[str, Any]]:
    """An island's tables; in the lab all compute in fp32 on the CPU unless told otherwise, so that machines agree."""
    tables = place.tables
    island = {"precision": "fp32", "device": "cpu", **tables.get("island", {}), "name": place.name}
    return {**tables, "island": island, "data": {"cache": str(cache), **tables.get("data", {})}}


def _roster(run: RunConfig, identities: list[Identity]) -> Roster:
    members = tuple(
        {"name": each.name, "slot": slot, "certificate": certificate_to_base64(each.certificate_pem)}
        for slot, each in enumerate(identities)
    )
    return Roster.model_validate({"version": 1, "run": run.hash, "islands": members})


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
