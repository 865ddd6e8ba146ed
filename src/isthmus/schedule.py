"""What the run's course decides: which fragments depart at a step, outer step, learning rate, codec."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

SURGE_FACTOR = 3.0
"""A publication's rms above this many running medians is a surge: a heal or a join, or a fault."""

SURGE_CODEC = "int8"
"""What a surge is coded with, unless the run's codec is finer."""

_FINE_CODECS = frozenset({"int8", "bf16", "fp32"})


def departure_offset(fragment: int, *, window_steps: int, num_fragments: int) -> int:
    """The first step, counted from 1, at which ``fragment`` departs: (p+1)·H/P, rounded up."""
    return -(-(fragment + 1) * window_steps // num_fragments)


def departures(step: int, *, window_steps: int, num_fragments: int) -> tuple[int, ...]:
    """The fragments that depart after optimizer step ``step`` (1 is the first), in order.

    Each departs once in every window of ``window_steps``; no two at one step unless there are more fragments
    than steps.
    """
    return tuple(
        fragment
        for fragment in range(num_fragments)
        if step >= (offset := departure_offset(fragment, window_steps=window_steps, num_fragments=num_fragments))
        and (step - offset) % window_steps == 0
    )


def meetings_to_all(num_islands: int) -> int:
    """Meetings a round after which each one's progress has reached all: log2 of the islands, rounded up."""
    return max(1, (num_islands - 1).bit_length())


def slot_s(step_s: float, *, window_steps: int, num_fragments: int, meetings: int = 1) -> float:
    """Seconds over which a publication is spread: H/P steps of ``step_s``, the time between two departures.

    Where several meetings follow each departure, they share that time.
    """
    return step_s * window_steps / (num_fragments * meetings)


class OuterStep(NamedTuple):
    """Parameters of one outer step: learning rate η and momentum μ."""

    outer_lr: float
    momentum: float


CALM = OuterStep(1.0, 0.0)
"""The outer step that takes an island's progress as it is."""


@dataclass(frozen=True)
class OuterPlan:
    """The outer step of a run: ``step``, but calm in the first ``calm_rounds`` and the last ``calm_share``."""

    step: OuterStep
    calm_rounds: int = 2
    calm_share: float = 0.2


def outer_step(plan: OuterPlan, *, progress: float, rounds: int) -> OuterStep:
    """The outer step of a departure.

    Args:
        plan: The run's plan.
        progress: Share of the run's token budget that is spent, 0 to 1.
        rounds: Departures that this fragment has had at this island before.
    """
    if rounds < plan.calm_rounds or progress >= 1.0 - plan.calm_share:
        return CALM
    return plan.step


def learning_rate_scale(progress: float, *, warmup_share: float, final_share: float) -> float:
    """Factor of the peak learning rate: linear over ``warmup_share``, then a cosine down to ``final_share``.

    ``progress`` beyond 0 to 1 counts as its nearer end.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup_share:
        return progress / warmup_share
    if warmup_share >= 1.0:
        return 1.0
    done = (progress - warmup_share) / (1.0 - warmup_share)
    return final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class RmsHistory:
    """The rms of an edge's latest publications of one fragment, oldest first; plain, for a checkpoint."""

    values: tuple[float, ...] = ()

    LENGTH = 16
    ENOUGH = 4

    def then(self, rms: float) -> RmsHistory:
        """This history with one more value, the oldest dropped beyond ``LENGTH``."""
        return RmsHistory((*self.values, rms)[-self.LENGTH :])

    def median(self) -> float | None:
        """The running median; None before ``ENOUGH`` values."""
        return statistics.median(self.values) if len(self.values) >= self.ENOUGH else None

    def surges(self, rms: float) -> bool:
        """Whether ``rms`` stands out: above ``SURGE_FACTOR`` times the running median."""
        median = self.median()
        return median is not None and rms > SURGE_FACTOR * median


def codec_choice(
    configured: str, *, rms: float, history: RmsHistory, has_reference: bool, partner_is_newcomer: bool
) -> str:
    """The codec of one publication by a complete island.

    Args:
        configured: The run's codec.
        rms: Root mean square of what is to be coded, slow weights minus reference.
        history: That of this edge and fragment before.
        has_reference: Whether the edge holds a reference; without one everything is coded, and losslessly.
        partner_is_newcomer: Whether this answers a knock without payload.
    """
    if partner_is_newcomer or not has_reference:
        return "fp32"
    if configured not in _FINE_CODECS and history.surges(rms):
        return SURGE_CODEC
    return configured
