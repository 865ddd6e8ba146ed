"""Who holds which name, as last heard; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from isthmus.windows import say_time


class Holder(msgspec.Struct, frozen=True):
    """A process that holds a name.

    Attributes:
        token: Of this start of it alone.
        place: The machine since its boot, and the run directory: what else runs there can see whether it lives.
        host: The machine's name, for people.
        address: Where other islands reach it, ``host:port``; empty if it only dials.
        since_s: When it took the name, by its clock, in seconds since the epoch.
    """

    token: str
    place: str
    host: str
    address: str = ""
    since_s: float = 0.0

    def encode(self) -> bytes:
        """As it stands in a lease."""
        return msgspec.json.encode(self)


class Entry(NamedTuple):
    """A name's last revision, and who holds it since then."""

    revision: int
    holder: Holder | None


FREE = Entry(0, None)


class Book:
    """All names, as last heard. What is written is written by one thread; anyone may read."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def note(self, name: str, revision: int, document: bytes | None) -> None:
        """Take in what a name's lease now says; nothing or nonsense is nobody. Older revisions are not looked at."""
        if revision < self.at(name).revision:
            return
        self._entries[name] = Entry(revision, read_holder(document))

    def at(self, name: str) -> Entry:
        """What is known of a name."""
        return self._entries.get(name, FREE)

    def holder(self, name: str) -> Holder | None:
        """Who holds a name."""
        return self.at(name).holder

    def free(self, names: Iterable[str]) -> frozenset[str]:
        """Those of ``names`` that nobody holds."""
        return frozenset(name for name in names if self.holder(name) is None)


def read_holder(document: bytes | None) -> Holder | None:
    """Who a lease says holds it; None for nobody, or for what is no lease."""
    if not document:
        return None
    try:
        return msgspec.json.decode(document, type=Holder)
    except msgspec.DecodeError:
        return None


def choose(
    pool: Sequence[str], book: Book, *, place: str, lives: Callable[[str], bool], kept: Callable[[str], bool]
) -> str | None:
    """Which name of ``pool`` to take; None if all are held.

    Args:
        pool: The names, in the order of preference.
        book: Who holds them.
        place: Where the asking process is: what a dead one there held is taken first, as its lease has not run out.
        lives: Whether a process at this place has the name.
        kept: Whether this place has a checkpoint of the name to go on from.
    """
    free = []
    for name in pool:
        holder = book.holder(name)
        if holder is not None and holder.place == place and not lives(name):
            return name
        if holder is None and not lives(name):
            free.append(name)
    return next((name for name in free if kept(name)), free[0] if free else None)


def say_holders(pool: Sequence[str], book: Book) -> list[str]:
    """A line for every name: who holds it."""
    lines = []
    for name in pool:
        holder = book.holder(name)
        if holder is None:
            lines.append(f"{name}  free")
        else:
            where = f" at {holder.address}" if holder.address else ""
            lines.append(f"{name}  {holder.host}{where} since {say_time(holder.since_s)}")
    return lines
