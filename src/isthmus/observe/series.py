"""What of one island's records is drawn over time, kept as plain columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

import msgspec

from isthmus.observe.events import Event, describe
from isthmus.observe.records import (
    Evaluation,
    LinkRate,
    Meeting,
    PeerChange,
    Published,
    Record,
    RunStarted,
    StepDone,
)
from isthmus.observe.tally import Tally

MAX_POINTS = 2000
_SMOOTHED_SHARE = 1 / 60


class LossPoint(msgspec.Struct, frozen=True):
    """Mean loss over the steps of one record; ``loss_nats`` is ``None`` where a process ended."""

    wall_s: float
    tokens: int
    progress_tokens: int
    loss_nats: float | None


class Span(msgspec.Struct, frozen=True):
    """A stretch of wall clock, in Unix seconds."""

    start_s: float
    end_s: float


class IslandSeries:
    """One island's records, in columns; ``tally`` adds up the same records."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally = Tally(name)
        self.losses: list[LossPoint] = []
        self.windows: list[tuple[float, float, float]] = []
        self.published: list[Published] = []
        self.meetings: list[Meeting] = []
        self.evaluations: list[Evaluation] = []
        self.peer_changes: list[PeerChange] = []
        self.events: list[Event] = []
        self.processes: list[Span] = []

    def add(self, record: Record) -> None:
        """Take in the next record."""
        self.tally.add(record)
        event = describe(record)
        if event is not None:
            self.events.append(event)
        match record:
            case RunStarted():
                self.processes.append(Span(record.wall_s, record.wall_s))
                self.losses.append(LossPoint(record.wall_s, record.tokens, 0, None))
            case StepDone() if record.loss_nats is not None:
                self.losses.append(LossPoint(record.wall_s, record.tokens, record.progress_tokens, record.loss_nats))
            case LinkRate():
                self._add_windows(record)
            case Published():
                self.published.append(record)
            case Meeting():
                self.meetings.append(record)
            case Evaluation() if record.bits_per_byte is not None:
                self.evaluations.append(record)
            case PeerChange():
                self.peer_changes.append(record)
            case _:
                pass
        if self.processes:
            self.processes[-1] = Span(self.processes[-1].start_s, self.tally.last_wall_s)

    def lineage(self) -> list[LossPoint]:
        """The losses by run tokens, without the steps that a restart from an older checkpoint undid."""
        kept: list[LossPoint] = []
        for point in self.losses:
            if point.loss_nats is None:
                continue
            while kept and kept[-1].tokens >= point.tokens:
                kept.pop()
            if kept and kept[-1].progress_tokens >= point.progress_tokens:
                continue
            kept.append(point)
        return kept

    def lost_peers(self) -> list[tuple[str, Span]]:
        """When each peer could not be reached."""
        spans: list[tuple[str, Span]] = []
        down: dict[str, float] = {}
        for change in self.peer_changes:
            if not change.up:
                down.setdefault(change.peer, change.wall_s)
            elif change.peer in down:
                spans.append((change.peer, Span(down.pop(change.peer), change.wall_s)))
        spans += [(peer, Span(start_s, self.tally.last_wall_s)) for peer, start_s in down.items()]
        return spans

    def _add_windows(self, record: LinkRate) -> None:
        offset_s = record.wall_s - record.t_s
        for at_s, sent, received in zip(record.at_s, record.sent_bytes, record.received_bytes, strict=False):
            self.windows.append((at_s + offset_s, sent / record.window_s, received / record.window_s))


def collect(name: str, records: Iterable[Record]) -> IslandSeries:
    """All series of one island."""
    series = IslandSeries(name)
    for record in records:
        series.add(record)
    return series


def thinned(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[list[float], list[float | None]]:
    """At most about ``MAX_POINTS`` points: means of neighbours, gaps (``None``) kept."""
    width = math.ceil(len(xs) / MAX_POINTS)
    if width <= 1:
        return list(xs), list(ys)
    thin_xs: list[float] = []
    thin_ys: list[float | None] = []
    bucket: list[float] = []
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is not None:
            bucket.append(y)
        if bucket and (y is None or len(bucket) == width or index == len(xs) - 1):
            thin_xs.append(xs[index - 1] if y is None else x)
            thin_ys.append(sum(bucket) / len(bucket))
            bucket = []
        if y is None:
            thin_xs.append(x)
            thin_ys.append(None)
    return thin_xs, thin_ys


def smoothed(ys: Sequence[float | None]) -> list[float | None]:
    """Means over about a sixtieth of the points, centred, and narrower towards gaps and ends."""
    reach = int(len(ys) * _SMOOTHED_SHARE / 2)
    result: list[float | None] = []
    for _, group in groupby(ys, key=lambda y: y is None):
        run = list(group)
        values = [y for y in run if y is not None]
        result += _centred_means(values, reach) if values else run
    return result


def _centred_means(values: Sequence[float], reach: int) -> list[float]:
    sums = [0.0, *accumulate(values)]
    means: list[float] = []
    for index in range(len(values)):
        near = min(reach, index, len(values) - 1 - index)
        means.append((sums[index + near + 1] - sums[index - near]) / (2 * near + 1))
    return means


def busiest(
    windows: Sequence[tuple[float, float]], processes: Sequence[Span], window_s: float
) -> tuple[list[float], list[float | None], float]:
    """Rates on an even grid of at most ``MAX_POINTS`` bins over an island's life.

    Args:
        windows: Wall-clock start and rate of each window.
        processes: When the island ran; outside it has no rate, inside its rate is 0 where no window is.
        window_s: The shortest bin.

    Returns:
        Starts of the bins, the rate of the busiest window in each, and the width of a bin in seconds.
    """
    start_s, end_s = processes[0].start_s, processes[-1].end_s
    bin_s = max(window_s, (end_s - start_s) / MAX_POINTS)
    count = max(math.ceil((end_s - start_s) / bin_s), 1)
    rates: list[float | None] = [None] * count
    for process in processes:
        for index in range(int((process.start_s - start_s) / bin_s), count):
            if start_s + index * bin_s > process.end_s:
                break
            rates[index] = 0.0
    for at_s, rate in windows:
        index = min(max(int((at_s - start_s) / bin_s + 1e-6), 0), count - 1)
        rates[index] = max(rates[index] or 0.0, rate)
    return [start_s + index * bin_s for index in range(count)], rates, bin_s
