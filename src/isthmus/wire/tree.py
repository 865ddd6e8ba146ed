"""The hash tree over a publication's chunks.

The tree of RFC 6962 (section 2.1) with SHA-256: leaves and inner nodes are hashed in separate domains, so
that no inner node passes for a chunk. It is built as chunks stream by and keeps O(log n) hashes.
"""

from __future__ import annotations

import hashlib

from isthmus.wire.frames import CHUNK_BYTES

ROOT_BYTES = 32

_LEAF, _INNER, _EMPTY = b"\x00", b"\x01", b"\x02"


def num_chunks(num_bytes: int) -> int:
    """How many chunks a payload of ``num_bytes`` is cut into."""
    return -(-num_bytes // CHUNK_BYTES)


def chunk_bounds(num_bytes: int, index: int) -> tuple[int, int]:
    """Where chunk ``index`` starts and ends in a payload of ``num_bytes``."""
    start = min(index * CHUNK_BYTES, num_bytes)
    return start, min(start + CHUNK_BYTES, num_bytes)


class HashTree:
    """Takes the chunks in order; knows the root at any time."""

    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []
        self.num_leaves = 0

    def add(self, chunk: bytes | memoryview) -> None:
        """Take the next chunk's packed bytes."""
        leaf = hashlib.sha256(_LEAF)
        leaf.update(chunk)
        height, node = 0, leaf.digest()
        while self._peaks and self._peaks[-1][0] == height:
            node = _join(self._peaks.pop()[1], node)
            height += 1
        self._peaks.append((height, node))
        self.num_leaves += 1

    def root(self) -> bytes:
        """The 32-byte root over all chunks taken so far."""
        if not self._peaks:
            return hashlib.sha256(_EMPTY).digest()
        node = self._peaks[-1][1]
        for _, left in reversed(self._peaks[:-1]):
            node = _join(left, node)
        return node


def payload_root(payload: bytes | memoryview) -> bytes:
    """The root of a whole payload's tree."""
    view, tree = memoryview(payload), HashTree()
    for index in range(num_chunks(view.nbytes)):
        start, end = chunk_bounds(view.nbytes, index)
        tree.add(view[start:end])
    return tree.root()


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_INNER + left + right).digest()
