"""What a toy island trains: one number per fragment, moved by the pair rule as an engine moves tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from isthmus.session.orders import Arrive, Mode

NUM_BYTES = 8
_STEPS = 64.0
"""What is coded is rounded to so many parts of one."""


def pack(number: float) -> bytes:
    """A number as the last bytes of a payload."""
    return struct.pack("<d", number)


def unpack(payload: bytes) -> float:
    """The number that a payload ends with."""
    return struct.unpack("<d", payload[-NUM_BYTES:])[0]


@dataclass
class Numbers:
    """Slow and fast weights, velocity, and references by partner, of every fragment; all begin as 0."""

    slow: dict[int, float] = field(default_factory=dict)
    fast: dict[int, float] = field(default_factory=dict)
    velocity: dict[int, float] = field(default_factory=dict)
    common: dict[tuple[str, int], float] = field(default_factory=dict)

    def copy(self) -> Numbers:
        """An independent copy."""
        return Numbers(dict(self.slow), dict(self.fast), dict(self.velocity), dict(self.common))

    def train(self, fragment: int, push: float) -> None:
        """One step towards 1, off course by ``push``."""
        fast = self.fast.get(fragment, 0.0)
        self.fast[fragment] = fast + 0.02 * (1.0 - fast) + push

    def depart(self, fragment: int, outer_lr: float, momentum: float) -> None:
        """The outer step."""
        slow = self.slow.get(fragment, 0.0)
        delta = slow - self.fast.get(fragment, 0.0)
        velocity = momentum * self.velocity.get(fragment, 0.0) + delta
        self.velocity[fragment] = velocity
        self.slow[fragment] = self.fast[fragment] = slow - outer_lr * (delta + momentum * velocity)

    def code(self, peer: str, fragment: int, *, lossless: bool) -> float:
        """What is published against the reference of an edge."""
        exact = self.slow.get(fragment, 0.0) - self.common.get((peer, fragment), 0.0)
        return exact if lossless else round(exact * _STEPS) / _STEPS

    def arrive(self, order: Arrive, coded: Sequence[float], weights: Sequence[float]) -> float:
        """Apply a meeting; the correction, weighted with this end's share."""
        fragment, reference = order.fragment, self.common.get((order.peers[0], order.fragment), 0.0)
        after = reference + sum(weight * each for weight, each in zip(weights, coded, strict=True))
        own = coded[order.place]
        correction = after - (reference + own)
        if order.mode is Mode.CORRECT:
            for held in (self.slow, self.fast):
                held[fragment] = held.get(fragment, 0.0) + correction
        else:
            self.slow[fragment] = self.fast[fragment] = after
            self.velocity[fragment] = 0.0
        for peer in order.peers:
            self.common[peer, fragment] = after
        return weights[order.place] * correction

    def merge(self, order: Arrive, coded: Sequence[float], weights: Sequence[float]) -> None:
        """Take the mean at the end of the run."""
        mean = sum(weight * each for weight, each in zip(weights, coded, strict=True))
        self.slow[order.fragment] = self.common[order.peers[0], order.fragment] = mean
