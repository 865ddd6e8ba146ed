"""Parts of tensors: what one process has, or wants, of a tensor that several processes divide among themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from isthmus.errors import ShapeError


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


@dataclass(frozen=True)
class Later:
    """A tensor that is made when it is needed, and not kept."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]


def rows_part(rows: Tensor, *, first: int, of: int) -> Part:
    """Rows [k, n] of a matrix of ``of`` rows, from row ``first`` on."""
    return Part((of, rows.shape[1]), (first, 0), rows)


class Boxes(Protocol):
    """Reads boxes of stored tensors."""

    def read(self, wanted: Iterable[tuple[Stored, Part]]) -> None:
        """Give each part its values from its tensor, of the same shape."""
        ...


@dataclass(frozen=True)
class Stored:
    """A tensor on the disk, of which nothing has been read yet."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: Boxes


Source = Tensor | Part | Stored
"""Where values come from: a whole tensor, the same box of one, or the disk."""


@torch.no_grad()
def fill(pairs: Iterable[tuple[Source, Part]]) -> None:
    """Give parts their values.

    A whole tensor may be of another shape than the part's, if both have as many elements: of rows, say.

    Raises:
        ShapeError: A tensor has another number of elements, or a box is another one.
        CheckpointError: What is stored cannot be read.
    """
    stored: dict[int, list[tuple[Stored, Part]]] = {}
    for source, part in pairs:
        match source:
            case Stored():
                _require_same(source.shape == part.shape, source.shape, part)
                stored.setdefault(id(source.boxes), []).append((source, part))
            case Part():
                same = source.shape == part.shape and source.local.shape == part.local.shape
                _require_same(same and (part.is_empty or source.offsets == part.offsets), source.shape, part)
                part.local.copy_(source.local)
            case _ if not part.is_empty:
                _require_same(source.numel() == torch.Size(part.shape).numel(), source.shape, part)
                part.local.copy_(source.reshape(part.shape)[part.box])
    for wanted in stored.values():
        wanted[0][0].boxes.read(wanted)


def _require_same(fits: bool, got: tuple[int, ...], part: Part) -> None:
    if not fits:
        raise ShapeError("a stored tensor does not fit", got=tuple(got), wanted=part.shape)
