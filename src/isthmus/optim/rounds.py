"""A group's parameters as several ranks work on them: who owns which blocks, and in what rounds they travel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import add
from typing import Any

import torch
from torch import Tensor

from isthmus.optim.blocks import Blocks
from isthmus.optim.collectives import Collectives
from isthmus.optim.exchange import Exchange, held_by_all
from isthmus.optim.owners import Box, as_stack, divide
from isthmus.optim.tiles import MOST_ELEMENTS, Stack, Tile, stack_up

MOST_HELD = 4
"""Weights of a round at one rank, in units of ``MOST_ELEMENTS``: gradients and changes of so many travel at once."""


@dataclass(frozen=True)
class Round:
    """Parameters whose blocks travel at once.

    Attributes:
        stacks: This rank's own blocks of them.
        exchange: Brings them.
        tiles: Of each of this rank's tiles, as ``exchange`` counts them, the stack and the place in it.
    """

    stacks: tuple[Stack, ...]
    exchange: Exchange
    tiles: tuple[tuple[int, int], ...]

    def step(
        self,
        held: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        blocks: Sequence[Blocks],
        group: Mapping[str, Any],
    ) -> None:
        """Let owners direct their blocks, and all holders move their weights.

        Args:
            held: This rank's part of every parameter.
            gradients: And of its gradient.
            blocks: The state of each of this rank's stacks.
            group: Settings.
        """
        stacked = [stack.empty() for stack in self.stacks]
        places = self._by_tile([stack.divided(each) for stack, each in zip(self.stacks, stacked, strict=True)])
        self.exchange.to_owners(gradients, places)
        counted = []
        for stack, own, directions in zip(self.stacks, blocks, stacked, strict=True):
            counted.append(stack.divided(own.direct(directions, group["betas"], group["eps"])))
        moved, changes = [], []
        for parameter, transfer, change, flags in self.exchange.to_holders(places, self._by_tile(counted)):
            weights = as_stack(held[parameter])[transfer.in_part]
            if group["weight_decay"]:
                change.addcmul_(weights.float(), flags, value=group["weight_decay"])
            moved.append(weights)
            changes.append(change.mul_(group["lr"]))
        if moved:
            torch._foreach_sub_(moved, changes)

    def _by_tile(self, of_stacks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return [of_stacks[stack][place] for stack, place in self.tiles]


def plan_rounds(
    parameters: Sequence[Tensor], tiles: Sequence[Tile], collectives: Collectives, loads: list[int]
) -> Iterator[Round]:
    """Divide parameters among ranks, in rounds. All ranks make the call; ``loads`` is what each has of other groups."""
    counts = [parameter.shape[0] if parameter.ndim == 3 else 1 for parameter in parameters]
    owned = divide(tiles, counts, loads)
    held = held_by_all({place: collectives.part_of(each) for place, each in enumerate(parameters)}, collectives)
    devices = [parameter.device for parameter in parameters]
    ends = _ends(parameters, held)
    for _, group in groupby(range(len(parameters)), key=lambda place: ends[place]):
        places = set(group)
        in_round = [[tile for tile in own if tile.parameter in places] for own in owned]
        boxes = [{place: box for place, box in each.items() if place in places} for each in held]
        stacks = stack_up(in_round[collectives.rank], devices)
        found = {
            id(tile): (index, place) for index, stack in enumerate(stacks) for place, tile in enumerate(stack.tiles)
        }
        exchange = Exchange(in_round, boxes, collectives, devices[min(places)])
        yield Round(tuple(stacks), exchange, tuple(found[id(tile)] for tile in in_round[collectives.rank]))


def _ends(parameters: Sequence[Tensor], held: Sequence[Mapping[int, Box]]) -> list[tuple[int, torch.device]]:
    """The round of each parameter; one device a round.

    A round has ``MOST_ELEMENTS`` to work on for each rank, and at none more than ``MOST_HELD`` times as many to move.
    """
    ends: list[tuple[int, torch.device]] = []
    number, taken, moved = 0, 0, [0] * len(held)
    for place, parameter in enumerate(parameters):
        here = [boxes[place].size if place in boxes else 0 for boxes in held]
        full = taken + parameter.numel() > MOST_ELEMENTS * len(held) or max(map(add, moved, here)) > (
            MOST_ELEMENTS * MOST_HELD
        )
        if taken and (full or parameter.device != ends[-1][1]):
            number, taken, moved = number + 1, 0, [0] * len(held)
        taken, moved = taken + parameter.numel(), [*map(add, moved, here)]
        ends.append((number, parameter.device))
    return ends
