"""Codes publications: each by the codec asked for, or by the one that the size of what is coded calls for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isthmus import schedule
from isthmus.session.copies import Landed, Landing
from isthmus.session.slow import SlowState
from isthmus.session.trade import NO_PAYLOAD
from isthmus.terms import Header
from isthmus.transport.link import Link


class Coded(NamedTuple):
    """This rank's share of a publication's payload, and what is known of all of it.

    ``rms`` is the root mean square of what was coded, None where nothing was. The payload is there once ``landing`` was
    waited for.
    """

    codec: str
    payload: memoryview
    landing: Landing
    num_bytes: int
    rms: float | None


class Coder:
    """Codes an island's publications into buffers of its link.

    Args:
        slow: What is published.
        link: Where buffers come from.
        codec: The run's codec.
    """

    def __init__(self, slow: SlowState, link: Link, codec: str) -> None:
        self._slow, self._link, self._codec = slow, link, codec
        self._history: dict[tuple[str, int], schedule.RmsHistory] = {}

    def code(self, header: Header) -> Coded:
        """Code a publication; where its header names no codec, the rms of what is coded decides.

        That is known once it is coded by the run's codec, so a surge is coded twice.

        Raises:
            CodecError: A value is not finite.
        """
        peer, fragment = header.receiver, header.fragment
        if header.codec:
            return self._code(peer, fragment, header.codec)
        key = peer, fragment
        history = self._history.get(key, schedule.RmsHistory())
        has_reference = self._slow.has_reference(peer, fragment)

        def choice(rms: float) -> str:
            return schedule.codec_choice(
                self._codec, rms=rms, history=history, has_reference=has_reference, partner_is_newcomer=False
            )

        coded = self._code(peer, fragment, choice(0.0))
        rms = coded.rms or 0.0
        if has_reference:
            self._history[key] = history.then(rms)
        wanted = choice(rms)
        return coded if wanted == coded.codec else self._code(peer, fragment, wanted)

    def forget(self, peer: str, fragment: int) -> None:
        """Forget what was coded against a reference that is no more."""
        self._history.pop((peer, fragment), None)

    def state_dict(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """The rms of the latest publications of every edge and fragment."""
        return {key: history.values for key, history in self._history.items()}

    def load_state_dict(self, state: Mapping[tuple[str, int], tuple[float, ...]]) -> None:
        """Take what ``state_dict`` gave."""
        self._history = {key: schedule.RmsHistory(tuple(values)) for key, values in state.items()}

    def _code(self, peer: str, fragment: int, codec: str) -> Coded:
        slow, side = self._slow, self._slow.side
        payload, whole_bytes = self._link.buffer(slow.share_bytes(fragment, codec)), slow.payload_bytes(fragment, codec)
        if codec == NO_PAYLOAD:
            return Coded(codec, payload, Landed(), whole_bytes, None)
        if side is None:
            return Coded(codec, payload, Landed(), whole_bytes, slow.encode(peer, fragment, codec, payload))
        room = side.room(payload.nbytes)
        rms = slow.encode(peer, fragment, codec, room)
        return Coded(codec, payload, side.down(room, payload), whole_bytes, rms)
