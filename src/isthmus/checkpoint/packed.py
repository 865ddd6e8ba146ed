"""A nested state as bytes."""

from __future__ import annotations

import io
from typing import Any

from isthmus.checkpoint.checkpoint import whole_leaves
from isthmus.checkpoint.safetensors_file import decode, encode
from isthmus.checkpoint.structure import flatten, unflatten


def pack(state: Any) -> bytes:
    """A state, such as ``save`` takes or any value in one, as the bytes of a safetensors file.

    Raises:
        CheckpointError: It holds something that cannot be stored.
    """
    structure, leaves = flatten(state)
    return b"".join(encode(whole_leaves(leaves), {"structure": structure}))


def unpack(packed: bytes) -> Any:
    """What ``pack`` packed.

    Raises:
        CheckpointError: The bytes are damaged.
    """
    leaves, metadata = decode(io.BytesIO(packed), len(packed))
    return unflatten(metadata.get("structure", ""), leaves)
