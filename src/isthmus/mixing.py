"""The pair rule in tensors: departures, merges, arrivals; and the mesh rule that it is compared with.

Slow weights a, fast weights θ, velocity m, reference c; all tensors of one call have one shape, device and
type, fp32 in a run. Functions that return nothing work in place. Both ends of an edge must compute
``merge_reference`` to the same bits, whatever their hardware: hence eager, separate multiplications and
additions, never a fused one.
"""

from __future__ import annotations

from collections.abc import Sequence

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
def difference(slow: Tensor, reference: Tensor | None) -> Tensor:
    """What a publication codes, y − c, in a new tensor; no reference means c = 0."""
    return slow.clone() if reference is None else slow - reference


@torch.no_grad()
def published(reference: Tensor | None, decoded: Tensor) -> Tensor:
    """What a publication says once it is decoded, ŷ = c + decode(q), in a new tensor."""
    return decoded.clone() if reference is None else reference + decoded


def low_counts(*, low_complete: bool, high_complete: bool, low_tokens: int, high_tokens: int) -> bool:
    """Whose weight is 1 where neither end has trained since they met: True for the lower slot.

    The complete end's; where that does not tell, that of the end that has seen more run tokens; else the
    lower slot's.
    """
    if low_complete != high_complete:
        return low_complete
    return low_tokens >= high_tokens


def merge_weights(low_tokens: int, high_tokens: int, *, low_counts_if_none: bool) -> tuple[float, float]:
    """Weights of a meeting's two ends, the lower slot's first, by the tokens each trained since they met.

    Both are fp32 numbers and sum to exactly 1, so that the weighted corrections cancel: w_low is fp32(d_low /
    (d_low + d_high)) rounded once more to a multiple of 2^-24, where its complement is exact too.
    """
    if low_tokens < 0 or high_tokens < 0:
        raise ProtocolError("tokens of a meeting are negative", got=(low_tokens, high_tokens), wanted="0 or more")
    if low_tokens == 0 and high_tokens == 0:
        return (1.0, 0.0) if low_counts_if_none else (0.0, 1.0)
    one = np.float32(1.0)
    high_weight = one - np.float32(low_tokens / (low_tokens + high_tokens))
    return float(one - high_weight), float(high_weight)


@torch.no_grad()
def merge_reference(
    reference: Tensor | None,
    decoded_low: Tensor | None,
    decoded_high: Tensor | None,
    low_weight: float,
    high_weight: float,
) -> Tensor:
    """The edge's next reference, c' = c + (w_low·decode(q_low) + w_high·decode(q_high)), in a new tensor.

    A term of weight 0 is skipped and may be None (a publication without payload); no reference means c = 0.
    The bits are those of numpy's fp32.

    Raises:
        ProtocolError: A term with weight is missing.
    """
    merged: Tensor | None = None
    for decoded, weight in ((decoded_low, low_weight), (decoded_high, high_weight)):
        if weight == 0.0:
            continue
        if decoded is None:
            raise ProtocolError("a publication without payload has weight", got=weight, wanted=0)
        term = decoded * weight
        merged = term if merged is None else merged.add_(term)
    if merged is None:
        raise ProtocolError("neither publication of a meeting has weight")
    return merged if reference is None else merged.add_(reference)


@torch.no_grad()
def arrive(slow: Tensor, fast: Tensor, *, published: Tensor, merged: Tensor) -> None:
    """Apply a meeting's correction κ = c' − ŷ in place, however late: a ← a + κ;  θ ← θ + κ."""
    correction = merged - published
    slow.add_(correction)
    fast.add_(correction)


@torch.no_grad()
def adopt(slow: Tensor, fast: Tensor, velocity: Tensor | None, *, merged: Tensor) -> None:
    """Take a meeting's result whole, in place: a ← θ ← c';  m ← 0. A buffer has no velocity."""
    slow.copy_(merged)
    fast.copy_(merged)
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
