"""Which rank works on which blocks, and how gradients and changes travel between it and the ranks that hold them.

Pure: everything here follows from shapes and from what each rank holds, so that all ranks plan alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from isthmus.optim.tiles import Tile
from isthmus.parts import Part

Range = tuple[int, int]
Region = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class Box:
    """Matrices, rows and columns of a parameter, each from a first one to before a last one."""

    sides: tuple[Range, Range, Range]

    @property
    def size(self) -> int:
        """Elements."""
        first, second, third = (stop - start for start, stop in self.sides)
        return first * second * third

    def meet(self, other: Box) -> Box | None:
        """What both have in common, if anything."""
        sides = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.sides, other.sides, strict=True)]
        return Box((sides[0], sides[1], sides[2])) if all(start < stop for start, stop in sides) else None

    def within(self, outer: Box) -> Region:
        """Where it lies in a tensor that holds another box."""
        begins = (begin for begin, _ in outer.sides)
        first, second, third = (slice(a - c, b - c) for (a, b), c in zip(self.sides, begins, strict=True))
        return first, second, third


@dataclass(frozen=True, slots=True)
class Transfer:
    """A box that goes from one rank to another.

    Attributes:
        source: Which rank has it.
        target: Which rank gets it.
        parameter: Of which parameter, by its place.
        tile: In which of its owner's tiles, by its place.
        in_part: Where it lies in what the holder has of the parameter.
        in_tile: Where it lies in the tile.
        size: Elements.
    """

    source: int
    target: int
    parameter: int
    tile: int
    in_part: Region
    in_tile: Region
    size: int


def divide(tiles: Sequence[Tile], counts: Sequence[int], loads: list[int]) -> list[list[Tile]]:
    """Divide tiles among ranks.

    Stacks of at least as many matrices as ranks are divided as ``torch.chunk`` would, as FSDP2 and expert parallelism
    divide them: there, most blocks lie where they are worked on. Single matrices go to the ranks that have the least to
    keep, the largest first.

    Args:
        tiles: All tiles of some parameters.
        counts: Matrices of each parameter.
        loads: What each rank has already; what it gets is added.
    """
    owned: list[list[tuple[int, Tile]]] = [[] for _ in loads]
    for place in sorted(range(len(tiles)), key=lambda place: (-_weight(tiles[place]), place)):
        tile = tiles[place]
        for rank, matrices in _divided(tile, counts[tile.parameter], loads):
            own = replace(tile, matrices=matrices, whole=tile.whole)
            loads[rank] += _weight(own)
            owned[rank].append((place, own))
    return [[tile for _, tile in sorted(own, key=lambda each: each[0])] for own in owned]


def plan(owned: Sequence[Sequence[Tile]], held: Sequence[Mapping[int, Box]], *, outward: bool) -> list[Transfer]:
    """Every box between holders and owners, in an order that all ranks find.

    Args:
        owned: Every rank's tiles.
        held: What every rank holds, by parameter.
        outward: From owners to all holders; otherwise to owners, from one holder of each box: the owner itself where
            it can be.
    """
    holders: dict[int, dict[Box, list[int]]] = {}
    for rank, boxes in enumerate(held):
        for parameter, box in boxes.items():
            holders.setdefault(parameter, {}).setdefault(box, []).append(rank)
    return [*_transfers(owned, holders, outward=outward)]


def box_of(part: Part) -> Box | None:
    """What a rank holds of a matrix or a stack of them; None if nothing."""
    if part.is_empty:
        return None
    sides = [(0, 1)] * (3 - len(part.shape)) + [(each.start, each.stop) for each in part.box]
    return Box((sides[0], sides[1], sides[2]))


def as_stack(tensor: Tensor) -> Tensor:
    """A matrix or a stack of them with three dimensions."""
    return tensor if tensor.ndim == 3 else tensor.unsqueeze(0)


def tile_box(tile: Tile) -> Box:
    """Where a tile lies in its parameter."""
    first, second, third = ((each.start, each.stop) for each in (tile.matrices, tile.rows, tile.columns))
    return Box((first, second, third))


def _transfers(
    owned: Sequence[Sequence[Tile]], holders: Mapping[int, Mapping[Box, list[int]]], *, outward: bool
) -> Iterator[Transfer]:
    for owner, tiles in enumerate(owned):
        for place, tile in enumerate(tiles):
            whole = tile_box(tile)
            for box, ranks in holders[tile.parameter].items():
                both = whole.meet(box)
                if both is None:
                    continue
                facts = (tile.parameter, place, both.within(box), both.within(whole), both.size)
                if outward:
                    yield from (Transfer(owner, rank, *facts) for rank in ranks)
                else:
                    yield Transfer(owner if owner in ranks else ranks[(owner + place) % len(ranks)], owner, *facts)


def _divided(tile: Tile, count: int, loads: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Ranks and the matrices that are theirs."""
    if count >= len(loads):
        most = -(-count // len(loads))
        for rank in range(len(loads)):
            first, stop = max(tile.matrices.start, rank * most), min(tile.matrices.stop, (rank + 1) * most)
            if first < stop:
                yield rank, slice(first, stop)
        return
    lightest = sorted(range(len(loads)), key=lambda rank: (loads[rank], rank))
    for rank, matrix in zip(lightest, range(tile.matrices.start, tile.matrices.stop), strict=False):
        yield rank, slice(matrix, matrix + 1)


def _weight(tile: Tile) -> int:
    """Elements of its state."""
    rows, columns = tile.shape
    return 2 * tile.count * (rows * columns + rows * rows + columns * columns)
