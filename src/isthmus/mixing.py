"""The pair rule in tensors: departures, merges, arrivals; and the mesh rule, whose meetings are of all islands.

Slow weights a, fast weights θ, velocity m, reference c; all tensors of one call have one shape, device and
type, fp32 in a run. Functions that return nothing work in place. All ends of a meeting must compute
``merge_reference`` to the same bits, whatever their hardware: hence eager, separate multiplications and
additions, never a fused one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import ProtocolError


@torch.no_grad()
def depart(slow: Tensor, fast: Tensor, velocity: Tensor, *, outer_lr: float, momentum: float) -> None:
    """Take a parameter's outer step: Nesterov on the island's own progress (DiLoCo, arXiv 2311.08105).

    Δ = a − θ;  m ← μ·m + Δ;  a ← a − η·(Δ + μ·m);  θ ← a. With η = 1 and μ = 0 the fast weights stay bit for
    bit what they are. All three tensors change in place; one temporary of their size is used.
    """
    if outer_lr == 1.0 and momentum == 0.0:
        torch.sub(slow, fast, out=velocity)
        slow.copy_(fast)
        return
    delta = torch.sub(slow, fast, out=fast)
    _outer_step(slow, velocity, delta, outer_lr=outer_lr, momentum=momentum)
    fast.copy_(slow)


@torch.no_grad()
def depart_buffer(slow: Tensor, fast: Tensor) -> None:
    """Take a buffer as it is, without an outer step: a ← θ."""
    slow.copy_(fast)


@torch.no_grad()
def difference(slow: Tensor, reference: Tensor | None, *, out: Tensor | None = None) -> Tensor:
    """What a publication codes, y − c, in a new tensor or in ``out``; no reference means c = 0."""
    if reference is not None:
        return torch.sub(slow, reference, out=out)
    return slow.clone() if out is None else out.copy_(slow)


@torch.no_grad()
def published(reference: Tensor | None, decoded: Tensor, *, out: Tensor | None = None) -> Tensor:
    """What a publication says once it is decoded, ŷ = c + decode(q), in a new tensor or in ``out``."""
    if reference is not None:
        return torch.add(reference, decoded, out=out)
    return decoded.clone() if out is None else out.copy_(decoded)


def counts_alone(complete: Sequence[bool], run_tokens: Sequence[int]) -> int:
    """Whose weight is 1 where no end has trained since they met: its place in the order of slots.

    A complete end's; of several that of the end that has seen the most run tokens; then the lowest slot's.
    """
    return max(range(len(complete)), key=lambda place: (complete[place], run_tokens[place]))


def merge_weights(tokens: Sequence[int], *, counts_if_none: int) -> tuple[float, ...]:
    """Weights of a meeting's ends in order of slots, by the tokens each trained since they met.

    All are multiples of 2^-24, exact in fp32, and sum to exactly 1, so that the weighted corrections cancel: each is
    what an end adds to the share of the ends up to its slot, rounded to that grid. Of two ends the lower one's is
    fp32(d_low / (d_low + d_high)), rounded once more.

    Raises:
        ProtocolError: A number of tokens is negative.
    """
    if min(tokens) < 0:
        raise ProtocolError("tokens of a meeting are negative", got=tuple(tokens), wanted="0 or more")
    total = sum(tokens)
    if total == 0:
        return tuple(float(place == counts_if_none) for place in range(len(tokens)))
    one = np.float32(1.0)
    upto = [float(one - (one - np.float32(part / total))) for part in accumulate(tokens)]
    return tuple(share - before for before, share in pairwise((0.0, *upto)))


@torch.no_grad()
def merge_reference(
    reference: Tensor | None,
    decoded: Sequence[Tensor | None],
    weights: Sequence[float],
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The next reference, c' = c + Σ w_i·decode(q_i) in order of slots, in a new tensor or in ``out``.

    The decoded tensors are used up. ``out`` may be the reference itself. A term of weight 0 is skipped and may be None
    (a publication without payload); no reference means c = 0. The bits are those of numpy's fp32.

    Raises:
        ProtocolError: A term with weight is missing.
    """
    merged: Tensor | None = None
    for values, weight in zip(decoded, weights, strict=True):
        if weight == 0.0:
            continue
        if values is None:
            raise ProtocolError("a publication without payload has weight", got=weight, wanted=0)
        term = values.mul_(weight)
        merged = term if merged is None else merged.add_(term)
    if merged is None:
        raise ProtocolError("no publication of a meeting has weight")
    if reference is not None:
        return torch.add(merged, reference, out=out)
    return merged if out is None else out.copy_(merged)


@torch.no_grad()
def arrive(slow: Tensor, *, published: Tensor, merged: Tensor) -> Tensor:
    """Apply a meeting's correction κ = c' − ŷ to slow weights in place, a ← a + κ; returns κ, in the memory of ŷ.

    It is to be added to the fast weights, too, however late: θ ← θ + κ.
    """
    correction = torch.sub(merged, published, out=published)
    slow.add_(correction)
    return correction


@torch.no_grad()
def correct_velocity(velocity: Tensor, correction: Tensor, *, outer_lr: float, momentum: float) -> None:
    """Take a meeting's correction into the velocity, in place: m ← m − κ / (η·(1 + μ)).

    An outer step moves slow weights by −η·(1 + μ)·Δ, and its velocity by Δ; so where both ends had the same slow
    weights and velocity, both now have the velocity of their mean progress, as if they shared one outer optimizer. What
    is smoothed is the displacement of the mixed model, as in quasi-global momentum (arXiv 2102.04761); nothing is sent.

    Args:
        velocity: m.
        correction: κ.
        outer_lr: η of the last departure.
        momentum: μ of the last departure.
    """
    velocity.sub_(correction, alpha=1.0 / (outer_lr * (1.0 + momentum)))


@torch.no_grad()
def adopt(slow: Tensor, velocity: Tensor | None, *, merged: Tensor) -> None:
    """Take a meeting's result whole, in place: a ← c';  m ← 0, and θ is to be it, too. A buffer has no velocity."""
    slow.copy_(merged)
    if velocity is not None:
        velocity.zero_()


@torch.no_grad()
def assign(slow: Tensor, *, merged: Tensor) -> None:
    """End a meeting of the run's last rounds in place: a ← c'."""
    slow.copy_(merged)


@torch.no_grad()
def mesh_round(
    anchor: Tensor,
    velocity: Tensor,
    progress: Sequence[Tensor],
    weights: Sequence[float],
    *,
    outer_lr: float,
    momentum: float,
) -> None:
    """One outer step of classical streaming DiLoCo (arXiv 2501.18512), shared by all islands; in place.

    Args:
        anchor: The common slow weights.
        velocity: The common velocity.
        progress: Each island's Δ = anchor − θ.
        weights: Each island's share, summing to 1.
        outer_lr: η.
        momentum: μ.
    """
    mean = torch.zeros_like(anchor)
    for delta, weight in zip(progress, weights, strict=True):
        mean.add_(delta * weight)
    _outer_step(anchor, velocity, mean, outer_lr=outer_lr, momentum=momentum)


def _outer_step(slow: Tensor, velocity: Tensor, delta: Tensor, *, outer_lr: float, momentum: float) -> None:
    velocity.mul_(momentum).add_(delta)
    step = velocity * momentum
    slow.sub_(step.add_(delta).mul_(outer_lr))
