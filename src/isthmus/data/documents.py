"""Documents: what a file holds, read once, each content once, and whose part it is."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO, cast

import msgspec

from isthmus.data.rules import is_text, left_out
from isthmus.data.sources import SourceFile
from isthmus.errors import DataError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_UNREADABLE = (OSError, EOFError, zlib.error, zstd.ZstdError)


@dataclass(frozen=True, slots=True)
class Document:
    """A text with where it comes from; ``digest`` is the SHA-256 of its bytes."""

    project: str
    name: str
    text: bytes
    digest: bytes


class _JsonLine(msgspec.Struct):
    text: str


_JSON_LINES = msgspec.json.Decoder(_JsonLine)


def document(project: str, name: str, text: bytes) -> Document:
    """A document with its digest."""
    return Document(project, name, text, hashlib.sha256(text).digest())


def read_project(files: Iterable[SourceFile]) -> Iterator[Document]:
    """The documents of installed source files, less those that the rules of ``rules.py`` leave out."""
    for file in files:
        text = read_whole(file)
        if left_out(text) is None:
            yield document(file.project, file.name, text)


def read_whole(file: SourceFile) -> bytes:
    """The bytes of a file as they are.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return file.path.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error


def read_files(files: Iterable[SourceFile]) -> Iterator[Document]:
    """The documents of a user's own files: one a file, or one a line of .jsonl (its field "text").

    Nothing but empty text is left out.

    Raises:
        DataError: A file cannot be read, is not UTF-8 or holds a NUL, or a line is not JSON with a "text".
    """
    for file in files:
        for name, text in _texts(file):
            if not is_text(text):
                raise DataError("a file is not text", got=name, wanted="UTF-8 without NUL bytes")
            if text.strip():
                yield document(file.project, name, text)


def distinct(documents: Iterable[Document], excluded: frozenset[bytes] = frozenset()) -> Iterator[Document]:
    """Each content once, its first occurrence; those with a digest in ``excluded`` never."""
    seen = set(excluded)
    for item in documents:
        if item.digest not in seen:
            seen.add(item.digest)
            yield item


def owner(digest: bytes, shares: Sequence[float]) -> int:
    """The slot that content with this digest belongs to: each slot gets its share of all digests.

    Depends on the content and the shares alone, so that every island finds the same without asking.
    """
    ends = list(accumulate(shares))
    return bisect_right(ends, int.from_bytes(digest[:6], "big") / 2**48 * ends[-1])


def _texts(file: SourceFile) -> Iterator[tuple[str, bytes]]:
    try:
        with _open(file) as stream:
            if ".jsonl" not in file.path.suffixes[-2:]:
                yield file.name, stream.read()
                return
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{file.name}:{number}", _json_text(file, number, line)
    except _UNREADABLE as error:
        raise _unreadable(file, error) from error


def _open(file: SourceFile) -> BinaryIO:
    if file.path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(file.path, "rb"))
    if file.path.suffix == ".zst":
        return cast(BinaryIO, zstd.open(file.path, "rb"))
    return file.path.open("rb")


def _json_text(file: SourceFile, number: int, line: bytes) -> bytes:
    try:
        return _JSON_LINES.decode(line).text.encode()
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DataError(
            "a line is not a document", got=f"{file.path}:{number}: {error}", wanted='{"text": "..."}'
        ) from error


def _unreadable(file: SourceFile, error: Exception) -> DataError:
    return DataError("a file cannot be read", got=f"{file.path}: {error}")
