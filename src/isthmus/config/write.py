"""New runs on disk: commented files, keys for everybody, a signed roster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.addresses import split_address
from isthmus.config.island import IslandConfig
from isthmus.config.paths import RunPaths
from isthmus.config.problems import Problem, nearest, raise_problems, validated
from isthmus.config.render import render_toml
from isthmus.config.rooms import room_problems
from isthmus.config.run import RunConfig
from isthmus.errors import ConfigError
from isthmus.identity import (
    Identity,
    OwnerKey,
    certificate_to_base64,
    create_identity,
    create_owner_key,
)
from isthmus.roster import Roster, sign_roster
from isthmus.schedule import meetings_to_all

Tables = Mapping[str, Mapping[str, Any]]
"""Values of a TOML file by table and key; what is absent has its default."""

FIRST_PORT = 47110
"""Where the first island of an example listens; the next ones follow."""

EXAMPLE_BUDGET_TOKENS = 20_000_000
"""Tokens of an example run: some 1200 steps at each of two islands."""

_RUN_TITLE = (
    "What all islands of this run share. The values name the run, comments and layout do not: after a change "
    "of a value run `isthmus roster sign RUN_DIR` and give this file and roster.toml to every site."
)
ROSTER_TITLE = (
    "The islands of this run. After a change run `isthmus roster sign RUN_DIR` where owner.key lies, and give "
    "this file to every site. Signing writes the file anew."
)
ISLAND_TITLE = "This island's own settings; no other island sees them. A commented key is absent."

_EXAMPLE_BATCH_SIZE = 16


@dataclass(frozen=True)
class NewIsland:
    """An island of a run to be written: what the roster says of it, and the tables of its ``island.toml``.

    ``tables["island"]`` needs no name.
    """

    name: str
    tables: Tables
    addresses: tuple[str, ...] = ()


def write_run(run_dir: Path, tables: Tables, islands: Sequence[NewIsland]) -> RunConfig:
    """Write a new run: ``run.toml``, ``roster.toml``, the owner's key, and each island's files and keys.

    Args:
        run_dir: An empty or missing directory.
        tables: The values of ``run.toml``, without ``run.owner``.
        islands: The islands, in the order of their slots.

    Raises:
        ConfigError: Values are wrong (all are listed), or the directory holds something already.
    """
    paths, owner, problems = RunPaths(run_dir), create_owner_key(), list[Problem]()
    _refuse_overwriting(run_dir)
    values = {**tables, "run": {**tables.get("run", {}), "owner": owner.public}}
    run = validated(paths.run, RunConfig, values, problems)
    if run is not None:
        problems += room_problems(paths.run, run)
    configs = [island_config(paths, island, problems) for island in islands]
    raise_problems(problems)
    assert run is not None
    identities = [create_identity(island.name) for island in islands]
    roster = _first_roster(paths.roster, run, islands, identities, owner)
    write_new(paths.run, render_toml(run, _RUN_TITLE).encode())
    write_new(paths.roster, render_toml(roster, ROSTER_TITLE).encode())
    write_new(paths.owner_key, owner.key_pem, mode=0o600)
    for config, identity in zip(configs, identities, strict=True):
        assert config is not None
        write_island(paths, config, identity)
    return run


def write_island(paths: RunPaths, config: IslandConfig, identity: Identity) -> None:
    """Write the files of one island that is not there yet."""
    own = paths.island(identity.name)
    write_new(own.config, render_toml(config, ISLAND_TITLE).encode())
    write_new(own.key, identity.key_pem, mode=0o600)
    write_new(own.certificate, identity.certificate_pem)


def write_example(
    run_dir: Path,
    names: Sequence[str] = ("us-east", "asia"),
    *,
    preset: str = "nano",
    addresses: Mapping[str, str] | None = None,
    token_budget: int = EXAMPLE_BUDGET_TOKENS,
) -> RunConfig:
    """Write an example run that works as it is, with all islands on one machine, and is easy to change.

    Args:
        run_dir: An empty or missing directory; the run is called like it.
        names: The islands.
        preset: The model.
        addresses: Where islands are reached from the others, by name; those that it lacks only dial. Without any, all
            islands are on loopback.
        token_budget: Tokens of the whole run.

    Raises:
        ConfigError: As ``write_run``; or an address is of no island.
    """
    addresses = addresses or {}
    for name in addresses:
        if name not in names:
            raise ConfigError("an address is of no island", got=name, mend=nearest(name, names))
    name = re.sub(r"[^a-z0-9-]+", "-", run_dir.resolve().name.lower()).strip("-")[:32] or "run"
    tables: Tables = {
        "run": {"name": name, "token_budget": token_budget},
        "model": {"preset": preset},
        "mixing": {"meetings": meetings_to_all(len(names))},
    }
    return write_run(
        run_dir,
        tables,
        [example_island(name, slot, addresses) for slot, name in enumerate(names)],
    )


def island_config(paths: RunPaths, island: NewIsland, problems: list[Problem]) -> IslandConfig | None:
    """The settings of a new island; None where they are wrong, which ``problems`` then say."""
    values = {**island.tables, "island": {**island.tables.get("island", {}), "name": island.name}}
    return validated(paths.island(island.name).config, IslandConfig, values, problems)


def _first_roster(
    path: Path, run: RunConfig, islands: Sequence[NewIsland], identities: Sequence[Identity], owner: OwnerKey
) -> Roster:
    members = [
        {
            "name": island.name,
            "slot": slot,
            "certificate": certificate_to_base64(identity.certificate_pem),
            "addresses": island.addresses,
        }
        for slot, (island, identity) in enumerate(zip(islands, identities, strict=True))
    ]
    problems: list[Problem] = []
    roster = validated(path, Roster, {"version": 1, "run": run.hash, "islands": members}, problems)
    raise_problems(problems)
    assert roster is not None
    return sign_roster(roster, owner)


def example_island(name: str, slot: int, addresses: Mapping[str, str]) -> NewIsland:
    """An island on loopback, or, as soon as any has an address, one that is reached there or only dials."""
    reached: tuple[str, ...] = (addresses[name],) if name in addresses else ()
    if reached:
        try:
            host, port = split_address(addresses[name])
        except ValueError as error:
            raise ConfigError(f"the address of {name} is wrong", got=repr(addresses[name]), mend=f"{error}.") from error
        listen = f"[::]:{port}" if ":" in host else f"0.0.0.0:{port}"
    elif addresses:
        listen = "127.0.0.1:0"
    else:
        listen = f"127.0.0.1:{FIRST_PORT + slot}"
        reached = (listen,)
    tables: Tables = {"island": {"batch_size": _EXAMPLE_BATCH_SIZE}, "link": {"listen": listen}}
    return NewIsland(name, tables, addresses=reached)


def _refuse_overwriting(run_dir: Path) -> None:
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise ConfigError(
            "a new run would overwrite what is there",
            got=str(run_dir),
            wanted="a directory that is empty or does not exist",
            mend="Name another directory, or remove this one yourself.",
        )


def write_new(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file that must not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
