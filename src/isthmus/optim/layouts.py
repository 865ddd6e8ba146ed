"""What of a group's parameters is cut into which blocks, and where their state is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus.optim.blocks import Blocks, state_shapes
from isthmus.optim.collectives import Collectives
from isthmus.optim.rounds import Round, plan_rounds
from isthmus.optim.settings import split
from isthmus.optim.tiles import Stack, Tile, cut, stack_up
from isthmus.optim.vectors import adamw_shapes
from isthmus.parts import Part


class Layout:
    """A group's parameters: which are vectors, and how the others are cut; of several processes, who owns what.

    ``stacks`` are this process's own, ``whole`` those of a single one. ``begun`` says whether blocks have state.
    """

    def __init__(self, group: Mapping[str, Any], max_block: int, collectives: Collectives, loads: list[int]) -> None:
        self.parameters, self.vectors = split(group)
        tiles = [*cut([parameter.shape for parameter in self.parameters], max_block)]
        self.whole: list[Stack] = stack_up(tiles, [parameter.device for parameter in self.parameters])
        self.stacks: list[Stack] = self.whole
        self.rounds: list[Round] | None = None
        if collectives.num_ranks > 1:
            self.rounds = [*plan_rounds(self.parameters, tiles, collectives, loads)] if tiles else []
            self.stacks = [stack for each in self.rounds for stack in each.stacks]
        self.blocks: list[Blocks | None] = [None] * len(self.stacks)
        self.begun = False
        self._own = {(tile.parameter, tile.index): tile for stack in self.stacks for tile in stack.tiles}

    def whole_tiles(self) -> Iterator[Tile]:
        """All tiles, whoever owns them."""
        for stack in self.whole:
            yield from stack.tiles

    def parts_of(self, tile: Tile, state: Mapping[str, Tensor]) -> dict[str, Part]:
        """What this process has of a tile's state."""
        own, parts = self._own.get((tile.parameter, tile.index)), {}
        for name, shape in state_shapes(tile.count, *tile.shape).items():
            first = 0 if own is None else own.matrices.start - tile.matrices.start
            local = torch.empty((0, *shape[1:]), dtype=torch.float32) if own is None else state[key_of(name, tile)]
            parts[key_of(name, tile)] = Part(shape, (first,) + (0,) * (len(shape) - 1), local)
        return parts

    def state_shapes(self) -> dict[Tensor, dict[str, tuple[int, ...]]]:
        """What each parameter's state may hold."""
        shapes = {each: adamw_shapes(each) for each in self.vectors}
        for tile in self.whole_tiles():
            own = shapes.setdefault(self.parameters[tile.parameter], {})
            own |= {key_of(name, tile): shape for name, shape in state_shapes(tile.count, *tile.shape).items()}
        return shapes


def key_of(name: str, tile: Tile) -> str:
    """Under what name a parameter's state has a tile's tensor."""
    return f"{name}.{tile.index}" if tile.index else name
