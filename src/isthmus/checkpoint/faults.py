"""A storage that fails on schedule: for tests, the lab and chaos drills."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from isthmus.checkpoint.storage import Storage
from isthmus.files import Chunk


class CrashError(BaseException):
    """The process is gone from here on; no handler of ordinary errors sees it."""


@dataclass(frozen=True)
class FaultPlan:
    """What goes wrong, and when.

    Args:
        crash_at: The crash point, counted from 0, at which ``CrashError`` is raised. There is one before and
            one after every write, delete and sweep, and one before every chunk of a write.
        capacity_bytes: The disk is full when its files, the one being written included, would exceed this.
        torn_writes: Writes, counted from 0, of which only the first half reaches the disk though they report
            success.
        before_chunk: Called before every chunk that is written: a slow disk moves a clock here.
    """

    crash_at: int | None = None
    capacity_bytes: int | None = None
    torn_writes: frozenset[int] = frozenset()
    before_chunk: Callable[[], None] | None = None


class FaultyStorage:
    """Another storage, seen through a fault plan.

    Args:
        inner: Where the files really are; what it holds after a crash is what the next process finds.
        plan: What goes wrong.
    """

    def __init__(self, inner: Storage, plan: FaultPlan) -> None:
        self._inner, self._plan = inner, plan
        self._writes = 0
        self.points = 0

    def write_atomic(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Write, unless the plan says otherwise."""
        self._point()
        content = self._through_plan(chunks)
        if self._writes in self._plan.torn_writes:
            whole = b"".join(content)
            content = iter([whole[: len(whole) // 2]])
        self._writes += 1
        self._inner.write_atomic(name, content)
        self._point()

    def open(self, name: str) -> io.BufferedIOBase:
        """Reading never fails by plan."""
        return self._inner.open(name)

    def size(self, name: str) -> int:
        """Length in bytes."""
        return self._inner.size(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._inner.exists(name)

    def names(self, prefix: str = "") -> list[str]:
        """Names that start with ``prefix``, sorted."""
        return self._inner.names(prefix)

    def delete(self, name: str) -> None:
        """Delete, with a crash point on either side."""
        self._point()
        self._inner.delete(name)
        self._point()

    def sweep(self) -> None:
        """Sweep, with a crash point on either side."""
        self._point()
        self._inner.sweep()
        self._point()

    def _through_plan(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        used_bytes = sum(self._inner.size(name) for name in self._inner.names())
        for chunk in chunks:
            self._point()
            if self._plan.before_chunk is not None:
                self._plan.before_chunk()
            used_bytes += memoryview(chunk).nbytes
            if self._plan.capacity_bytes is not None and used_bytes > self._plan.capacity_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield chunk

    def _point(self) -> None:
        point, self.points = self.points, self.points + 1
        if point == self._plan.crash_at:
            raise CrashError(f"crash point {point}")
