"""Rosters that change while islands train: seen on the disk, told from island to island; the newest wins."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from isthmus.config import RunPaths, load_shared
from isthmus.errors import ConfigError
from isthmus.roster import Roster, newest
from isthmus.terms import Header, LinkAlarm, LinkEvent, Message, MessageReceived, RosterNews
from isthmus.transport.link import Link

WATCH_S = 2.0
"""How often the file is looked at."""

_Stamp = tuple[int, int, int]


def heard_roster(document: str, mine: Roster, *, owner: str) -> Roster | None:
    """The roster that a document holds, if it is one of this run, newer than ``mine``, and signed by the owner."""
    try:
        other = Roster.model_validate_json(document)
    except ValidationError:
        return None
    found = newest(mine, other, owner=owner)
    return None if found is mine else found


class RosterFile:
    """``roster.toml`` of an island that trains, read again when it has changed.

    Args:
        root: The run directory.
        name: The island.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name
        self._seen = self._read = self._stamp()

    def look(self) -> LinkEvent | None:
        """What a changed file says, or what is wrong with it; once, and not before it has stood still for a look."""
        before, self._seen = self._seen, self._stamp()
        if self._seen is None or self._seen == self._read or self._seen != before:
            return None
        self._read = self._seen
        try:
            return MessageReceived(self._name, RosterNews(load_shared(self._root).roster.model_dump_json()))
        except ConfigError as error:
            return LinkAlarm(None, f"roster.toml has changed, and cannot be gone by: {error}")

    def _stamp(self) -> _Stamp | None:
        try:
            status = RunPaths(self._root).roster.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class RosterWatch:
    """Looks at a roster's file in a thread of its own, so that no file system holds up training.

    Args:
        file: The file.
        watch_s: Seconds between two looks.
    """

    def __init__(self, file: RosterFile, watch_s: float) -> None:
        self._file, self._watch_s = file, watch_s
        self._closed = threading.Event()
        self._found: LinkEvent | None = None
        threading.Thread(target=self._watch, name="isthmus-roster", daemon=True).start()

    def take(self) -> LinkEvent | None:
        """What the last change of the file says, once."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._watch_s):
            self._found = self._file.look() or self._found


class Watch(Protocol):
    """Something beside the link that has something to say to its island now and then."""

    def take(self) -> LinkEvent | None:
        """What there is, once."""
        ...


class WatchingLink:
    """The gateway's link; what the roster's file newly holds is heard on it as if this island had said it.

    Args:
        link: The link.
        watches: Look at the file, and at what else is beside the link.
    """

    def __init__(self, link: Link, watches: Sequence[Watch]) -> None:
        self._link, self._watches = link, watches

    def buffer(self, num_bytes: int) -> memoryview:
        """See ``Link.buffer``."""
        return self._link.buffer(num_bytes)

    def send(self, peer: str, message: Message) -> None:
        """See ``Link.send``."""
        self._link.send(peer, message)

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """See ``Link.publish``."""
        self._link.publish(peer, header, payload, spread_s=spread_s)

    def poll(self) -> list[LinkEvent]:
        """See ``Link.poll``."""
        events = self._link.poll()
        events += [found for watch in self._watches if (found := watch.take()) is not None]
        return events

    def wait(self, timeout_s: float) -> None:
        """See ``Link.wait``."""
        self._link.wait(timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """See ``Link.close``."""
        self._link.close(timeout_s=timeout_s)
