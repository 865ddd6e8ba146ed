"""What every link checks of what its own island asks of it."""

from __future__ import annotations

from collections.abc import Collection

from isthmus.errors import LinkError
from isthmus.terms import Header

MAX_PUBLICATION_BYTES = 8 * 2**30
"""The largest publication a link carries unless told otherwise."""


def check_peer(peer: str, peers: Collection[str]) -> None:
    """Check that ``peer`` is in the roster.

    Raises:
        LinkError: it is not.
    """
    if peer not in peers:
        raise LinkError("no peer of that name", got=repr(peer), wanted=sorted(peers))


def check_publication(header: Header, payload: memoryview, *, run: str, me: str, peer: str, max_bytes: int) -> None:
    """Check that an own publication says of itself what is true.

    Raises:
        LinkError: its header names another run, sender, receiver or size, or it is too large.
    """
    for what, got, wanted in (
        ("run", header.run, run),
        ("sender", header.sender, me),
        ("receiver", header.receiver, peer),
        ("size", header.num_bytes, payload.nbytes),
    ):
        if got != wanted:
            raise LinkError(f"a publication's header names another {what}", got=got, wanted=wanted)
    if not 0 <= header.publication < 2**64:
        raise LinkError("a publication's id is out of range", got=header.publication, wanted="64 bits")
    if payload.nbytes > max_bytes:
        raise LinkError(
            "a publication is too large",
            got=f"{payload.nbytes} bytes",
            wanted=f"<= {max_bytes}",
            mend="Cut the model into more fragments.",
        )
