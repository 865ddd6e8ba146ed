"""What a drill does to islands, and when: drawn from a seed. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple, get_args

StrikeKind = Literal["kill", "stop", "cut", "isolate"]
"""An island's processes are killed, and started again after a while; they are stopped, and go on; nothing passes
between two islands; nothing passes between one and all others."""

KINDS: tuple[StrikeKind, ...] = get_args(StrikeKind)

_SECONDS: dict[StrikeKind, tuple[float, float]] = {
    "kill": (3.0, 15.0),
    "stop": (3.0, 15.0),
    "cut": (5.0, 40.0),
    "isolate": (5.0, 30.0),
}


class Strike(NamedTuple):
    """Something that happens ``at_s`` seconds after a drill's begin, and lasts."""

    at_s: float
    kind: StrikeKind
    islands: tuple[str, ...]
    for_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


def plan_strikes(
    seed: int, islands: Sequence[str], *, duration_s: float, every_s: float, kinds: Sequence[StrikeKind] = KINDS
) -> tuple[Strike, ...]:
    """One strike in every ``every_s`` seconds of a drill, at a random time in them.

    None lasts longer than that, and all are over before the last quarter of the last of these times.

    Args:
        seed: Of all chance.
        islands: Their names, in the order of their slots.
        duration_s: How long the drill lasts.
        every_s: The mean time between two strikes.
        kinds: What may happen.
    """
    rng = Random(seed)
    able = [kind for kind in kinds if len(islands) > 1 or kind in ("kill", "stop")]
    strikes = []
    for begin_s in itertools.takewhile(lambda s: s + every_s <= duration_s, itertools.count(0.0, every_s)):
        kind = rng.choice(able)
        low, high = _SECONDS[kind]
        for_s = min(rng.uniform(low, high), 0.6 * every_s)
        at_s = begin_s + rng.uniform(0.05, 0.15) * every_s
        struck = tuple(rng.sample(list(islands), 2 if kind == "cut" else 1))
        strikes.append(Strike(round(at_s, 2), kind, struck, round(for_s, 2)))
    return tuple(strikes)


def pairs(strike: Strike, islands: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs between which nothing passes during a strike."""
    if strike.kind == "cut":
        return [(strike.islands[0], strike.islands[1])]
    if strike.kind == "isolate":
        return [(strike.islands[0], other) for other in islands if other != strike.islands[0]]
    return []
