"""Boxes of tensors: what one process has, or wants, of a tensor that several processes divide among themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A box of a tensor.

    Attributes:
        shape: That of the whole tensor.
        offsets: Where the box begins, per dimension.
        local: Its values; without elements where this process has nothing of the tensor.
        is_copy: Whether all processes have the same, so that one of them is enough to save it.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: Tensor
    is_copy: bool = False

    @classmethod
    def whole(cls, tensor: Tensor) -> Part:
        """All of a tensor, of which every process has the same."""
        return cls(tuple(tensor.shape), (0,) * tensor.ndim, tensor, is_copy=True)

    @property
    def box(self) -> tuple[slice, ...]:
        """Where in the whole tensor the values belong."""
        sizes = zip(self.offsets, self.local.shape, strict=True)
        return tuple(slice(first, first + length) for first, length in sizes)

    @property
    def is_empty(self) -> bool:
        """Whether this process has nothing of the tensor."""
        return self.local.numel() == 0

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor."""
        return int(torch.Size(self.shape).numel()) * self.local.dtype.itemsize

    def without_values(self) -> Part:
        """The same tensor, of which this process has nothing."""
        return replace(self, local=self.local.new_empty((0,) * max(1, len(self.shape))))


def rows_part(rows: Tensor, *, first: int, of: int) -> Part:
    """Rows [k, n] of a matrix of ``of`` rows, from row ``first`` on."""
    return Part((of, rows.shape[1]), (first, 0), rows)
