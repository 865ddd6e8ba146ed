"""The name that an island trains under, where names are leased: taken before anything else, and kept while it runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.checkpoint import IslandLock
from isthmus.config import LeasesConfig, RunPaths, load_leases, load_run, load_shared
from isthmus.errors import ConfigError, LinkError, LockError
from isthmus.island import is_first_rank, word_of_rank_0
from isthmus.leases import (
    Holder,
    LeaseDesk,
    choose,
    lease_settings,
    leased_names,
    nothing_leased,
    say_holders,
)
from isthmus.terms import LinkAlarm, LinkEvent
from isthmus.transport.here import host_name, place_of, reached_at


class Lease:
    """An island's name, and what is known of the names that others lease.

    Args:
        name: The island.
        pool: All names that are leased.
        desk: The lease servers; None where nothing is leased, and at all ranks but the first.
        alarm: What went wrong so far.
    """

    def __init__(
        self, name: str, pool: tuple[str, ...] = (), desk: LeaseDesk | None = None, alarm: LinkEvent | None = None
    ) -> None:
        self.name, self._pool, self._desk, self._alarm = name, pool, desk, alarm

    @property
    def away(self) -> frozenset[str]:
        """The leased islands that nobody is."""
        return frozenset() if self._desk is None else self._desk.book.free(self._pool) - {self.name}

    @property
    def lost(self) -> str | None:
        """Why this island is another machine's now; None as long as it is not."""
        return None if self._desk is None else self._desk.lost

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Where the other leased islands are reached, as who holds them says."""
        if self._desk is None:
            return {}
        holders = {name: self._desk.book.holder(name) for name in self._pool if name != self.name}
        return {name: (holder.address,) for name, holder in holders.items() if holder is not None and holder.address}

    def take(self) -> LinkEvent | None:
        """What went wrong with the servers, once."""
        found, self._alarm = self._alarm, None
        return found if found is not None or self._desk is None else self._desk.take_event()


@contextmanager
def hold_lease(run_dir: str | Path, name: str | None = None) -> Iterator[Lease]:
    """Hold the name of an island while it trains: a free one of those that are leased, or the one that is given.

    Where the run directory has no ``leases.toml``, or the given name is none of those in it, the name is as given.
    Of several ranks the first one asks, and waits until there is a name; the others hear it from there.

    Args:
        run_dir: The run directory.
        name: The island; None for any that is free.

    Raises:
        ConfigError: ``leases.toml`` is wrong, or missing where no name is given.
        LinkError: The lease servers cannot be reached, or used.
    """
    paths = RunPaths(Path(run_dir))
    config = load_leases(paths)
    if config is None and name is None:
        raise nothing_leased(paths)
    if config is None:
        assert name is not None
        yield Lease(name)
    elif not is_first_rank():
        yield Lease(word_of_rank_0(lambda: ""))
    else:
        with _hold(paths, config, name) as lease:
            word_of_rank_0(lambda: lease.name)
            yield lease


@contextmanager
def _hold(paths: RunPaths, config: LeasesConfig, name: str | None) -> Iterator[Lease]:
    shared = load_shared(paths.root)
    pool = leased_names(config, shared)
    wanted = pool if name is None else (name,)
    here = [own.root.name for own in paths.present()]
    if name is None and not (wanted := tuple(name for name in pool if name in here)):
        raise ConfigError(
            "no leased island has a directory here", got=", ".join(here) or "none", wanted=", ".join(pool)
        )
    place = place_of(paths.root)
    own = Holder(secrets.token_hex(8), place, host_name())
    server = config.servers[0].partition("://")[2]
    addresses = {name: reached_at(load_run(paths.root, name).island.link.listen, towards=server) for name in wanted}
    desk = LeaseDesk(lease_settings(paths, config, shared.run.hash), own, addresses)
    if name is not None and name not in pool:
        yield _look_on(name, pool, desk)
        desk.close()
        return
    locks = {name: _lock(paths, name) for name in wanted}
    desk.open()
    try:
        taken = desk.take(
            lambda book: choose(
                wanted,
                book,
                place=place,
                lives=lambda name: not _is_free(locks[name]),
                kept=lambda name: any(paths.island(name).checkpoints.glob("*")),
            ),
            lambda book: "\n  ".join(["waiting for an island to be free:", *say_holders(wanted, book)]),
        )
        with locks[taken]:
            yield Lease(taken, pool, desk)
    finally:
        desk.close()


def _look_on(name: str, pool: tuple[str, ...], desk: LeaseDesk) -> Lease:
    """An island that is not leased itself; servers that cannot be reached do not hinder it."""
    try:
        desk.open()
    except LinkError as error:
        return Lease(name, alarm=LinkAlarm(None, f"{error}; leased islands are waited for as all others are"))
    return Lease(name, pool, desk)


def _lock(paths: RunPaths, name: str) -> IslandLock:
    """Held by the process here that has the name; apart from the island's own, which is held later and not as long."""
    directory = paths.leases_dir / "held" / name
    directory.mkdir(parents=True, exist_ok=True)
    return IslandLock(directory, "the name")


def _is_free(lock: IslandLock) -> bool:
    try:
        with lock:
            return True
    except LockError:
        return False
