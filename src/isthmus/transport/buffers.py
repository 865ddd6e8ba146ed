"""Memory that two processes share by passing a file descriptor: a memfd, or an unlinked temporary file."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref


class SharedBuffer(mmap.mmap):
    """A mapping that keeps its file descriptor; both are released when nothing refers to it any more."""

    fd: int

    @classmethod
    def create(cls, num_bytes: int) -> SharedBuffer:
        """A zeroed, writable buffer of ``num_bytes`` > 0; pages take memory when they are first written."""
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, num_bytes)
            return cls._map(fd, num_bytes, mmap.ACCESS_WRITE)
        except OSError:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fd: int, num_bytes: int) -> SharedBuffer:
        """A read-only view of another process's buffer; takes over ``fd``."""
        return cls._map(fd, num_bytes, mmap.ACCESS_READ)

    @classmethod
    def _map(cls, fd: int, num_bytes: int, access: int) -> SharedBuffer:
        buffer = cls(fd, num_bytes, access=access)
        buffer.fd = fd
        weakref.finalize(buffer, os.close, fd).atexit = False
        return buffer


def shared_buffer_of(payload: memoryview) -> SharedBuffer | None:
    """The shared buffer that ``payload`` is the whole of, if it is one."""
    buffer = payload.obj
    if isinstance(buffer, SharedBuffer) and len(buffer) == payload.nbytes:
        return buffer
    return None


def share(payload: memoryview) -> SharedBuffer:
    """``payload``, not empty, as a shared buffer: itself if it is one, else a copy."""
    if (buffer := shared_buffer_of(payload)) is not None:
        return buffer
    buffer = SharedBuffer.create(payload.nbytes)
    memoryview(buffer)[:] = payload.cast("B")
    return buffer


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("isthmus")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
