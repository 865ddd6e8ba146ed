"""Bases in which Kronecker factors are nearly diagonal, and how they follow factors that change.

A factor is held in the coordinates of its basis Q: for a factor L it is F = Qᵀ L Q. What there is off its diagonal
says how far the basis has drifted from the eigenvectors, and the diagonal is the eigenvalues' estimate. A refresh
rotates the basis, Q ← Q Z; whatever lies in its coordinates is rotated with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

DRIFT = 0.5
"""What ``drift`` may say before one step of iteration is not enough."""

_NOISE = 8 * torch.finfo(torch.float32).eps
"""What rounding leaves in a factor's null space, times the root of its size, as a share of its largest eigenvalue."""


def find_rotations(factors: Tensor, *, moved: Tensor, fresh: Tensor) -> Tensor:
    """The rotations Z that bring factors, in coordinates of their bases, closer to diagonal.

    One step of orthogonal iteration: Z is the orthonormal part of F's QR decomposition, columns in the order of their
    eigenvalues (SOAP, arXiv:2409.11321, algorithm 4; the eigenvectors keep their places). Factors that are fresh or
    have drifted too far for it are decomposed in full.

    Args:
        factors: [k, m, m].
        moved: [k] bool: only these are rotated; the others' Z is the identity.
        fresh: [k] bool: these were never rotated.

    Returns:
        [k, m, m].
    """
    rotations = torch.eye(factors.shape[-1], device=factors.device).repeat(len(factors), 1, 1)
    level = factors.diagonal(dim1=-2, dim2=-1).amax(-1)
    scaled = factors / torch.where(level > 0, level, 1.0)[:, None, None]
    in_full = moved & (level > 0) & (fresh | (drift(scaled) > DRIFT))
    # one wait for the device: which factors, and how
    ways = torch.stack([moved & (level != 0) & ~in_full, in_full]).tolist()
    for way, chosen in zip((_iterate, _eigenvectors), ways, strict=True):
        places = [place for place, is_chosen in enumerate(chosen) if is_chosen]
        if places:
            rotations[places] = way(scaled[places])
    return rotations


def drift(factors: Tensor) -> Tensor:
    """The share of each factor that lies off its diagonal, [k], as squares of F_ij / (F_ii F_jj)^¼.

    So a direction weighs by its eigenvalue: squares of F itself would see the largest alone, squared correlations
    above all the many smallest, which are noise.
    """
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    floor = _lift(factors) * diagonal.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    scale = torch.maximum(diagonal, floor).pow(-0.25)
    squares = (factors * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)).square_()
    on = squares.diagonal(dim1=-2, dim2=-1).sum(-1)
    whole = squares.sum((-2, -1))
    return torch.where(whole > 0, 1 - on / whole, 0.0)


def rotate_bases(bases: Tensor, rotations: Tensor, *, straighten: bool) -> Tensor:
    """Q Z; if it is to be straightened, made orthonormal again by a step of Newton's iteration.

    Rounding must not add up over refreshes; over a few of them it is nothing.
    """
    product = bases @ rotations
    return torch.baddbmm(product, product, product.mT @ product, beta=1.5, alpha=-0.5) if straighten else product


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of fp32 in fp32, whether or not TF32 or bf16 is allowed to stand in for it elsewhere."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def _lift(factors: Tensor) -> float:
    return float(factors.shape[-1] ** 0.5 * _NOISE)


def _iterate(factors: Tensor) -> Tensor:
    """One step; factors whose largest diagonal entry is 1 are lifted, lest their null space be rounding's to choose."""
    lifted = factors.clone()
    lifted.diagonal(dim1=-2, dim2=-1).add_(_lift(factors))
    order = factors.diagonal(dim1=-2, dim2=-1).argsort(descending=True, stable=True)
    columns = order.unsqueeze(-2).expand_as(factors)
    reflectors, scales = torch.geqrf(lifted.gather(-1, columns))
    signs = torch.where(reflectors.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)  # of R, whose other half they share
    orthonormal = torch.linalg.householder_product(reflectors, scales)
    rotations: Tensor = torch.empty_like(factors).scatter_(-1, columns, orthonormal * signs.unsqueeze(-2))
    return rotations


def _eigenvectors(factors: Tensor) -> Tensor:
    """All eigenvectors, in double precision where single does not converge."""
    try:
        vectors: Tensor = torch.linalg.eigh(factors)[1]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        vectors = torch.linalg.eigh(factors.double())[1].float()
    return vectors
