"""Changes of a run's roster: signed again, an island added or removed; each is one version up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isthmus.config.island import IslandConfig
from isthmus.config.load import read_key, read_roster, read_run
from isthmus.config.paths import RunPaths
from isthmus.config.problems import Problem, nearest, raise_problems, validated
from isthmus.config.render import render_toml
from isthmus.config.run import RunConfig
from isthmus.config.write import ROSTER_TITLE, NewIsland, example_island, island_config, write_island
from isthmus.errors import ConfigError
from isthmus.files import write_text_atomic
from isthmus.identity import (
    Identity,
    OwnerKey,
    certificate_name,
    certificate_to_base64,
    create_identity,
    load_owner_key,
)
from isthmus.roster import MAX_SLOT, Member, Roster, sign_roster

_LOOPBACK = "127."


def sign_again(run_dir: Path) -> Roster:
    """Sign ``roster.toml`` for ``run.toml`` as both now are, one version up; ConfigError if something is wrong."""
    shared = _Shared(run_dir)
    return shared.write(shared.roster.islands)


def add_island(run_dir: Path, name: str, *, address: str | None = None, certificate: Path | None = None) -> Roster:
    """Add an island to the roster, in a slot that no island ever had.

    Args:
        run_dir: The run's directory, with ``owner.key``.
        name: The island's name.
        address: Where the others reach it; None for one that only dials, or is on loopback as all others are.
        certificate: Its ``identity.crt``, where its site has made it; otherwise its files and keys are written here.

    Raises:
        ConfigError: Something is wrong, or the name is taken.
    """
    shared = _Shared(run_dir)
    if shared.roster.find(name) is not None:
        raise ConfigError(f"there is an island called {name}", wanted="a name of its own")
    slot = shared.free_slot()
    island = _as_the_others(shared, name, slot, address)
    if certificate is None:
        made = _make(shared, island)
        pem, addresses = made[1].certificate_pem, island.addresses
    else:
        made, pem = None, _read_certificate(certificate, name)
        addresses = () if address is None else (address,)
    values = {"name": name, "slot": slot, "certificate": certificate_to_base64(pem), "addresses": addresses}
    problems = list[Problem]()
    member = validated(shared.paths.roster, Member, values, problems)
    raise_problems(problems)
    assert member is not None
    if made is not None:
        write_island(shared.paths, *made)
    return shared.write((*shared.roster.islands, member))


def remove_island(run_dir: Path, name: str) -> Roster:
    """Take an island from the roster; the others trade with it no more, and its slot is given to no other.

    Raises:
        ConfigError: There is no such island, or no other.
    """
    shared = _Shared(run_dir)
    gone = shared.member(name)
    rest = tuple(island for island in shared.roster.islands if island is not gone)
    if not rest:
        raise ConfigError("a run has at least one island", got=f"{name} is the only one")
    return shared.write(rest, retired=(*shared.roster.retired, gone.slot))


def set_windows(run_dir: Path, name: str, windows: Sequence[str]) -> Roster:
    """Say when an island's capacity is there; no windows: always.

    Raises:
        ConfigError: There is no such island, or something is no window.
    """
    shared = _Shared(run_dir)
    member = shared.member(name)
    problems = list[Problem]()
    changed = validated(shared.paths.roster, Member, member.model_dump() | {"windows": tuple(windows)}, problems)
    raise_problems(problems)
    assert changed is not None
    return shared.write(tuple(changed if island is member else island for island in shared.roster.islands))


def write_roster(paths: RunPaths, roster: Roster) -> None:
    """Put a signed roster in the place of the one there is."""
    write_text_atomic(paths.roster, render_toml(roster, ROSTER_TITLE))


class _Shared:
    """What all islands of a run share, and the key that signs it."""

    def __init__(self, run_dir: Path) -> None:
        self.paths, problems = RunPaths(run_dir), list[Problem]()
        run, roster = read_run(self.paths, problems), read_roster(self.paths, problems)
        owner = read_key(self.paths.owner_key, load_owner_key, problems)
        if run is not None and owner is not None and owner.public != run.run.owner:
            what = f"got {run.run.owner}; wanted {owner.public}, which {self.paths.owner_key} has"
            problems.append(Problem(self.paths.run, "run.owner", what))
        raise_problems(problems)
        assert run is not None and roster is not None and owner is not None
        self.run: RunConfig = run
        self.roster: Roster = roster
        self.owner: OwnerKey = owner

    def member(self, name: str) -> Member:
        """The island of a name; ConfigError if there is none."""
        found = self.roster.find(name)
        if found is None:
            known = [island.name for island in self.roster.islands]
            raise ConfigError("there is no such island in the roster", got=name, mend=nearest(name, known))
        return found

    def free_slot(self) -> int:
        """The lowest slot that no island ever had."""
        taken = {*self.roster.slots, *self.roster.retired}
        slot = next((slot for slot in range(MAX_SLOT + 1) if slot not in taken), None)
        if slot is None:
            raise ConfigError("the roster is full", got=f"{len(taken)} slots used", wanted=f"at most {MAX_SLOT + 1}")
        return slot

    def write(self, islands: tuple[Member, ...], *, retired: tuple[int, ...] | None = None) -> Roster:
        """Write and sign the next version."""
        kept = self.roster.retired if retired is None else retired
        values = {"version": self.roster.version + 1, "run": self.run.hash, "retired": kept, "islands": islands}
        signed = sign_roster(self.roster.model_copy(update=values), self.owner)
        write_roster(self.paths, signed)
        return signed


def _as_the_others(shared: _Shared, name: str, slot: int, address: str | None) -> NewIsland:
    """An island at its address; without one on loopback where all others are, else one that only dials."""
    known = {island.name: where for island in shared.roster.islands for where in island.addresses[:1]}
    elsewhere = {other: where for other, where in known.items() if not where.startswith(_LOOPBACK)}
    return example_island(name, slot, elsewhere | ({} if address is None else {name: address}))


def _make(shared: _Shared, island: NewIsland) -> tuple[IslandConfig, Identity]:
    """The settings and the identity of a new island, to be written."""
    folder = shared.paths.island(island.name).root
    if folder.exists():
        raise ConfigError(
            f"there are files of an island called {island.name}",
            got=str(folder),
            mend="Give its certificate (--certificate), or remove them yourself.",
        )
    problems = list[Problem]()
    config = island_config(shared.paths, island, problems)
    raise_problems(problems)
    assert config is not None
    return config, create_identity(island.name)


def _read_certificate(path: Path, name: str) -> bytes:
    try:
        pem = path.read_bytes()
    except OSError as error:
        raise ConfigError("the certificate cannot be read", got=error.strerror, wanted=str(path)) from error
    if certificate_name(pem) != name:
        raise ConfigError("the certificate is another island's", got=certificate_name(pem), wanted=name)
    return pem
