"""What a drill has cost, from islands' records: goodput and stalls. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from isthmus.observe.records import Checkpoint, Evaluation, PhaseChange, Record, RunStarted, StepDone
from isthmus.terms import Phase


class Span(NamedTuple):
    """From when to when, in seconds since the Unix epoch."""

    start_s: float
    end_s: float

    def overlap_s(self, other: Span) -> float:
        """Seconds that both have."""
        return max(0.0, min(self.end_s, other.end_s) - max(self.start_s, other.start_s))


@dataclass(frozen=True)
class Struck:
    """When one island was down (from its death until its new process began) and stopped."""

    down: tuple[Span, ...] = ()
    stopped: tuple[Span, ...] = ()


@dataclass(frozen=True)
class IslandCost:
    """How one island fared.

    Attributes:
        tokens: Trained in the drill and in its weights at the end; what a restart went back behind is not.
        possible_tokens: What it could have trained while it lived: from joined until its death, but for stops.
        lost_tokens: Trained, and gone with a death.
        stall_s: The longest that a step took beyond its usual time, while the island itself was not struck.
        step_s: What a step usually took.
    """

    tokens: int
    possible_tokens: float
    lost_tokens: int
    stall_s: float
    step_s: float


@dataclass(frozen=True)
class Cost:
    """What a drill has cost, by island."""

    islands: dict[str, IslandCost] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Tokens trained over what the living islands could have trained."""
        possible = sum(island.possible_tokens for island in self.islands.values())
        return sum(island.tokens for island in self.islands.values()) / possible if possible else 0.0

    @property
    def stall_steps(self) -> float:
        """The longest stall of an island that was not struck itself, in its own steps."""
        return max((island.stall_s / island.step_s for island in self.islands.values() if island.step_s), default=0.0)


def island_cost(records: Sequence[Record], struck: Struck, drill: Span) -> IslandCost:
    """How one island fared in a drill.

    Args:
        records: Its records, oldest first.
        struck: What was done to it.
        drill: From the first strike's time on until the drill ended.
    """
    lives = _lives(records, struck, drill)
    steps = [record for record in records if isinstance(record, StepDone)]
    gaps = [gap for life in lives for gap in _gaps(steps, life, struck.stopped, records)]
    if not gaps:
        return IslandCost(0, 0.0, 0, 0.0, 0.0)
    step_s = statistics.median(gap.seconds for gap in gaps)
    rate = statistics.median(gap.tokens for gap in gaps) / step_s
    living_s = sum(_living_s(life, struck.stopped) for life in lives)
    return IslandCost(
        tokens=_tokens_at(records, drill.end_s, struck) - _tokens_at(records, drill.start_s, struck),
        possible_tokens=rate * living_s,
        lost_tokens=sum(_lost(records, down) for down in struck.down),
        stall_s=max(0.0, max(gap.seconds for gap in gaps) - step_s),
        step_s=step_s,
    )


class _Gap(NamedTuple):
    seconds: float
    tokens: int


def _lives(records: Sequence[Record], struck: Struck, drill: Span) -> list[Span]:
    """When the island lived within the drill: each from when it trained until its death, or the end of its training."""
    joined = [r.wall_s for r in records if isinstance(r, PhaseChange) and r.phase is Phase.TRAINING]
    over = [r.wall_s for r in records if isinstance(r, PhaseChange) and r.phase in (Phase.FINISHING, Phase.DONE)]
    anew = [r.wall_s for r in records if isinstance(r, RunStarted)]
    deaths = sorted([*(span.start_s for span in struck.down), *over, *anew])
    lives = []
    for begin_s in joined:
        end_s = next((death_s for death_s in deaths if death_s >= begin_s), drill.end_s)
        life = Span(max(begin_s, drill.start_s), min(end_s, drill.end_s))
        if life.end_s > life.start_s:
            lives.append(life)
    return lives


def _living_s(life: Span, stopped: Iterable[Span]) -> float:
    return life.end_s - life.start_s - sum(life.overlap_s(stop) for stop in stopped)


def _gaps(steps: Sequence[StepDone], life: Span, stopped: Sequence[Span], records: Sequence[Record]) -> list[_Gap]:
    """Times of steps within a life in which the island was not stopped, and was not scoring itself."""
    scored = [record.wall_s for record in records if isinstance(record, Evaluation)]
    within = [step for step in steps if life.start_s <= step.wall_s <= life.end_s]
    gaps = []
    for one, other in pairwise(within):
        span = Span(one.wall_s, other.wall_s)
        touched = any(span.overlap_s(stop) for stop in stopped) or any(
            span.start_s <= at_s <= span.end_s for at_s in scored
        )
        if not touched:
            gaps.append(_Gap((span.end_s - span.start_s) / other.num_steps, other.step_tokens // other.num_steps))
    return gaps


def _tokens_at(records: Sequence[Record], at_s: float, struck: Struck) -> int:
    """Tokens in the island's weights at a time; where it is dead, those of the checkpoint that it would go on from."""
    dead = any(span.start_s <= at_s <= span.end_s for span in struck.down)
    kinds = Checkpoint if dead else (StepDone, RunStarted, PhaseChange)
    return next((r.tokens for r in reversed(records) if r.wall_s <= at_s and isinstance(r, kinds)), 0)


def _lost(records: Sequence[Record], down: Span) -> int:
    """Tokens before a death, less those with which it trained on."""
    before = next((r.tokens for r in reversed(records) if isinstance(r, StepDone) and r.wall_s <= down.start_s), 0)
    after = [r for r in records if isinstance(r, StepDone) and r.wall_s >= down.end_s]
    return max(0, before - (after[0].tokens - after[0].step_tokens)) if after else 0
