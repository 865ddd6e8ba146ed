"""An island's records as they grow: where it stands, and how it fares right now."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from isthmus.observe.journal import RecordTail
from isthmus.observe.records import LinkRate, Record, RunStarted
from isthmus.observe.tally import Tally

_LINK_SPAN_S = 3.0
_SILENT_S = 10.0
_GAPS_PER_SILENCE = 4


class Follower:
    """One island of a run that is going on.

    ``baseline`` marks the standard run's. ``tally`` is what its records add up to so far.
    """

    def __init__(self, name: str, path: Path, *, baseline: bool = False) -> None:
        self.name = name
        self.baseline = baseline
        self.tally = Tally(name)
        self._tail = RecordTail(path)
        self._windows: deque[tuple[float, float, int]] = deque()
        self._gaps_s: deque[float] = deque(maxlen=32)

    def new(self) -> Iterator[Record]:
        """The new records, each added to the tally before it is yielded."""
        for record in self._tail.new():
            if isinstance(record, RunStarted):
                self._gaps_s.clear()
            elif self.tally.last_wall_s:
                self._gaps_s.append(record.wall_s - self.tally.last_wall_s)
            self.tally.add(record)
            if isinstance(record, LinkRate):
                self._keep_windows(record)
            yield record

    def silent_s(self, now_s: float) -> float | None:
        """Seconds since its last word, where that is beyond its habit; ``None`` if all is well."""
        if not self.tally.alive:
            return None
        silent_s = now_s - self.tally.last_wall_s
        habit_s = _GAPS_PER_SILENCE * max(self._gaps_s, default=0.0)
        return silent_s if silent_s > max(_SILENT_S, habit_s) else None

    def sent_bytes_per_s(self, now_s: float) -> float:
        """Bytes sent per second over the newest three seconds of windows; 0 once those are old."""
        if not self._windows or now_s - self._windows[-1][1] > _SILENT_S:
            return 0.0
        from_s = self._windows[-1][1] - _LINK_SPAN_S
        return sum(sent for start_s, _, sent in self._windows if start_s >= from_s) / _LINK_SPAN_S

    def _keep_windows(self, record: LinkRate) -> None:
        offset_s = record.wall_s - record.t_s
        for at_s, sent in zip(record.at_s, record.sent_bytes, strict=False):
            self._windows.append((at_s + offset_s, at_s + offset_s + record.window_s, sent))
        while self._windows and self._windows[0][0] < self._windows[-1][1] - 2 * _LINK_SPAN_S:
            self._windows.popleft()
