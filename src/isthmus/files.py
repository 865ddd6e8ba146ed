"""Files that are replaced as a whole or not at all, by any number of writers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

Chunk = bytes | bytearray | memoryview
"""A contiguous piece of a file."""

TMP_SUFFIX = ".tmp"
"""How the names of unfinished files end; they start with a dot."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the name ``path`` when, and only when, it was written whole.

    Missing folders are made. The old file stays until the new one is on the disk; on an error nothing is left
    of the new one. Of several writers at once, also in other processes, the last to end wins. An error of the
    very last sync leaves the new file in place, though a loss of power may undo it.

    Raises:
        OSError: The disk is full, read-only or failing.
    """
    _make_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TMP_SUFFIX}")
    try:
        with fresh.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_file_atomic(path: Path, chunks: Iterable[Chunk]) -> None:
    """Replace the file at ``path`` by the joined chunks; see ``replacing``."""
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)


def write_text_atomic(path: Path, text: str) -> Path:
    """Replace the file at ``path`` by a text in UTF-8; see ``replacing``."""
    write_file_atomic(path, [text.encode()])
    return path


def sync_file(path: Path) -> None:
    """Bring a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
