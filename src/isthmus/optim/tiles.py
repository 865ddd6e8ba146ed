"""How matrices are cut into blocks, and blocks of one shape laid end to end so that they are worked on at once.

A parameter of two dimensions is a matrix, one of three a stack of separate matrices, as experts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

MOST_ELEMENTS = 1 << 25
"""Elements of blocks that are worked on at once: what a step takes beside its state is some times as much."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks of one shape in one parameter: the same rows and columns of some of its matrices.

    Attributes:
        parameter: Which parameter, by its place among those that were cut.
        index: Which of the parameter's tiles.
        matrices: Which of its matrices.
        rows: Their rows.
        columns: Their columns.
        whole: Which matrices all of the tile is of, if another rank has some of it.
    """

    parameter: int
    index: int
    matrices: slice
    rows: slice
    columns: slice
    whole: slice

    @property
    def count(self) -> int:
        """Number of blocks."""
        return _length(self.matrices)

    @property
    def shape(self) -> tuple[int, int]:
        """Of a block."""
        return _length(self.rows), _length(self.columns)

    def of(self, tensor: Tensor) -> Tensor:
        """The tile's part of a tensor of the parameter's shape, a view [count, rows, columns]."""
        matrices = tensor if tensor.ndim == 3 else tensor.unsqueeze(0)
        return matrices[self.matrices, self.rows, self.columns]


def cut(shapes: Sequence[torch.Size], max_block: int) -> Iterator[Tile]:
    """Cut parameters of these shapes into blocks of at most ``max_block`` rows and columns, all nearly equal."""
    for place, shape in enumerate(shapes):
        count = shape[0] if len(shape) == 3 else 1
        areas = list(product(_ranges(shape[-2], max_block), _ranges(shape[-1], max_block)))
        largest = max(_length(rows) * _length(columns) for rows, columns in areas)
        parts = _ranges(count, max(1, MOST_ELEMENTS // largest))
        for index, (matrices, (rows, columns)) in enumerate(product(parts, areas)):
            yield Tile(place, index, matrices, rows, columns, whole=matrices)


class Stack:
    """Tiles of one block shape on one device, end to end: [blocks, rows, columns].

    Args:
        tiles: The tiles.
        device: Where their parameters lie.
    """

    def __init__(self, tiles: Sequence[Tile], device: torch.device) -> None:
        self.tiles, self.device = tuple(tiles), device
        self._counts = [tile.count for tile in tiles]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return sum(self._counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a tensor that holds all blocks."""
        return (self.blocks, *self.tiles[0].shape)

    def empty(self) -> Tensor:
        """A tensor for all blocks, fp32, without values."""
        return torch.empty(self.shape, dtype=torch.float32, device=self.device)

    def divided(self, stacked: Tensor) -> tuple[Tensor, ...]:
        """Views of a tensor [blocks, ...], one for each tile."""
        return stacked.split_with_sizes(self._counts)

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The blocks of the parameters' tensors as one of fp32, zeros where there is none."""
        stacked = self.empty()
        found, places = [], []
        for tile, place in zip(self.tiles, self.divided(stacked), strict=True):
            tensor = tensors[tile.parameter]
            if tensor is None:
                place.zero_()
            else:
                found.append(tile.of(tensor))
                places.append(place)
        torch._foreach_copy_(places, found)
        return stacked

    def subtract(self, tensors: Sequence[Tensor], stacked: Tensor) -> None:
        """Subtract blocks from the parameters, in place."""
        own = [tile.of(tensors[tile.parameter]) for tile in self.tiles]
        torch._foreach_sub_(own, self.divided(stacked))


def stack_up(tiles: Iterable[Tile], devices: Sequence[torch.device]) -> list[Stack]:
    """Put tiles together by block shape and device, as many as are worked on at once; ``devices`` by parameter."""
    alike: dict[tuple[tuple[int, int], torch.device], list[list[Tile]]] = {}
    for tile in tiles:
        piles = alike.setdefault((tile.shape, devices[tile.parameter]), [[]])
        if piles[-1] and sum(each.count for each in (*piles[-1], tile)) * _area(tile) > MOST_ELEMENTS:
            piles.append([])
        piles[-1].append(tile)
    return [Stack(pile, device) for (_, device), piles in alike.items() for pile in piles]


def _ranges(length: int, most: int) -> list[slice]:
    parts = -(-length // most)
    return [slice(first, stop) for first, stop in pairwise(length * part // parts for part in range(parts + 1))]


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _area(tile: Tile) -> int:
    rows, columns = tile.shape
    return rows * columns
