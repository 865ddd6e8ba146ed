"""Symmetric products, of which only the lower triangle is computed."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

_LEAST_SIDE = 256
"""Panels are at least so high: lower ones cost more than they save."""

_MOST_PANELS = 4
"""Of 4 panels 10 of 16 squares are computed."""


def add_lower(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """Add products that are symmetric, ``left @ right``, in place; only their lower triangles are sure to be added.

    Args:
        sums: [k, m, m].
        left: [k, m, n].
        right: [k, n, m].
    """
    side = sums.shape[-1]
    panels = max(1, min(_MOST_PANELS, side // _LEAST_SIDE))
    for first, stop in pairwise(side * panel // panels for panel in range(panels + 1)):
        sums[:, first:stop, :stop].baddbmm_(left[:, first:stop], right[:, :, :stop])


def from_lower(matrices: Tensor) -> Tensor:
    """The symmetric matrices that have these lower triangles, [k, m, m], as new memory."""
    return matrices.tril().add_(matrices.tril(-1).mT)
