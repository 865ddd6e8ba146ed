"""An island's incarnation number, raised at every start: it tells two processes with one identity apart."""

from __future__ import annotations

import zlib

import msgspec

from isthmus.checkpoint.storage import Storage
from isthmus.errors import CheckpointError

FILE_NAME = "incarnation.json"
"""The file's name in an island's storage."""

MAX_INCARNATION = 2**31 - 1
"""Publication ids hold the incarnation in 31 bits."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last incarnation taken, and the CRC-32 of its decimal digits."""

    incarnation: int
    crc32: int


def raise_incarnation(storage: Storage, *, at_least: int = 0) -> int:
    """One more than every incarnation taken before, from 1; durable when this returns.

    Args:
        storage: The island's storage.
        at_least: The highest incarnation known from elsewhere, such as a checkpoint's.

    Raises:
        CheckpointError: The file is damaged, or cannot be read or written. It is left as it is.
    """
    try:
        incarnation = max(_last(storage), at_least) + 1
        if incarnation > MAX_INCARNATION:
            raise _damaged(f"incarnation {incarnation}")
        storage.write_atomic(FILE_NAME, [msgspec.json.encode(_Record(incarnation, _crc32(incarnation)))])
    except OSError as error:
        raise CheckpointError(
            "the incarnation number could not be raised", got=error, mend="Free space or repair the disk."
        ) from error
    return incarnation


def _last(storage: Storage) -> int:
    if not storage.exists(FILE_NAME):
        return 0
    with storage.open(FILE_NAME) as file:
        raw = file.read()
    try:
        record = msgspec.json.decode(raw, type=_Record)
    except msgspec.DecodeError as error:
        raise _damaged(error) from None
    if record.incarnation < 0 or record.crc32 != _crc32(record.incarnation):
        raise _damaged(record)
    return record.incarnation


def _crc32(incarnation: int) -> int:
    return zlib.crc32(str(incarnation).encode())


def _damaged(got: object) -> CheckpointError:
    return CheckpointError(
        f"{FILE_NAME} is damaged",
        got=got,
        wanted='{"incarnation": n, "crc32": c}',
        mend="Find the island's last incarnation in its partners' records, and write that file with n at "
        "least as high and c the CRC-32 of its digits. A lower number would be refused by every partner.",
    )
