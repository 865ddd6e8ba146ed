"""One island's records, added up: the state behind the summary, the live view and the report."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from isthmus.observe.records import (
    Alarm,
    Checkpoint,
    Departure,
    Evaluation,
    Finished,
    Joined,
    LinkRate,
    Meeting,
    PeerChange,
    PhaseChange,
    Published,
    Record,
    RunStarted,
    StepDone,
    Waiting,
)
from isthmus.terms import Phase

State = Literal[
    "not started",
    "joining",
    "waiting",
    "training",
    "finishing",
    "done",
    "provisional",
    "interrupted",
    "failed",
]

_RECENT_STEPS = 64
_SMOOTHING = 0.08


class Traffic:
    """Bytes over the link, from the windows of ``LinkRate`` records.

    ``open_s`` adds up, process by process, the time from the first window to the end of the last.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.peak_sent_bytes_per_s = 0.0
        self.peak_received_bytes_per_s = 0.0
        self.window_s = 0.0
        self._closed_s = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def open_s(self) -> float:
        """Seconds between the first and last window, summed over processes."""
        return self._closed_s + (0.0 if self._first_s is None else self._last_s - self._first_s)

    def restart(self) -> None:
        """A new process, with a new ``t_s``."""
        self._closed_s, self._first_s = self.open_s, None

    def add(self, record: LinkRate) -> None:
        """Count a batch of windows."""
        self.window_s = max(self.window_s, record.window_s)
        for at_s, sent, received in zip(record.at_s, record.sent_bytes, record.received_bytes, strict=False):
            self.sent_bytes += sent
            self.received_bytes += received
            self.peak_sent_bytes_per_s = max(self.peak_sent_bytes_per_s, sent / record.window_s)
            self.peak_received_bytes_per_s = max(self.peak_received_bytes_per_s, received / record.window_s)
            if self._first_s is None:
                self._first_s = self._last_s = at_s
            self._last_s = max(self._last_s, at_s + record.window_s)


class Meetings:
    """Which publications of an island met, and which still wait.

    A restart from an older checkpoint may repeat a meeting; it counts once.
    """

    def __init__(self) -> None:
        self.met: dict[tuple[str, int, int], bool] = {}
        self._met_publications: set[int] = set()
        self._open: dict[tuple[str, int], int] = {}

    @property
    def completed(self) -> int:
        """Meetings completed at this end."""
        return len(self.met)

    @property
    def late(self) -> int:
        """Those of them that arrived late (``Meeting.late``)."""
        return sum(self.met.values())

    @property
    def open(self) -> int:
        """The newest publication of each edge and fragment, where it has not met its answer."""
        return len(self._open)

    def published(self, peer: str, fragment: int, publication: int) -> None:
        """A publication left for ``peer``."""
        if publication not in self._met_publications:
            self._open[peer, fragment] = publication

    def add(self, record: Meeting) -> None:
        """A meeting was completed."""
        self.met[record.peer, record.publication, record.peer_publication] = record.late
        self._met_publications.add(record.publication)
        if self._open.get((record.peer, record.fragment)) == record.publication:
            del self._open[record.peer, record.fragment]


class Tally:
    """Everything that can be said about an island after its records so far; ``add`` them in order.

    ``step`` and ``tokens`` are the newest, which after a restart from a checkpoint may be less than before
    it; seconds and bytes are what was really spent, in all processes. ``loss_nats`` is smoothed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.started: RunStarted | None = None
        self.processes = 0
        self.state: State = "not started"
        self.step = 0
        self.tokens = 0
        self.progress_tokens = 0
        self.loss_nats: float | None = None
        self.trained_tokens = 0
        self.lost_tokens = 0
        self.step_s = 0.0
        self.sync_s = 0.0
        self.blocked_s = 0.0
        self.first_wall_s = math.inf
        self.last_wall_s = 0.0
        self.alarms = 0
        self.traffic = Traffic()
        self.meetings = Meetings()
        self.publication_bytes = 0
        self.published_parameters = 0
        self.final_bytes = 0
        self.peers: dict[str, PeerChange] = {}
        self.evaluations: dict[str, Evaluation] = {}
        self.waiting: Waiting | None = None
        self.finished: Finished | None = None
        self.recent_steps: deque[StepDone] = deque(maxlen=_RECENT_STEPS)
        self._rounds: dict[int, int] = {}

    @property
    def slot(self) -> int:
        """The island's slot; -1 before its first record."""
        return self.started.slot if self.started else -1

    @property
    def alive(self) -> bool:
        """Whether its process has started and not said that it ended; it may have been killed."""
        return self.state in ("joining", "waiting", "training", "finishing")

    @property
    def rounds(self) -> int:
        """Rounds in which all fragments have departed."""
        expected = self.started.num_fragments if self.started else 1
        return min(self._rounds.values()) + 1 if len(self._rounds) >= max(expected, 1) else 0

    @property
    def tokens_per_s(self) -> float:
        """Over the newest steps, while stepping."""
        seconds = sum(step.step_s for step in self.recent_steps)
        return sum(step.step_tokens for step in self.recent_steps) / seconds if seconds > 0 else 0.0

    def add(self, record: Record) -> None:
        """Take in the next record."""
        if self.processes == 0:
            self.first_wall_s = min(self.first_wall_s, record.wall_s)
        self.last_wall_s = max(self.last_wall_s, record.wall_s)
        if isinstance(record, StepDone | Joined | Departure | Meeting | Checkpoint | Evaluation):
            self.step, self.tokens = record.step, record.tokens
        match record:
            case RunStarted():
                self._add_start(record)
            case StepDone():
                self._add_step(record)
            case PhaseChange() | Waiting() | Joined() | Finished():
                self._add_state(record)
            case LinkRate():
                self.traffic.add(record)
            case Departure() | Published() | Meeting():
                self._add_exchange(record)
            case PeerChange():
                self.peers[record.peer] = record
            case Evaluation() if record.bits_per_byte is not None:
                self.evaluations[record.set_name] = record
            case _:
                self.alarms += isinstance(record, Alarm)

    def _add_start(self, record: RunStarted) -> None:
        self.started = record
        self.processes += 1
        self.state = "joining"
        self.finished = self.waiting = None
        self.peers.clear()
        self.recent_steps.clear()
        self.traffic.restart()

    def _add_step(self, record: StepDone) -> None:
        self.recent_steps.append(record)
        self.progress_tokens = record.progress_tokens
        self.trained_tokens += record.step_tokens
        self.step_s += record.step_s
        self.sync_s += record.sync_s
        self.blocked_s += record.blocked_s
        if record.loss_nats is not None:
            keep = (1 - _SMOOTHING) ** record.num_steps
            old = record.loss_nats if self.loss_nats is None else self.loss_nats
            self.loss_nats = keep * old + (1 - keep) * record.loss_nats
        if self.state in ("joining", "waiting"):
            self.state = "training"

    def _add_state(self, record: PhaseChange | Waiting | Joined | Finished) -> None:
        match record:
            case PhaseChange():
                self.state = _STATES[record.phase]
            case Waiting():
                self.state, self.waiting = "waiting", record
            case Joined():
                self.state = "training"
                self.lost_tokens += record.lost_tokens
            case Finished():
                self.finished = record
                self.state = "provisional" if record.provisional else record.reason

    def _add_exchange(self, record: Departure | Published | Meeting) -> None:
        match record:
            case Departure():
                self._rounds[record.fragment] = record.round
                if record.published and record.peer is not None:
                    self.meetings.published(record.peer, record.fragment, record.publication)
            case Published():
                self.meetings.published(record.peer, record.fragment, record.publication)
                if record.final:
                    self.final_bytes += record.wire_bytes
                else:
                    self.publication_bytes += record.wire_bytes
                    self.published_parameters += record.num_parameters
            case Meeting():
                self.meetings.add(record)


_STATES: dict[Phase, State] = {
    Phase.JOINING: "joining",
    Phase.TRAINING: "training",
    Phase.FINISHING: "finishing",
    Phase.DONE: "finishing",
}
