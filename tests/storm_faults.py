"""What goes wrong in a storm, and when: drawn from a seed, and written down so that it can be run again without it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, get_args

from toy_islands import NAMES

FaultKind = Literal[
    "crash", "wipe", "older", "torn", "skew", "hang", "freeze", "slow", "full", "twin", "garbage",
    "cut", "deaf", "partition", "loss", "duplicates", "reordering", "corruption",
]  # fmt: skip
"""Of an island: it crashes and is back from its newest checkpoint, from nothing, from an older one, from the one before
a torn one, or with a clock that is hours off; its process hangs, or its whole machine does; a rank is slow; its disk is
full; a second process of it runs; it publishes what cannot be used. Of two islands: cut off, or one does not hear the
other. Of all: four of eight are cut off; what is sent is lost, comes twice, is late, is damaged."""

OF_ALL = ("partition", "loss", "duplicates", "reordering", "corruption")
NUM_ISLANDS = 8
CALM_FROM_S = 90.0
LAST_S = 240.0


class Fault(NamedTuple):
    """Something that happens at a time and lasts; ``how`` in [0, 1) decides what it leaves open."""

    at_s: float
    kind: FaultKind
    islands: tuple[str, ...]
    for_s: float
    how: float


@dataclass(frozen=True)
class Script:
    """One storm: the run, and what goes wrong in it. ``calm`` leaves time between the last fault and the run's end."""

    seed: int
    calm: bool
    num_fragments: int
    window_steps: int
    flight_steps: int
    meetings: int
    save_every_steps: int
    late_s: float
    delay_s: float
    faults: tuple[Fault, ...]


def draw(seed: int) -> Script:
    """The storm of a seed."""
    rng = Random(seed)
    calm = rng.random() < 0.5
    flight_steps = rng.randint(0, 2)
    window_steps = rng.choice((4, 6, 8))
    return Script(
        seed=seed,
        calm=calm,
        num_fragments=rng.choice((1, 1, 2)),
        window_steps=window_steps,
        flight_steps=flight_steps,
        meetings=rng.choice([n for n in (1, 2, 3) if n * (flight_steps + 1) <= window_steps]),
        save_every_steps=rng.randint(4, 20),
        late_s=rng.choice((0.0, 0.0, 40.0)),
        delay_s=rng.choice((0.1, 0.5, 3.0)),
        faults=tuple(sorted(_fault(rng, CALM_FROM_S if calm else LAST_S) for _ in range(rng.randint(6, 24)))),
    )


def _fault(rng: Random, until_s: float) -> Fault:
    kind = rng.choice(get_args(FaultKind))
    names = NAMES[:NUM_ISLANDS]
    count = {"cut": 2, "deaf": 2, "partition": 4}.get(kind, 0 if kind in OF_ALL else 1)
    at_s, for_s = rng.uniform(3.0, until_s), min(rng.expovariate(1 / 12.0) + 0.5, 60.0)
    return Fault(round(at_s, 2), kind, tuple(rng.sample(names, count)), round(for_s, 2), round(rng.random(), 3))
