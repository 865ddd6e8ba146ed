"""Payloads that an edge state still refers to: own ones for resending and arriving, partners' for arriving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.session.memory import Memory
from isthmus.session.shares import Shares
from isthmus.terms import Header

Key = tuple[str, int]
"""(sender, publication id)."""


class Payloads:
    """Payloads by sender and publication id; what no edge refers to any more is dropped by ``sweep``.

    Args:
        shares: Says where the parts of a rank lie; None for an island that can have but one.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self._shares = shares
        self._kept: dict[Key, tuple[int, str, memoryview]] = {}

    def put(self, header: Header, payload: memoryview) -> None:
        """Keep a payload."""
        self._kept[header.sender, header.publication] = header.fragment, header.codec, payload

    def get(self, header: Header) -> memoryview:
        """The payload of a publication that an edge refers to."""
        return self._kept[header.sender, header.publication][2]

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
        self._kept = {key: kept for key, kept in self._kept.items() if key in used}

    def state_dict(self) -> dict[Key, Any]:
        """All payloads with their fragments and codecs, see ``Shares.to_save``."""
        shares = self._shares
        return {
            key: (fragment, codec, bytes(payload) if shares is None else shares.to_save(fragment, codec, payload))
            for key, (fragment, codec, payload) in self._kept.items()
        }

    def load_state_dict(self, state: Mapping[Key, Any]) -> None:
        """Take what ``state_dict`` gave, at any number of ranks."""
        shares = self._shares
        self._kept = {
            key: (fragment, codec, memoryview(stored) if shares is None else shares.saved(fragment, codec, stored))
            for key, (fragment, codec, stored) in state.items()
        }
