"""Where checkpoints live: a folder of named files, each replaced whole or not at all."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from isthmus.errors import CheckpointError
from isthmus.files import TMP_SUFFIX, Chunk, sync_folder, write_file_atomic

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Storage(Protocol):
    """A flat set of named files with one writer at a time and any number of readers.

    Names are letters, digits, dots, dashes and underscores, starting with a letter or digit; others are
    refused with ``CheckpointError``. What the medium refuses is an ``OSError``.
    """

    def write_atomic(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Replace ``name`` by the joined chunks; durable when this returns.

        On an error, also one raised by ``chunks``, nothing half-written is visible and the old file stays.
        """
        ...

    def open(self, name: str) -> io.BufferedIOBase:
        """The file from its start, to be closed by the caller; ``FileNotFoundError`` if there is none."""
        ...

    def size(self, name: str) -> int:
        """Length in bytes; ``FileNotFoundError`` if there is no such file."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """Names that start with ``prefix``, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file durably; no error if there is none."""
        ...

    def sweep(self) -> None:
        """Remove what writes interrupted by a crash left behind; only for the writer, between its writes."""
        ...


class LocalStorage:
    """A folder on a local disk or a shared POSIX file system; created by the first write.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_atomic(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Write beside the file, sync, rename over it, sync the folder."""
        write_file_atomic(self._path(name), chunks)

    def open(self, name: str) -> io.BufferedIOBase:
        """The file, buffered."""
        return self._path(name).open("rb")

    def size(self, name: str) -> int:
        """Length in bytes."""
        return self._path(name).stat().st_size

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._path(name).is_file()

    def names(self, prefix: str = "") -> list[str]:
        """Names that start with ``prefix``, sorted; a folder that is not there yet is empty."""
        return [name for name in self._all_names() if name.startswith(prefix) and _NAME.fullmatch(name)]

    def delete(self, name: str) -> None:
        """Unlink and sync the folder."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            path.unlink()
            sync_folder(path.parent)

    def sweep(self) -> None:
        """Remove temporary files."""
        for name in self._all_names():
            if name.startswith(".") and name.endswith(TMP_SUFFIX):
                (self.root / name).unlink(missing_ok=True)

    def _all_names(self) -> list[str]:
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def _path(self, name: str) -> Path:
        return self.root / _checked(name)


class MemoryStorage:
    """Files in memory, for a virtual world: a finished write is durable, an unfinished one leaves nothing.

    The object outlives the island that writes to it, as a disk does.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def write_atomic(self, name: str, chunks: Iterable[Chunk]) -> None:
        """Join the chunks, then replace."""
        content = b"".join(chunks)
        self._files[_checked(name)] = content

    def open(self, name: str) -> io.BufferedIOBase:
        """A reader of the content as it is now."""
        return io.BytesIO(self._content(name))

    def size(self, name: str) -> int:
        """Length in bytes."""
        return len(self._content(name))

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return _checked(name) in self._files

    def names(self, prefix: str = "") -> list[str]:
        """Names that start with ``prefix``, sorted."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Forget the file."""
        self._files.pop(_checked(name), None)

    def sweep(self) -> None:
        """Nothing to do: an interrupted write leaves nothing."""

    def state_dict(self) -> dict[str, bytes]:
        """All files, for a snapshot of the virtual world."""
        return dict(self._files)

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """Hold exactly the files that ``state_dict`` gave."""
        self._files = dict(state)

    def _content(self, name: str) -> bytes:
        try:
            return self._files[_checked(name)]
        except KeyError:
            raise FileNotFoundError(f"no file {name} in memory") from None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CheckpointError(
            "not a name for a stored file",
            got=repr(name),
            wanted="letters, digits, dots, dashes, underscores",
        )
    return name
