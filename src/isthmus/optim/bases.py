"""Bases in which Kronecker factors are nearly diagonal, and how they follow factors that change.

A factor is held in the coordinates of its basis Q: for a factor L it is F = Qᵀ L Q. What there is off its diagonal
says how far the basis has drifted from the eigenvectors, and the diagonal is the eigenvalues' estimate. A refresh turns
the basis, Q ← Q Z; whatever lies in its coordinates turns with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

DRIFT = 0.5
"""The share of a factor's squared norm off its diagonal above which one step of iteration is not enough."""

_NOISE = 64 * torch.finfo(torch.float32).eps
_MOST_NOISE = 0.125


def turn(factors: Tensor) -> Tensor:
    """The rotations Z that bring factors [k, m, m], in coordinates of their bases, closer to diagonal.

    One step of orthogonal iteration: Z is the orthonormal part of F's QR decomposition, columns in the order of their
    eigenvalues (SOAP, arXiv:2409.11321, algorithm 4; the eigenvectors keep their places). Factors that have drifted
    too far for it are decomposed in full. Those that are zero stay as they are.
    """
    level = factors.diagonal(dim1=-2, dim2=-1).amax(-1)
    scaled = factors / torch.where(level > 0, level, 1.0)[:, None, None]
    drifted = (drift(scaled) > DRIFT).nonzero().flatten().tolist()
    rotations = _iterate(scaled) if len(drifted) < len(factors) else torch.empty_like(factors)
    if drifted:
        rotations[drifted] = _eigenvectors(scaled[drifted])
    return rotations


def drift(factors: Tensor) -> Tensor:
    """The share of each factor's squared norm that lies off its diagonal, [k]; 0 for a factor that is zero."""
    whole = factors.square().sum((-2, -1))
    on = factors.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    return torch.where(whole > 0, 1 - on / whole, 0.0)


def turned(bases: Tensor, rotations: Tensor) -> Tensor:
    """Q Z, made orthonormal again by a step of Newton's iteration: rounding must not add up over refreshes."""
    product = bases @ rotations
    return torch.baddbmm(product, product, product.mT @ product, beta=1.5, alpha=-0.5)


def _iterate(factors: Tensor) -> Tensor:
    """One step; factors whose largest diagonal entry is 1 are lifted, lest their null space be rounding's to choose."""
    size = factors.shape[-1]
    lift = min(size * _NOISE, _MOST_NOISE)
    lifted = factors + lift * torch.eye(size, device=factors.device)
    order = factors.diagonal(dim1=-2, dim2=-1).argsort(descending=True, stable=True)
    columns = order.unsqueeze(-2).expand_as(factors)
    orthonormal, triangular = torch.linalg.qr(lifted.gather(-1, columns))
    signs = torch.where(triangular.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    rotations: Tensor = torch.empty_like(factors).scatter_(-1, columns, orthonormal * signs.unsqueeze(-2))
    return rotations


def _eigenvectors(factors: Tensor) -> Tensor:
    """All eigenvectors, in double precision where single does not converge."""
    try:
        vectors: Tensor = torch.linalg.eigh(factors)[1]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        vectors = torch.linalg.eigh(factors.double())[1].float()
    return vectors
