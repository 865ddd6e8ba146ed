"""Payloads that an edge state still refers to: own ones for resending and arriving, partners' for arriving."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.session.memory import Memory
from isthmus.terms import Header

Key = tuple[str, int]
"""(sender, publication id)."""


class Payloads:
    """Payloads by sender and publication id; what no edge refers to any more is dropped by ``sweep``."""

    def __init__(self) -> None:
        self._kept: dict[Key, memoryview] = {}

    def put(self, header: Header, payload: memoryview) -> None:
        """Keep a payload."""
        self._kept[header.sender, header.publication] = payload

    def get(self, header: Header) -> memoryview:
        """The payload of a publication that an edge refers to."""
        return self._kept[header.sender, header.publication]

    def sweep(self, name: str, memory: Memory) -> None:
        """Drop what no edge of island ``name`` refers to."""
        used: set[Key] = set()
        for peer, _, edge in memory.all_edges():
            if edge.mine is not None:
                used.add((name, edge.mine.publication))
            if edge.last is not None:
                used.add((name, edge.last[0].publication))
            if edge.theirs is not None:
                used.add((peer, edge.theirs.publication))
        self._kept = {key: payload for key, payload in self._kept.items() if key in used}

    def state_dict(self) -> dict[Key, bytes]:
        """All payloads as bytes."""
        return {key: bytes(payload) for key, payload in self._kept.items()}

    def load_state_dict(self, state: Mapping[Key, bytes]) -> None:
        """Take what ``state_dict`` gave."""
        self._kept = {key: memoryview(payload) for key, payload in state.items()}
