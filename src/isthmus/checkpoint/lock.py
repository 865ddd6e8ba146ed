"""One process per island directory."""

from __future__ import annotations

import fcntl
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from isthmus.errors import LockError

FILE_NAME = "lock"
"""The lock file's name in an island's directory. The file stays; holding it is what counts."""


class _Holder(msgspec.Struct, frozen=True):
    """What a lock file says of the process that holds it; the file's time says since when."""

    pid: int
    host: str


class IslandLock:
    """An exclusive lock on an island's directory, as a context manager.

    The kernel releases it when the process ends, however it ends; processes forked meanwhile do not keep it.

    Args:
        directory: The island's directory; it must exist.
        what: What is locked, for the error; another directory than an island's can be.
    """

    def __init__(self, directory: Path, what: str = "the island") -> None:
        self._path, self._what = directory / FILE_NAME, what
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock, or fail at once.

        Raises:
            LockError: Another process holds it (the message names it), or the file system cannot lock.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LockError(f"cannot open {self._path}", got=error) from error
        try:
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._fd is None:
            return
        os.ftruncate(self._fd, 0)
        self._close()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._held_error(fd) from None
        except OSError as error:
            raise LockError(
                f"cannot lock {self._path}",
                got=error,
                mend="Put the island on a file system that supports flock.",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(_Holder(os.getpid(), platform.node())), 0)

    def _held_error(self, fd: int) -> LockError:
        since = datetime.fromtimestamp(os.fstat(fd).st_mtime, UTC)
        try:
            holder = msgspec.json.decode(os.pread(fd, 4096, 0), type=_Holder)
            who = f"process {holder.pid} on {holder.host}"
        except msgspec.DecodeError:
            who = "a process that has not yet said which"
        return LockError(
            f"another process holds {self._what} in {self._path.parent}",
            got=f"{who}, since {since:%Y-%m-%d %H:%M:%S} UTC",
            mend="Stop it, or wait until it has ended.",
        )

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        _held.discard(self)


_held: set[IslandLock] = set()


def _forget_in_child() -> None:
    """Close a forked child's copies, so that a lock dies with its holder, not with the last data worker."""
    for lock in tuple(_held):
        lock._close()


os.register_at_fork(after_in_child=_forget_in_child)
