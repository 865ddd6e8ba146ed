"""An island's incarnation number, raised at every start: it tells two processes with one identity apart.

It is the time of the start in seconds, and above all that the disk remembers: so an island whose disk was lost is not
taken for an old process, and one started from a copy of its directory is told from the one it was copied from. That
clocks may be wrong does no harm but to an island that has lost its disk, whose clock is behind that of its last start.
"""

from __future__ import annotations

import zlib

import msgspec

from isthmus.checkpoint.storage import Storage
from isthmus.errors import CheckpointError

FILE_NAME = "incarnation.json"
"""The file's name in an island's storage."""

MAX_INCARNATION = 2**31 - 1
"""Publication ids hold the incarnation in 31 bits."""

_EPOCH_S = 1_577_836_800
"""2020-01-01, from when the seconds are counted: until 2087 they fit."""

_KEPT_FOR_STARTS = 2**20
"""However wrong a clock is, so many starts may follow."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last incarnation taken, and the CRC-32 of its decimal digits."""

    incarnation: int
    crc32: int


def raise_incarnation(storage: Storage, *, at_least: int = 0) -> int:
    """One more than every incarnation taken before; durable when this returns.

    Args:
        storage: The island's storage.
        at_least: All are above it, see ``incarnation_at``.

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


def incarnation_at(wall_s: float) -> int:
    """The number of a start at a time, in seconds since the Unix epoch, of which the disk remembers none."""
    return max(0, min(round(wall_s) - _EPOCH_S, MAX_INCARNATION - _KEPT_FOR_STARTS))


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
        mend="If this machine's clock is right, remove the file: the next start is numbered by the time. If it is "
        "behind, wait or set it first; a lower number than the last would be refused by every partner.",
    )
