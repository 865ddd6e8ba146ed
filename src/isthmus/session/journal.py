"""Turns what an engine does and hears into records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.clock import Clock
from isthmus.observe import records
from isthmus.session.frozen import JournalState
from isthmus.session.keeping import Kept
from isthmus.session.memory import Memory
from isthmus.session.orders import Arrive, Mode
from isthmus.terms import (
    Goodbye,
    Header,
    LinkEvent,
    LinkSample,
    MessageReceived,
    PeerDown,
    PeerUp,
    PublicationReceived,
    PublicationSent,
)

Sink = Callable[[records.Record], None]


class Journal:
    """Stamps records of one island and hands them to a sink.

    Args:
        name: The island.
        clock: For the stamps.
        memory: For step and tokens.
        sink: Where records go.
        num_elements: Elements of every fragment.
    """

    def __init__(self, name: str, clock: Clock, memory: Memory, sink: Sink, num_elements: tuple[int, ...]) -> None:
        self._name, self._clock, self._memory, self._sink = name, clock, memory, sink
        self._num_elements = num_elements
        self._started_s = clock.now_s()
        self._departed_s: dict[int, float] = {}
        self._goodbyes: dict[str, str] = {}

    def stamp(self) -> records.Stamp:
        """The fields that every record shares."""
        return {
            "t_s": self._clock.now_s() - self._started_s,
            "wall_s": self._clock.wall_s(),
            "island": self._name,
            "step": self._memory.step,
            "tokens": self._memory.tokens,
        }

    def write(self, record: records.Record) -> None:
        """Hand a record to the sink."""
        self._sink(record)

    def saved(self, kept: Kept) -> None:
        """A save has ended."""
        if kept.error is not None:
            failed = "no checkpoint was written" if kept.info is None else "old checkpoints were not removed"
            what = f"{failed}: {kept.error}"
            self.write(records.Alarm(**self.stamp(), what=what, peer=None, severity="error"))
        if kept.info is not None:
            info = kept.info
            times = {"seconds": kept.seconds, "blocked_s": kept.blocked_s}
            stamp = self.stamp()
            stamp["step"] = info.step  # training may be further by now
            self.write(records.Checkpoint(**stamp, name=info.name, num_bytes=info.num_bytes, **times))

    def departed(
        self, fragment: int, outer: tuple[float, float], rms: float | None, header: Header | None, *, answer: bool
    ) -> None:
        """A fragment departed, with or without a publication."""
        self._departed_s[fragment] = self._clock.now_s()
        self.write(
            records.Departure(
                **self.stamp(),
                fragment=fragment,
                round=self._memory.rounds[fragment] - 1,
                outer_lr=outer[0],
                momentum=outer[1],
                rms=rms,
                published=header is not None,
                peer=header.receiver if header else None,
                answer=answer,
                publication=header.publication if header else 0,
                reason="" if header else "no partner in reach, or one's own publication still waits for its answer",
            )
        )

    def met(self, order: Arrive, weights: tuple[float, ...], reference: bytes, *, on_time_steps: int) -> None:
        """A meeting was applied; ``weights`` are in order of slots."""
        others = weights[: order.place] + weights[order.place + 1 :]
        arrived_step = self._memory.step
        departed_s = self._departed_s.get(order.fragment, self._clock.now_s())
        for peer, theirs, other in zip(order.peers, order.theirs, others, strict=True):
            self.write(
                records.Meeting(
                    **self.stamp(),
                    fragment=order.fragment,
                    peer=peer,
                    epoch=order.mine.epoch,
                    version=order.mine.version,
                    publication=order.mine.publication,
                    peer_publication=theirs.publication,
                    weight=weights[order.place],
                    peer_weight=other,
                    departed_step=order.mine.step,
                    arrived_step=arrived_step,
                    age_s=self._clock.now_s() - departed_s,
                    late=arrived_step - order.mine.step > on_time_steps,
                    reference=reference.hex()[:16],
                    adopted=order.mode is Mode.ADOPT,
                    final=order.mode in (Mode.ASSIGN, Mode.MERGE),
                )
            )

    def heard(self, events: list[LinkEvent]) -> None:
        """What the link reported."""
        samples = [event for event in events if isinstance(event, LinkSample)]
        if samples:
            self._link_rate(samples)
        for event in events:
            match event:
                case PeerUp(peer, incarnation, rtt_s):
                    self.write(
                        records.PeerChange(**self.stamp(), peer=peer, up=True, incarnation=incarnation, rtt_s=rtt_s)
                    )
                case MessageReceived(peer, Goodbye(why)):
                    self._goodbyes[peer] = why
                case PeerDown(peer, reason):
                    self._lost(peer, reason)
                case PublicationSent():
                    self._sent(event)
                case PublicationReceived():
                    self._received(event)
                case _:
                    pass

    def _lost(self, peer: str, reason: str) -> None:
        why, ended = self._goodbyes.pop(peer, None), self._memory.has_ended(peer)
        left, reason = why is not None, why or reason
        self.write(records.PeerChange(**self.stamp(), peer=peer, up=False, reason=reason, left=left, ended=ended))

    def freeze(self) -> JournalState:
        """When the island started, and each fragment departed last."""
        return JournalState(started_s=self._started_s, departed_s=sorted(self._departed_s.items()))

    def thaw(self, state: JournalState) -> None:
        """Go on from what ``freeze`` gave."""
        self._started_s, self._departed_s = state.started_s, dict(state.departed_s)

    def _link_rate(self, samples: list[LinkSample]) -> None:
        self.write(
            records.LinkRate(
                **self.stamp(),
                window_s=samples[0].window_s,
                at_s=tuple(sample.at_s - self._started_s for sample in samples),
                sent_bytes=tuple(sample.sent_bytes for sample in samples),
                received_bytes=tuple(sample.received_bytes for sample in samples),
            )
        )

    def _sent(self, event: PublicationSent) -> None:
        header = event.signed.header
        self.write(
            records.Published(
                **self.stamp(),
                **_described(header),
                peer=event.peer,
                num_parameters=self._num_elements[header.fragment],
                wire_bytes=event.wire_bytes,
                seconds=event.seconds,
            )
        )

    def _received(self, event: PublicationReceived) -> None:
        described = _described(event.signed.header)
        self.write(records.Received(**self.stamp(), **described, peer=event.peer, wire_bytes=event.wire_bytes))


def _described(header: Header) -> dict[str, Any]:
    """What the record of a publication, sent or received, says of it."""
    return {
        "fragment": header.fragment,
        "publication": header.publication,
        "epoch": header.epoch,
        "version": header.version,
        "codec": header.codec,
        "payload_bytes": header.num_bytes,
        "final": header.final,
    }
