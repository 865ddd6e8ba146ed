"""How the rows of a parameter are divided: into leaves that are hashed, and among the ranks of an island.

A leaf is a few rows, 8 KiB at most where a row is not longer than that. Every rank has as many leaves of a parameter,
in the order of ranks, as ``torch.chunk`` would give it: the last one that has any may have fewer, and ranks after it
have none. A vector or a scalar is one row, and so rank 0's. Both rules depend on shapes alone; that of leaves not even
on the number of ranks, so islands of any size compute the same hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from torch import Tensor

LEAF_BYTES = 8192
"""Most bytes of a leaf of several rows."""

DIGEST_BYTES = 32
"""Of SHA-256."""


def leaf_rows(row_length: int) -> int:
    """Rows of a leaf: a power of two."""
    return 1 << max(0, (LEAF_BYTES // (4 * row_length)).bit_length() - 1)


def num_leaves(rows: int, row_length: int) -> int:
    """Leaves of so many rows."""
    return -(-rows // leaf_rows(row_length))


def share(rows: int, row_length: int, *, rank: int, size: int) -> slice:
    """Which rows of a parameter are those of a rank among ``size``."""
    most = -(-num_leaves(rows, row_length) // size) * leaf_rows(row_length)
    return slice(min(rows, rank * most), min(rows, (rank + 1) * most))


def leaf_digests(matrix: Tensor) -> bytes:
    """The SHA-256 of every leaf of an fp32 matrix [rows, row_length], end to end."""
    data = np.ascontiguousarray(matrix.cpu().numpy()).reshape(-1).view(np.uint8)
    step = leaf_rows(matrix.shape[1]) * matrix.shape[1] * 4
    return b"".join(hashlib.sha256(data[first : first + step].data).digest() for first in range(0, len(data), step))


def in_order(shapes: Sequence[tuple[int, int]], by_rank: Sequence[bytes]) -> bytes:
    """All leaves' digests in the order of parameters, of those that each rank has of all parameters.

    Args:
        shapes: Rows and row length of each parameter.
        by_rank: Of every rank the digests of its leaves, in the order of parameters.
    """
    places = [0] * len(by_rank)
    parts = []
    for rows, row_length in shapes:
        for rank, digests in enumerate(by_rank):
            own = share(rows, row_length, rank=rank, size=len(by_rank))
            num_bytes = DIGEST_BYTES * num_leaves(own.stop - own.start, row_length)
            parts.append(digests[places[rank] : places[rank] + num_bytes])
            places[rank] += num_bytes
    return b"".join(parts)
