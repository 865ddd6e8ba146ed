"""A run's files, read and checked together before anything starts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from isthmus.config.island import IslandConfig
from isthmus.config.paths import IslandPaths, RunPaths
from isthmus.config.problems import Problem, nearest, raise_problems, read_table, relation_problems
from isthmus.config.rooms import optimizer_problems, room_problems
from isthmus.config.run import BYTE_TOKENS, RunConfig
from isthmus.errors import IdentityError
from isthmus.identity import Identity, certificate_to_base64, load_identity
from isthmus.roster import Member, Roster, verify_roster

_Key = TypeVar("_Key")

_MEND_INIT = "Write an example with `isthmus init DIR`, or copy run.toml and roster.toml from the run's owner."


@dataclass(frozen=True)
class SharedFiles:
    """What all islands of a run have: the run, its verified roster, and where they lie."""

    paths: RunPaths
    run: RunConfig
    roster: Roster


@dataclass(frozen=True)
class LoadedRun(SharedFiles):
    """A run as one island sees it: what is shared, and the island's own."""

    island: IslandConfig
    member: Member
    identity: Identity
    own_paths: IslandPaths

    @property
    def window_steps(self) -> int:
        """H at this island, in steps: its own, or the run's."""
        return self.island.island.window_steps or self.run.mixing.window_steps


def load_shared(run_dir: Path) -> SharedFiles:
    """Read and check ``run.toml`` and ``roster.toml``; ConfigError lists everything that is wrong with them."""
    problems: list[Problem] = []
    shared = _read_shared(RunPaths(run_dir), problems)
    raise_problems(problems)
    assert shared is not None
    return shared


def load_run(run_dir: Path, island_name: str) -> LoadedRun:
    """Read and check all files that the island ``island_name`` needs.

    Raises:
        ConfigError: It lists everything that is wrong in and between ``run.toml``, ``roster.toml``, the island's
            ``island.toml`` and its keys.
    """
    problems: list[Problem] = []
    paths = RunPaths(run_dir)
    shared = _read_shared(paths, problems)
    own_paths = paths.island(island_name)
    known = [present.root.name for present in paths.present()]
    if not own_paths.root.is_dir():
        problems.append(Problem(own_paths.root, "", "no such island here", nearest(island_name, known)))
        raise_problems(problems)
    island = read_table(own_paths.config, IslandConfig, problems, mend=_MEND_INIT)
    identity = _read_identity(own_paths, island_name, problems)
    member = None
    if shared is not None:
        member = _check_member(shared, island_name, identity, problems)
        if island is not None:
            problems.extend(_island_problems(shared, own_paths, island, island_name))
    raise_problems(problems)
    assert shared is not None and island is not None and member is not None and identity is not None
    return LoadedRun(paths, shared.run, shared.roster, island, member, identity, own_paths)


def read_run(paths: RunPaths, problems: list[Problem]) -> RunConfig | None:
    """``run.toml`` with everything in it checked; None if it has mistakes, which are added to ``problems``."""
    run = read_table(paths.run, RunConfig, problems, mend=_MEND_INIT)
    if run is None:
        return None
    problems.extend(room_problems(paths.run, run))
    problems.extend(tokenizer_problems(paths.run, paths.root, run))
    return run


def read_roster(paths: RunPaths, problems: list[Problem]) -> Roster | None:
    """``roster.toml``, its signature not checked; None if it has mistakes, which are added to ``problems``."""
    return read_table(paths.roster, Roster, problems, mend=_MEND_INIT)


def read_key(path: Path, load: Callable[[bytes], _Key], problems: list[Problem]) -> _Key | None:
    """What ``load`` makes of a key file; None if that fails, which is then added to ``problems``."""
    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        problems.append(Problem(path, "", "the file is missing", "It lies where `isthmus init` was run."))
    except OSError as error:
        problems.append(Problem(path, "", f"the file cannot be read: {error.strerror}"))
    except IdentityError as error:
        problems.append(Problem(path, "", str(error)))
    return None


def _read_shared(paths: RunPaths, problems: list[Problem]) -> SharedFiles | None:
    run = read_run(paths, problems)
    roster = read_roster(paths, problems)
    if run is None or roster is None:
        return None
    if roster.run != run.hash:
        what = f"got the run {roster.run[:12]}; wanted {run.short_hash}, which run.toml has"
        mend = (
            f"If run.toml was changed on purpose: `isthmus roster sign {paths.root}`, "
            "then give run.toml and roster.toml to every site."
        )
        problems.append(Problem(paths.roster, "run", what, mend))
    try:
        verify_roster(roster, run.run.owner)
    except IdentityError as error:
        mend = f"Where owner.key lies: `isthmus roster sign {paths.root}`."
        problems.append(Problem(paths.roster, "signature", str(error), mend))
    return SharedFiles(paths, run, roster)


def _read_identity(own: IslandPaths, name: str, problems: list[Problem]) -> Identity | None:
    key_pem = read_key(own.key, bytes, problems)
    certificate_pem = read_key(own.certificate, bytes, problems)
    if key_pem is None or certificate_pem is None:
        return None
    try:
        return load_identity(name, key_pem, certificate_pem)
    except IdentityError as error:
        problems.append(Problem(own.certificate, "", str(error)))
        return None


def _check_member(shared: SharedFiles, name: str, identity: Identity | None, problems: list[Problem]) -> Member | None:
    member = shared.roster.find(name)
    if member is None:
        known = [island.name for island in shared.roster.islands]
        problems.append(Problem(shared.paths.roster, "islands", f"{name} is not in it", nearest(name, known)))
    elif identity is not None and member.certificate != certificate_to_base64(identity.certificate_pem):
        what = f"{name} has another certificate in the roster than in its own directory"
        problems.append(Problem(shared.paths.island(name).certificate, "", what, "Enter the right one, and sign."))
    return member


def _island_problems(shared: SharedFiles, own: IslandPaths, island: IslandConfig, name: str) -> list[Problem]:
    problems = optimizer_problems(own.config, "island.optimizer", island.island.optimizer)
    if island.island.name != name:
        what = f"got {island.island.name!r}; wanted {name!r}, as its directory is called"
        problems.append(Problem(own.config, "island.name", what))
    if island.island.window_steps is not None:
        broken = shared.run.mixing.window_relations(island.island.window_steps)
        problems.extend(relation_problems(own.config, ("island",), broken))
    member, shares = shared.roster.find(name), island.data.shares
    if member is not None and shares is not None and not any(shares[member.slot : member.slot + 1]):
        what = f"got {list(shares)}; wanted a share above 0 for slot {member.slot}, this island's"
        problems.append(Problem(own.config, "data.shares", what))
    peers = [peer.name for peer in shared.roster.peers(name)]
    for dialled in island.link.dial:
        if dialled not in peers:
            what = "it is no other island of the roster"
            problems.append(Problem(own.config, f"link.dial.{dialled}", what, nearest(dialled, peers)))
    return problems


def tokenizer_problems(path: Path, root: Path, run: RunConfig) -> list[Problem]:
    """What is wrong with the tokenizer's file, found from ``root``, of the run file at ``path``."""
    if run.data.tokenizer == BYTE_TOKENS:
        return []
    tokenizer = root / run.data.tokenizer
    try:
        found = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    except OSError as error:
        return [Problem(path, "data.tokenizer", f"{tokenizer} cannot be read: {error.strerror}")]
    if found == run.data.tokenizer_sha256:
        return []
    what = f"got {run.data.tokenizer_sha256}; wanted {found}, which {tokenizer} has"
    return [Problem(path, "data.tokenizer_sha256", what, "All sites need the same file.")]
