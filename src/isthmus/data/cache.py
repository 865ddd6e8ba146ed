"""Files that follow from their key alone, written whole or not at all; several processes may fill them at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from isthmus.errors import DataError
from isthmus.files import replacing

_FORMAT = "1"  # raise it when the same files give other documents, tokens or fields

Cached = TypeVar("Cached", bound=msgspec.Struct)


def cache_key(*parts: str) -> str:
    """A file name for what depends on exactly ``parts``."""
    return hashlib.sha256("\0".join((_FORMAT, *parts)).encode()).hexdigest()[:32]


def cached(path: Path, kind: type[Cached], make: Callable[[], Cached]) -> Cached:
    """The value in the JSON file ``path``; made and written first where there is none that can be used.

    Raises:
        DataError: The cache cannot be written.
    """
    value = read_cached(path, kind)
    if value is None:
        value = make()
        write_cached(path, value)
    return value


def read_cached(path: Path, kind: type[Cached]) -> Cached | None:
    """The value in the JSON file ``path``, or None where there is none that can be used."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_cached(path: Path, value: msgspec.Struct) -> None:
    """Write a value as the JSON file ``path``, by atomic rename.

    Raises:
        DataError: The cache cannot be written.
    """
    with cache_file(path) as stream:
        stream.write(msgspec.json.encode(value))


@contextmanager
def cache_file(path: Path) -> Iterator[BinaryIO]:
    """``replacing``, for a file of the cache.

    Raises:
        DataError: The directory or the file cannot be written.
    """
    try:
        with replacing(path) as stream:
            yield stream
    except OSError as error:
        raise DataError(
            "the data cache cannot be written",
            got=f"{path}: {error}",
            mend="Free some space, or name another cache directory.",
        ) from error
