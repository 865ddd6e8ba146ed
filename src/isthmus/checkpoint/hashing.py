"""SHA-256 of what is written and read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from isthmus.files import Chunk

_AT_ONCE = 1 << 22


class ShardFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of shards, as it was written."""

    name: str
    num_bytes: int
    sha256: str


def hash_files(folder: Path, names: Iterable[str]) -> list[ShardFile]:
    """Files as they lie on the disk."""
    return [hash_file(folder / name) for name in names]


def hash_file(path: Path) -> ShardFile:
    """A file as it lies on the disk."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_AT_ONCE):
            digest.update(piece)
            num_bytes += len(piece)
    return ShardFile(path.name, num_bytes, digest.hexdigest())


class Hashed:
    """Chunks passed through, with their length and SHA-256 so far."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = chunks
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            self._hash.update(chunk)
            self.num_bytes += memoryview(chunk).nbytes
            yield chunk

    @property
    def sha256(self) -> str:
        """In hex."""
        return self._hash.hexdigest()


class HashingReader:
    """A file read front to back, with the SHA-256 of what was read."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def readinto(self, buffer: memoryview, /) -> int:
        """See ``io.BufferedIOBase.readinto``."""
        count = self._file.readinto(buffer)
        self._hash.update(buffer[:count])
        return count

    @property
    def sha256(self) -> str:
        """In hex."""
        return self._hash.hexdigest()
