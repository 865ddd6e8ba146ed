"""How slow state lies in memory: a fragment's entries that are treated alike are one matrix of rows.

Matrices are worked on in pieces, some entries or some rows of one, that fit a processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.codec import Slice, rows_at_once
from isthmus.fragments import Entry, Kind, Policy
from isthmus.rows import share
from isthmus.session.memories import new_rows


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one entry."""

    entry: Entry
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a group that are worked on at once, and whose they are, end to end."""

    rows: slice
    spans: tuple[Span, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Of these rows as a matrix."""
        return self.rows.stop - self.rows.start, self.spans[0].entry.row_length

    def slices(self, parts: Mapping[str, Slice]) -> list[Slice]:
        """Where these rows lie in a payload; ``parts`` are the entries' slices by name."""
        return [parts[span.entry.name].part(span.first, span.rows) for span in self.spans]


@dataclass(frozen=True, eq=False)
class Group:
    """Entries of one fragment, kind, policy, row length and device; their rows, end to end, are a matrix."""

    entries: tuple[Entry, ...]
    pieces: tuple[Piece, ...]
    device: torch.device

    @property
    def kind(self) -> Kind:
        """What the entries are to the optimizer."""
        return self.entries[0].kind

    @property
    def policy(self) -> Policy:
        """How the entries are coded."""
        return self.entries[0].policy

    def empty(self) -> Tensor:
        """A new matrix without values."""
        rows = sum(entry.rows for entry in self.entries)
        return new_rows((rows, self.entries[0].row_length), self.device)


Matrices = dict[Group, Tensor]
"""A matrix for each group of a fragment, or for those of its groups that have one."""


def group_entries(entries: Sequence[Entry], device_of: Callable[[str], torch.device]) -> tuple[Group, ...]:
    """Group a fragment's entries; ``device_of`` says where the tensor of a name lies."""
    alike: dict[tuple[Kind, Policy, int, torch.device], list[Entry]] = {}
    for entry in entries:
        alike.setdefault((entry.kind, entry.policy, entry.row_length, device_of(entry.name)), []).append(entry)
    groups = []
    for (_, _, row_length, device), members in alike.items():
        rows = sum(entry.rows for entry in members)
        num_pieces = max(1, round(rows / rows_at_once(row_length, device)))
        most_rows = -(-rows // num_pieces)
        spans = [span for entry in members for span in _spans(entry, most_rows)]
        groups.append(Group(tuple(members), tuple(_pieces(spans, most_rows)), device))
    return tuple(groups)


def own_entries(entries: Sequence[Entry], rank: int, size: int) -> list[Entry]:
    """What a rank has of these entries: each as a matrix of its share of the rows, where it has any."""
    if size == 1:
        return list(entries)
    own = []
    for entry in entries:
        rows = share(entry.rows, entry.row_length, rank=rank, size=size)
        if rows.start < rows.stop:
            own.append(replace(entry, shape=(rows.stop - rows.start, entry.row_length)))
    return own


def rows_of(matrices: Mapping[Group, Tensor] | None, group: Group, piece: Piece) -> Tensor | None:
    """A piece's rows, if its group has a matrix."""
    matrix = None if matrices is None else matrices.get(group)
    return None if matrix is None else matrix[piece.rows]


def in_order(matrices: Mapping[Group, Tensor]) -> list[tuple[Entry, Tensor]]:
    """A fragment's entries in name order, with views of their rows."""
    parts = []
    for group, matrix in matrices.items():
        first = 0
        for entry in group.entries:
            parts.append((entry, matrix[first : first + entry.rows]))
            first += entry.rows
    return sorted(parts, key=lambda part: part[0].name)


def named(matrices: Mapping[Group, Tensor]) -> dict[str, Tensor]:
    """Views of a fragment's matrices by entry name, in the entries' shapes and in name order."""
    return {entry.name: rows.view(entry.shape) for entry, rows in in_order(matrices)}


@torch.no_grad()
def stack(groups: Sequence[Group], tensors: Mapping[str, Tensor]) -> Matrices:
    """New matrices that hold ``tensors``, one of each entry's name and size."""
    matrices = {group: group.empty() for group in groups}
    for name, view in named(matrices).items():
        view.copy_(tensors[name].reshape(view.shape))
    return matrices


class Scratch:
    """Memory for one piece after the other, which so stays in a processor's cache.

    Args:
        groups: Whose pieces.
        count: How many matrices are needed at once.
    """

    def __init__(self, groups: Sequence[Group], count: int) -> None:
        self._flat: dict[torch.device, list[Tensor]] = {}
        for device in {group.device for group in groups}:
            shapes = [piece.shape for group in groups if group.device == device for piece in group.pieces]
            size = max(rows * row_length for rows, row_length in shapes)
            self._flat[device] = [new_rows((size,), device) for _ in range(count)]

    def matrices(self, group: Group, piece: Piece) -> list[Tensor]:
        """Matrices for a piece, without values; they hold until the next piece's are taken."""
        rows, row_length = piece.shape
        return [flat[: rows * row_length].view(rows, row_length) for flat in self._flat[group.device]]


def _spans(entry: Entry, most_rows: int) -> Iterator[Span]:
    for first in range(0, entry.rows, most_rows):
        yield Span(entry, first, min(most_rows, entry.rows - first))


def _pieces(spans: Sequence[Span], most_rows: int) -> Iterator[Piece]:
    taken: list[Span] = []
    first = rows = 0
    for span in spans:
        if taken and rows + span.rows > most_rows:
            yield Piece(slice(first, first + rows), tuple(taken))
            taken, first, rows = [], first + rows, 0
        taken.append(span)
        rows += span.rows
    yield Piece(slice(first, first + rows), tuple(taken))
