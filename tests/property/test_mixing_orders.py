"""What holds of the pair rule under any order, delay and repetition of arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.codec import CODECS
from isthmus.mixing import (
    arrive,
    depart,
    difference,
    merge_reference,
    merge_weights,
    mesh_round,
    published,
)

SIZE = (3, 150)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def through(codec: str, values: torch.Tensor) -> torch.Tensor:
    data = torch.empty(values.shape[0], CODECS[codec].row_bytes(values.shape[1]), dtype=torch.uint8)
    CODECS[codec].encode(values.float(), data)
    rows = torch.empty(values.shape)
    CODECS[codec].decode(data, rows)
    return rows.to(values.dtype)


@dataclass
class End:
    """One island's end of the one edge, with all departures' own steps summed up in float64."""

    slow: torch.Tensor
    fast: torch.Tensor
    velocity: torch.Tensor
    reference: torch.Tensor
    version: int = 0
    said: dict[int, torch.Tensor] = field(default_factory=dict)
    decoded: dict[int, torch.Tensor] = field(default_factory=dict)
    own_steps: torch.Tensor | float = 0.0
    corrections: dict[int, torch.Tensor] = field(default_factory=dict)


class Pair:
    """Two ends whose publications arrive whenever the test says so."""

    def __init__(self, dtype: torch.dtype, codec: str, weights: tuple[float, ...], seed: int) -> None:
        self.codec, self.weights = codec, weights
        self.random = torch.Generator().manual_seed(seed)
        self.start = self.noise(dtype)
        self.ends = [
            End(self.start.clone(), self.start.clone(), torch.zeros_like(self.start), self.start.clone())
            for _ in range(2)
        ]

    def noise(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(SIZE, generator=self.random, dtype=dtype)

    def train(self, which: int) -> None:
        end = self.ends[which]
        end.fast.add_(self.noise(end.fast.dtype) * 0.05)

    def depart(self, which: int) -> None:
        end = self.ends[which]
        before = end.slow.double().clone()
        depart(end.slow, end.fast, end.velocity, outer_lr=0.7, momentum=0.6)
        end.own_steps = end.own_steps + (end.slow.double() - before)
        if end.version not in end.said:
            end.decoded[end.version] = through(self.codec, difference(end.slow, end.reference))
            end.said[end.version] = published(end.reference, end.decoded[end.version])

    def arrive(self, which: int, version: int) -> None:
        end, other = self.ends[which], self.ends[1 - which]
        if version != end.version or version not in end.said or version not in other.said:
            return
        low, high = (e.decoded[version].clone() for e in self.ends)
        merged = merge_reference(end.reference, (low, high), self.weights)
        end.fast += arrive(end.slow, published=end.said[version].clone(), merged=merged)
        end.corrections[version] = merged.double() - end.said[version].double()
        end.reference = merged
        end.version += 1

    def perform(self, event: tuple[str, int, int]) -> None:
        kind, which, back = event
        if kind == "train":
            self.train(which)
        elif kind == "depart":
            self.depart(which)
        else:
            self.arrive(which, max(0, self.ends[which].version - back))

    def settle(self) -> None:
        for which in (0, 1, 0, 1):
            self.arrive(which, self.ends[which].version)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["train", "depart", "arrive", "arrive"]), st.integers(0, 1), st.integers(0, 2)),
    max_size=60,
)
TOKENS = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6))


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@settings(max_examples=25, deadline=None)
@given(events=EVENTS, tokens=TOKENS, seed=st.integers(0, 1000))
def test_corrections_cancel_and_the_mean_is_what_the_departures_say(
    codec: str,
    dtype: torch.dtype,
    events: list[tuple[str, int, int]],
    tokens: tuple[int, int],
    seed: int,
) -> None:
    pair = Pair(dtype, codec, merge_weights(tokens, counts_if_none=0), seed)
    for event in events:
        pair.perform(event)
    pair.settle()
    low, high = pair.ends
    w_low, w_high = pair.weights
    tolerance = TOLERANCE[dtype] * float(max(low.slow.abs().max(), high.slow.abs().max()))
    assert low.version == high.version
    assert torch.equal(low.reference, high.reference)
    assert set(low.corrections) == set(high.corrections) == set(range(low.version))
    for version, correction in low.corrections.items():
        assert (w_low * correction + w_high * high.corrections[version]).abs().max() <= tolerance
    mean = w_low * low.slow.double() + w_high * high.slow.double()
    told = pair.start.double() + w_low * low.own_steps + w_high * high.own_steps
    assert (mean - told).abs().max() <= tolerance


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(6)), seed=st.integers(0, 1000))
def test_every_order_of_arrivals_gives_the_same_sum(order: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    slow = torch.randn(SIZE, generator=random, dtype=torch.float64)
    meetings = [torch.randn(2, *SIZE, generator=random, dtype=torch.float64) for _ in range(6)]
    results = []
    for sequence in (range(6), order):
        a, theta = slow.clone(), 2 * slow
        for index in sequence:
            said, merged = meetings[index]
            theta += arrive(a, published=said.clone(), merged=merged)
        results.append((a, theta))
    (a, theta), (other_a, other_theta) = results
    assert (a - other_a).abs().max() <= 1e-13
    assert (theta - other_theta).abs().max() <= 1e-13


def streaming_diloco(
    start: torch.Tensor, inner: Callable[[int, torch.Tensor], torch.Tensor], weights: tuple[float, ...], rounds: int
) -> list[torch.Tensor]:
    anchor, velocity, history = start.clone(), torch.zeros_like(start), []
    for _ in range(rounds):
        progress = [anchor - inner(island, anchor) for island in range(2)]
        mesh_round(anchor, velocity, progress, weights, outer_lr=0.7, momentum=0.6)
        history.append(anchor.clone())
    return history


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("tokens", [(1, 1), (3, 1), (2, 5)])
def test_two_islands_that_meet_at_once_are_streaming_diloco(tokens: tuple[int, int], dtype: torch.dtype) -> None:
    weights = merge_weights(tokens, counts_if_none=0)
    pair = Pair(dtype, "fp32", weights, seed=0)
    targets = [pair.noise(dtype) for _ in range(2)]

    def inner(island: int, theta: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            theta = theta - 0.1 * torch.tanh(theta - targets[island])
        return theta

    expected = streaming_diloco(pair.start, inner, weights, rounds=12)
    for anchor in expected:
        for island, end in enumerate(pair.ends):
            end.fast.copy_(inner(island, end.fast))
        for island in range(2):
            pair.depart(island)
        pair.settle()
        mean = weights[0] * pair.ends[0].slow + weights[1] * pair.ends[1].slow
        tolerance = max(TOLERANCE[dtype], 1e-6) * float(anchor.abs().max())
        assert (mean - anchor).abs().max() <= tolerance
        for end in pair.ends:
            assert (end.slow - anchor).abs().max() <= tolerance
