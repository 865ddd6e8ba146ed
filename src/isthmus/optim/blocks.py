"""The state of a stack of blocks under Shampoo, and what a step and a refresh do to it.

For a gradient G [m, n] the factors are L, a running mean of G Gᵀ / n, and R, one of Gᵀ G / m; each lies in the
coordinates of its own basis (``bases.py``), so G' = Q_Lᵀ G Q_R is all that a step needs. All running means are free of
bias: the first value has weight 1. Every block counts its own steps: one whose gradient is zero throughout, as that of
an expert without tokens is, skips the step, and keeps its bases until it has counted another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.optim.bases import find_rotations, rotate_bases
from isthmus.optim.halves import add_lower, from_lower
from isthmus.optim.vectors import LARGEST

DAMPING = 1e-6
"""Least eigenvalue that is divided by, as a share of the largest."""

PIECE = 1 << 22
"""Elements of blocks that a step works on at once: what it takes beside the state, and stays in caches and heaps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Whether factors' roots are divided by instead of a mean square, and whether each is weighed with the other."""

    root_inverse: bool
    weighed: bool


VARIANTS = {
    "soap": Variant(root_inverse=False, weighed=False),
    "kl-soap": Variant(root_inverse=False, weighed=True),
    "shampoo": Variant(root_inverse=True, weighed=False),
    "kl-shampoo": Variant(root_inverse=True, weighed=True),
}
"""See ``Shampoo``."""


def state_shapes(blocks: int, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    """The tensors that so many blocks have, by name.

    ``step`` counts a block's steps, ``rotated`` is what it was when the bases were last rotated.
    """
    return {
        "step": (blocks,),
        "rotated": (blocks,),
        "exp_avg": (blocks, rows, columns),
        "exp_avg_sq": (blocks, rows, columns),
        "left_basis": (blocks, rows, rows),
        "left_factor": (blocks, rows, rows),
        "right_basis": (blocks, columns, columns),
        "right_factor": (blocks, columns, columns),
    }


class Blocks:
    """The state of blocks [b, m, n].

    Args:
        tensors: By name, blocks along the first dimension, fp32; of a factor only the lower triangle counts.
        variant: What is done with them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], variant: Variant) -> None:
        self.tensors, self._variant = tensors, variant

    def __getitem__(self, part: slice) -> Blocks:
        """Some of the blocks, the same memory."""
        return Blocks({name: tensor[part] for name, tensor in self.tensors.items()}, self._variant)

    def direct(self, gradients: Tensor, betas: tuple[float, float, float], eps: float) -> Tensor:
        """Count a step and say where it leads.

        Args:
            gradients: [b, m, n] fp32; becomes what a learning rate of 1 subtracts from the blocks, 0 where they are 0.
            betas: Decay of the means of gradients, of their squares and of factors.
            eps: Added to the root of the mean square.

        Returns:
            1 for a block that counted the step, else 0, [b, 1, 1].
        """
        count, rows, columns = gradients.shape
        at_once = max(1, PIECE // (rows * columns))
        parts = [slice(first, first + at_once) for first in range(0, count, at_once)]
        return torch.cat([self[part]._direct(gradients[part], betas, eps) for part in parts])

    def _direct(self, gradients: Tensor, betas: tuple[float, float, float], eps: float) -> Tensor:
        step = self.tensors["step"]
        seen = _bound(gradients) != 0
        step.add_(seen)

        def share(beta: float) -> Tensor:
            grown = 1.0 if beta == 0 else -torch.expm1(step * math.log(beta))
            return torch.where(seen, (1 - beta) / grown, 0.0)[:, None, None]

        rotated = self._into_bases(gradients)
        self._follow(rotated, share(betas[2]))
        moved = gradients if self._variant.root_inverse else rotated
        exp_avg = self.tensors["exp_avg"].lerp_(moved, share(betas[0]))
        exp_avg_sq = self.tensors["exp_avg_sq"].lerp_(moved.square_(), share(betas[1]))
        adam = torch.div(exp_avg, exp_avg_sq.sqrt().add_(eps), out=moved)
        counted = seen.float()[:, None, None]
        out = self._grafted(adam) if self._variant.root_inverse else self._out_of_bases(adam)
        torch.mul(out, counted, out=gradients)
        return counted

    def rotations(self) -> list[Tensor]:
        """How the left and the right bases are to be rotated, [b, m, m] and [b, n, n]."""
        step, before = self.tensors["step"], self.tensors["rotated"]
        factors = (from_lower(self.tensors[f"{side}_factor"]) for side in ("left", "right"))
        return [find_rotations(each, moved=step > before, fresh=before == 0) for each in factors]

    def room(self) -> list[Tensor]:
        """Where rotations found elsewhere are to be put."""
        return [torch.empty_like(self.tensors[f"{side}_factor"]) for side in ("left", "right")]

    def rotate(self, left: Tensor, right: Tensor, *, straighten: bool) -> None:
        """Rotate the bases, and what lies in their coordinates.

        Mean squares are rotated by the squared entries, as if coordinates were uncorrelated.

        Args:
            left: [b, m, m].
            right: [b, n, n].
            straighten: See ``rotate_bases``.
        """
        own = self.tensors
        moved = (own["step"] > own["rotated"])[:, None, None]
        own["rotated"].copy_(own["step"])
        for side, rotations in (("left", left), ("right", right)):
            factor, basis = own[f"{side}_factor"], own[f"{side}_basis"]
            half = from_lower(factor) @ rotations
            add_lower(factor.zero_(), rotations.mT, half)
            turned = rotate_bases(basis, rotations, straighten=straighten)
            basis.copy_(torch.where(moved, turned, basis) if straighten else turned)
        if not self._variant.root_inverse:
            own["exp_avg"].copy_(left.mT @ own["exp_avg"] @ right)
            own["exp_avg_sq"].copy_(left.square().mT @ own["exp_avg_sq"] @ right.square())

    def _into_bases(self, blocks: Tensor) -> Tensor:
        return self.tensors["left_basis"].mT @ blocks @ self.tensors["right_basis"]

    def _out_of_bases(self, blocks: Tensor) -> Tensor:
        return self.tensors["left_basis"] @ blocks @ self.tensors["right_basis"].mT

    def _follow(self, rotated: Tensor, share: Tensor) -> None:
        """Move the factors towards those of a gradient.

        KL-Shampoo (arXiv:2509.03378) weighs with the other factor's inverse: L towards G R⁻¹ Gᵀ / n, R towards
        Gᵀ L⁻¹ G / m. A block's first gradient meets R = I and L = the mean of its squares.
        """
        _, rows, columns = rotated.shape
        ways = self._weighed(rotated) if self._variant.weighed else (rotated, rotated)
        scaled = torch.empty_like(rotated)
        for side, way, size in zip(("left", "right"), ways, (columns, rows), strict=True):
            torch.mul(way, share / size, out=scaled)
            factor = self.tensors[f"{side}_factor"].mul_(1 - share)
            add_lower(factor, *((scaled, way.mT) if side == "left" else (scaled.mT, way)))

    def _weighed(self, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """A gradient's coordinates times the root of the right factor's inverse, and of the left one's."""
        first = (self.tensors["step"] <= 1)[:, None]
        mean = rotated.square().mean((1, 2))[:, None]
        left, right = self._eigenvalues()
        by_right = rotated * torch.where(first, 1.0, right).rsqrt()[:, None, :]
        by_left = rotated * torch.where(first & (mean > 0), mean, left).rsqrt()[:, :, None]
        _bound(by_right)
        _bound(by_left)
        return by_right, by_left

    def _eigenvalues(self) -> tuple[Tensor, Tensor]:
        """Damped estimates, [b, m] and [b, n]; ones where nothing was counted."""
        left, right = (self.tensors[f"{side}_factor"].diagonal(dim1=1, dim2=2) for side in ("left", "right"))
        return _damped(left), _damped(right)

    def _grafted(self, adam: Tensor) -> Tensor:
        """L^-p M R^-p with AdamW's norm; p is 1/4 (Shampoo, arXiv:1802.09568), for KL factors 1/2."""
        power = -0.5 if self._variant.weighed else -0.25
        left, right = self._eigenvalues()
        scaled = self._into_bases(self.tensors["exp_avg"])
        scaled.mul_(left.pow(power)[:, :, None]).mul_(right.pow(power)[:, None, :])
        out = self._out_of_bases(scaled)
        norm, wanted = (torch.linalg.vector_norm(each, dim=(1, 2), keepdim=True) for each in (out, adam))
        return out.mul_(torch.where(norm > 0, wanted / norm, 0.0))


def begin_blocks(shape: tuple[int, int, int], device: torch.device, variant: Variant) -> Blocks:
    """The state of blocks [b, m, n] before their first step."""
    tensors = {name: torch.zeros(own, device=device) for name, own in state_shapes(*shape).items()}
    for side in ("left", "right"):
        tensors[f"{side}_basis"].diagonal(dim1=1, dim2=2).fill_(1)
    return Blocks(tensors, variant)


def _bound(blocks: Tensor) -> Tensor:
    """Scale each block down, in place, so that no entry is above ``LARGEST``; returns the largest there were, [b]."""
    peaks = torch.maximum(blocks.amax((1, 2)), -blocks.amin((1, 2))).abs()  # a norm of infinity takes far longer
    blocks.mul_((LARGEST / peaks).clamp_(max=1.0)[:, None, None])
    return peaks


def _damped(eigenvalues: Tensor) -> Tensor:
    largest = eigenvalues.amax(-1, keepdim=True)
    least = (DAMPING * largest).clamp_(min=torch.finfo(torch.float32).tiny)
    return torch.where(largest > 0, torch.maximum(eigenvalues, least), 1.0)
