"""Matrix products of rows that are sorted by group, each group with a matrix of its own."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_ALIGNMENT_BYTES = 16
"""The fused kernel wants strides that are multiples of this."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def grouped_matmul(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group of rows by its group's matrix, by the fastest exact way there is.

    ``torch.compile`` steps around it: traced, the fused kernel takes bf16 alone, and groups of new sizes recompile.

    Args:
        rows: (n, d), sorted by group.
        weights: (groups, d, h), same dtype as ``rows``.
        ends: (groups,) int32: the row after each group's last; the last entry is n.

    Returns:
        (n, h) products.
    """
    aligned = all(width * rows.element_size() % _ALIGNMENT_BYTES == 0 for width in weights.shape[1:])
    if aligned and has_fused_kernel(rows.device.type, rows.dtype):
        fused: Tensor = F.grouped_mm(rows, weights, offs=ends)
        return fused
    return split_matmul(rows, weights, ends)


def split_matmul(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """What ``grouped_matmul`` returns, by one product per group; waits for the device to learn the sizes."""
    sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    products = [part @ weight for part, weight in zip(torch.split(rows, sizes), weights.unbind(), strict=True)]
    return torch.cat(products)


@lru_cache
def has_fused_kernel(device_type: str, dtype: torch.dtype) -> bool:
    """Whether this build of torch has a grouped product, forward and backward, for the device and dtype."""
    if not hasattr(F, "grouped_mm"):
        return False
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device_type, enabled=False):
        rows = torch.zeros(16, 16, device=device_type, dtype=dtype, requires_grad=True)
        weights = torch.zeros(2, 16, 16, device=device_type, dtype=dtype, requires_grad=True)
        ends = torch.tensor([8, 16], device=device_type, dtype=torch.int32)
        try:
            torch.autograd.grad(F.grouped_mm(rows, weights, offs=ends), (rows, weights), torch.zeros_like(rows))
        except (RuntimeError, NotImplementedError):
            return False
    return True
