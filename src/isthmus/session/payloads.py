"""Payloads that an edge state still refers to: own ones for resending and arriving, partners' for arriving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus.session.copies import Coming, Landed, Landing, SideStream
from isthmus.session.memory import Memory
from isthmus.session.shares import Shares
from isthmus.terms import Header

Key = tuple[str, int]
"""(sender, publication id)."""


@dataclass
class _Kept:
    fragment: int
    codec: str
    payload: memoryview
    landing: Landing
    coming: Coming | None = None

    def there(self) -> memoryview:
        """The bytes, waited for."""
        self.landing.finish()
        return self.payload


_LANDED = Landed()


class Payloads:
    """Payloads by sender and publication id; what no edge refers to any more is dropped by ``sweep``.

    Args:
        shares: Says where the parts of a rank lie; None for an island that can have but one.
        side: Copies them to where slow state lies; None where that is the host.
    """

    def __init__(self, shares: Shares | None = None, side: SideStream | None = None) -> None:
        self._shares, self._side = shares, side
        self._kept: dict[Key, _Kept] = {}

    def put(self, header: Header, payload: memoryview, landing: Landing = _LANDED) -> None:
        """Keep a payload, which is there once ``landing`` was waited for."""
        self._kept[_key(header)] = _Kept(header.fragment, header.codec, payload, landing)

    def get(self, header: Header) -> memoryview:
        """The payload of a publication that an edge refers to."""
        return self._kept[_key(header)].there()

    def has(self, header: Header) -> bool:
        """Whether the payload is kept still."""
        return _key(header) in self._kept

    def bring(self, header: Header) -> None:
        """Begin to copy a payload to where slow state lies; ``near`` will want it soon."""
        if self._side is not None:
            kept = self._kept[_key(header)]
            kept.coming = self._side.up(kept.there())

    def near(self, header: Header) -> memoryview | Tensor:
        """The payload of a publication where slow state lies; not kept there any longer."""
        kept = self._kept[_key(header)]
        if self._side is None:
            return kept.there()
        coming, kept.coming = kept.coming or self._side.up(kept.there()), None
        return coming.take()

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
            key: (kept.fragment, kept.codec, _to_save(shares, kept.fragment, kept.codec, kept.there()))
            for key, kept in self._kept.items()
        }

    def load_state_dict(self, state: Mapping[Key, Any]) -> None:
        """Take what ``state_dict`` gave, at any number of ranks."""
        shares = self._shares
        self._kept = {
            key: _Kept(fragment, codec, _saved(shares, fragment, codec, stored), _LANDED)
            for key, (fragment, codec, stored) in state.items()
        }


def _key(header: Header) -> Key:
    return header.sender, header.publication


def _to_save(shares: Shares | None, fragment: int, codec: str, payload: memoryview) -> Any:
    return bytes(payload) if shares is None else shares.to_save(fragment, codec, payload)


def _saved(shares: Shares | None, fragment: int, codec: str, stored: Any) -> memoryview:
    return memoryview(stored) if shares is None else shares.saved(fragment, codec, stored)
