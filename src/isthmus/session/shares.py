"""Payloads of which every rank of an island keeps the share of its rows, and the link that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import torch

from isthmus.codec import Slice, slices
from isthmus.errors import CodecError
from isthmus.fragments import Entry, Fragment
from isthmus.island import Ranks
from isthmus.parts import Part, Source, fill
from isthmus.rows import share
from isthmus.session.accord import Accord
from isthmus.terms import Header, LinkEvent, LinkSample, Message, PublicationReceived
from isthmus.transport import Link


class Shares:
    """Takes payloads apart and puts them together; all ranks make every call.

    Args:
        fragments: How the model is cut.
        embedding_codec: How embeddings are coded.
        ranks: The island's.
    """

    def __init__(self, fragments: Sequence[Fragment], embedding_codec: str, ranks: Ranks) -> None:
        self._fragments, self._embedding_codec, self._ranks = tuple(fragments), embedding_codec, ranks
        self._parts: dict[tuple[int, str], list[list[slice]]] = {}

    def fits(self, header: Header, payload: memoryview) -> bool:
        """Whether a payload has the length that its header's fragment and codec make."""
        if not 0 <= header.fragment < len(self._fragments):
            return False
        try:
            parts = self._of(header.fragment, header.codec)
        except CodecError:
            return False
        return payload.nbytes == sum(map(_length, parts))

    def gather(self, header: Header, own: memoryview, room: Callable[[int], memoryview]) -> memoryview | None:
        """All ranks' shares as one payload, at the gateway, in memory that ``room`` gives; None at the others."""
        parts = self._of(header.fragment, header.codec)
        shares = self._ranks.gather(own, [_length(part) for part in parts])
        if self._ranks.rank:
            return None
        whole = room(sum(map(_length, parts)))
        for part, said in zip(parts, shares, strict=True):
            at = 0
            for place in part:
                size = place.stop - place.start
                whole[place] = said[at : at + size]
                at += size
        return whole

    def scatter(self, header: Header, whole: memoryview) -> memoryview:
        """This rank's share of a payload that the gateway has."""
        parts = self._of(header.fragment, header.codec)
        shares = []
        if self._ranks.rank == 0:
            shares = [memoryview(b"".join(whole[place] for place in part)) for part in parts]
        return self._ranks.scatter(shares, _length(parts[self._ranks.rank]))

    def to_save(self, fragment: int, codec: str, own: memoryview) -> bytes | dict[str, Part]:
        """A payload as it is saved: its bytes where there is one rank, else this one's part of every entry's."""
        if self._ranks.size == 1:
            return bytes(own)
        writable = memoryview(bytearray(own)) if own.readonly else own  # torch takes no other memory
        return {name: part for name, part, _ in self._entries(fragment, codec, writable)}

    def saved(self, fragment: int, codec: str, stored: bytes | Mapping[str, Source]) -> memoryview:
        """This rank's share of what ``to_save`` gave at any number of ranks."""
        own = memoryview(bytearray(_length(self._of(fragment, codec)[self._ranks.rank])))
        if isinstance(stored, Mapping):
            fill((stored[name], part) for name, part, _ in self._entries(fragment, codec, own))
        else:
            whole = torch.frombuffer(bytearray(stored or b"-"), dtype=torch.uint8)
            fill((whole[place], part) for _, part, place in self._entries(fragment, codec, own))
        return own

    def _entries(self, fragment: int, codec: str, own: memoryview) -> Iterator[tuple[str, Part, slice]]:
        """Of each entry its name, this rank's part of its bytes, and where in a whole payload all of them lie."""
        entries, at = self._fragments[fragment].entries, 0
        for entry, its in zip(entries, slices(entries, codec, self._embedding_codec), strict=False):
            rows = share(entry.rows, entry.row_length, rank=self._ranks.rank, size=self._ranks.size)
            part = its.part(rows.start, rows.stop - rows.start)
            data = (
                torch.frombuffer(own, dtype=torch.uint8, offset=at, count=part.num_bytes) if part.num_bytes else _NONE
            )
            at += part.num_bytes
            place = slice(its.offset, its.offset + its.num_bytes)
            yield entry.name, Part((its.num_bytes,), (part.offset - its.offset,), data), place

    def _of(self, fragment: int, codec: str) -> list[list[slice]]:
        """Where each rank's share lies in a payload."""
        key = fragment, codec
        if key not in self._parts:
            entries, size = self._fragments[fragment].entries, self._ranks.size
            whole = slices(entries, codec, self._embedding_codec)  # none without payload
            self._parts[key] = [list(_places(entries, whole, rank, size)) for rank in range(size)]
        return self._parts[key]


class SharedLink:
    """The gateway's link, as all ranks of an island see it: they hear the same events, each with its share of payloads.

    Args:
        link: The gateway's; None at the other ranks.
        accord: For what all must know alike.
        shares: For the payloads.
    """

    def __init__(self, link: Link | None, accord: Accord, shares: Shares) -> None:
        self._link, self._accord, self._shares = link, accord, shares

    def buffer(self, num_bytes: int) -> memoryview:
        """Memory for a share."""
        return memoryview(bytearray(num_bytes))

    def send(self, peer: str, message: Message) -> None:
        """See ``Link.send``."""
        if self._link is not None:
            self._link.send(peer, message)

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        """See ``Link.publish``; ``payload`` is this rank's share."""
        whole = self._shares.gather(header, payload, self._room)
        if self._link is not None and whole is not None:
            self._link.publish(peer, header, whole, spread_s=spread_s)

    def poll(self) -> list[LinkEvent]:
        """See ``Link.poll``. All ranks call it, and return when all have."""
        events = [] if self._link is None else self._link.poll()
        news = [_told(event, self._shares) for event in events if not isinstance(event, LinkSample)]
        heard = self._accord.exchange(_ENCODER.encode(news) if news else b"")
        if self._link is None:
            return [self._apart(event) for event in _DECODER.decode(heard)] if heard else []
        return [self._apart(event) for event in events]

    def wait(self, timeout_s: float) -> None:
        """See ``Link.wait``; the others wait for the gateway when they poll."""
        if self._link is not None:
            self._link.wait(timeout_s)

    def close(self, *, timeout_s: float) -> None:
        """See ``Link.close``."""
        if self._link is not None:
            self._link.close(timeout_s=timeout_s)

    def _apart(self, event: LinkEvent) -> LinkEvent:
        """A publication with this rank's share of its payload, or with what is refused if the whole does not fit."""
        if not isinstance(event, PublicationReceived):
            return event
        header = event.signed.header
        fits = event.payload.nbytes > 0 if self._link is None else self._shares.fits(header, event.payload)
        share_ = self._shares.scatter(header, event.payload) if fits else _UNFIT
        return msgspec.structs.replace(event, payload=share_)

    def _room(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes)) if self._link is None else self._link.buffer(num_bytes)


def _told(event: LinkEvent, shares: Shares) -> LinkEvent:
    """An event as the gateway tells it; one byte of payload says that it fits."""
    if isinstance(event, PublicationReceived):
        fits = shares.fits(event.signed.header, event.payload)
        return msgspec.structs.replace(event, payload=memoryview(b"\x01" if fits else b""))
    return event


def _places(entries: Sequence[Entry], whole: Sequence[Slice], rank: int, size: int) -> Iterator[slice]:
    """Where a rank's rows of each entry lie in a payload."""
    for entry, its in zip(entries, whole, strict=False):
        rows = share(entry.rows, entry.row_length, rank=rank, size=size)
        if rows.start < rows.stop:
            part = its.part(rows.start, rows.stop - rows.start)
            yield slice(part.offset, part.offset + part.num_bytes)


def _length(places: Sequence[slice]) -> int:
    return sum(place.stop - place.start for place in places)


_UNFIT = memoryview(b"?")
"""In place of a share of a payload that does not fit its header: no share is one byte long, so it is refused."""

_NONE = torch.empty(0, dtype=torch.uint8)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[LinkEvent])
