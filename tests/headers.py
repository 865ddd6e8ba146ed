"""Headers of publications for tests that need no core."""

from __future__ import annotations

from isthmus.terms import Header


def header(fragment: int, codec: str, num_bytes: int, **changes: object) -> Header:
    """From ``b`` to ``a``, with a weight."""
    fields: dict[str, object] = {
        "run": "ab" * 32, "sender": "b", "receiver": "a", "fragment": fragment, "epoch": 0, "version": 0,
        "sender_incarnation": 1, "receiver_incarnation": 1, "publication": 1 << 32 | 1, "step": 5, "tokens": 40,
        "weight_tokens": 40, "run_tokens": 80, "cursor": 5, "reference": b"", "codec": codec, "num_bytes": num_bytes,
    }  # fmt: skip
    return Header(**fields | changes)
