"""Values for parts of tensors, from wherever they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.parts import Part


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
                _require_same(source.shape == part.shape and source.local.shape == part.local.shape, source.shape, part)
                part.local.copy_(source.local)
            case _ if not part.is_empty:
                _require_same(source.numel() == torch.Size(part.shape).numel(), source.shape, part)
                part.local.copy_(source.reshape(part.shape)[part.box])
    for wanted in stored.values():
        wanted[0][0].boxes.read(wanted)


def _require_same(fits: bool, got: tuple[int, ...], part: Part) -> None:
    if not fits:
        raise ShapeError("a stored tensor does not fit", got=tuple(got), wanted=part.shape)
