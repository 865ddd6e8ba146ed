"""A relay for every pair of islands on one machine, so that each pair can be cut off on its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TypeVar

from isthmus.transport.relay import Shaper, ShaperOptions

T = TypeVar("T")

Way = tuple[str, str]
"""Who dials whom."""

_CLOSE_S = 5.0


class Relays:
    """Relays in a thread of their own; each listens on loopback and forwards until it is cut.

    Args:
        targets: Where each way leads, ``host:port``.

    Raises:
        LinkError: There is no port to listen on.
    """

    def __init__(self, targets: Mapping[Way, str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()
        self._shapers: dict[Way, Shaper] = {}
        self.addresses: dict[Way, str] = {}
        try:
            for way, target in targets.items():
                self._shapers[way] = shaper = Shaper(ShaperOptions("127.0.0.1:0", target))
                self.addresses[way] = self._run(shaper.start("127.0.0.1:0"))
        except BaseException:
            self.close()
            raise

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two islands, without a word to either."""
        for shaper in self._between(one, other):
            self._loop.call_soon_threadsafe(shaper.cut)

    def heal(self, one: str, other: str) -> None:
        """End a cut."""
        for shaper in self._between(one, other):
            self._loop.call_soon_threadsafe(shaper.heal)

    def close(self) -> None:
        """Break all connections and end."""
        for shaper in self._shapers.values():
            self._run(shaper.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        self._loop.close()

    def __enter__(self) -> Relays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _between(self, one: str, other: str) -> list[Shaper]:
        return [shaper for way, shaper in self._shapers.items() if set(way) == {one, other}]

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CLOSE_S)
