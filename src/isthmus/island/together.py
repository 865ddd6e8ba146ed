"""Work of all ranks that all refuse if one of them must, so that none waits for another in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from isthmus import errors
from isthmus.errors import IsthmusError
from isthmus.island.ranks import Ranks

T = TypeVar("T")


def together(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do this rank's part; all ranks call it.

    Raises:
        IsthmusError: That of the lowest rank that has one, the same at all.
    """
    if ranks.size == 1:
        return work()
    refused: IsthmusError | None = None
    try:
        done = work()
    except IsthmusError as error:
        refused = error
    told = [each for each in ranks.collect(_encode(refused)) if each]
    if told:
        raise _decode(told[0]) from refused
    return done


def at_gateway(ranks: Ranks, work: Callable[[], T]) -> T | None:
    """Do something at the gateway alone; what it cannot do, is an error at every rank."""
    return together(ranks, work if ranks.rank == 0 else lambda: None)


def _encode(error: IsthmusError | None) -> bytes:
    if error is None:
        return b""
    got, wanted = (None if each is None else str(each) for each in (error.got, error.wanted))
    return msgspec.msgpack.encode((type(error).__name__, error.what, got, wanted, error.mend))


def _decode(told: bytes) -> IsthmusError:
    name, what, got, wanted, mend = msgspec.msgpack.decode(told, type=tuple[str, str, str | None, str | None, str])
    kind = getattr(errors, name, IsthmusError)
    error: IsthmusError = kind(what, got=got, wanted=wanted, mend=mend)
    return error
