"""Slow state as it is saved: by entry name; of several ranks as parts, of which any number of ranks can go on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.fragments import Entry
from isthmus.island import Ranks
from isthmus.parts import Part, fill, rows_part
from isthmus.rows import share
from isthmus.session.groups import Matrices, in_order, named


def rows_to_save(entries: Iterable[Entry], matrices: Matrices, ranks: Ranks) -> Mapping[str, Tensor | Part]:
    """Entries' rows by name: whole tensors in the entries' shapes where there is one rank, else this rank's parts."""
    return named(matrices) if ranks.size == 1 else row_parts(entries, matrices, ranks)


def row_parts(entries: Iterable[Entry], matrices: Matrices, ranks: Ranks) -> dict[str, Part]:
    """This rank's rows of every entry by name, also of those of which it has none."""
    own = {entry.name: rows for entry, rows in in_order(matrices)}
    parts = {}
    for entry in entries:
        its = share(entry.rows, entry.row_length, rank=ranks.rank, size=ranks.size)
        rows = own.get(entry.name, torch.empty(0, entry.row_length))
        parts[entry.name] = rows_part(rows, first=its.start, of=entry.rows)
    return parts


def take(kind: str, parts: Mapping[str, Part], stored: Mapping[str, Any]) -> None:
    """Fill parts with what is stored under their names; ``kind`` says what they are.

    Raises:
        ShapeError: Something is missing, too many, or of another shape.
    """
    for name in sorted(parts.keys() | stored.keys()):
        mine = parts[name].shape if name in parts else "nothing"
        theirs = tuple(stored[name].shape) if name in stored else "nothing"
        if mine != theirs and not (isinstance(mine, tuple) and isinstance(theirs, tuple) and _same_rows(mine, theirs)):
            raise ShapeError(
                f"the checkpoint is of another model: it differs in the {kind} weights of '{name}'",
                got=theirs,
                wanted=mine,
                mend="Build the model that the checkpoint was made of, or start from an empty directory.",
            )
    fill((stored[name], part) for name, part in parts.items())


def _same_rows(rows: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has so many rows of such a length."""
    return rows == (math.prod(shape[:-1]), shape[-1] if shape else 1)
