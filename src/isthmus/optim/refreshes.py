"""When which blocks are refreshed, and by whom: no step and no owner carries the whole cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from isthmus.optim.tiles import Stack


class Collectives(Protocol):
    """What an optimizer asks of the processes that hold the same parameters and see the same gradients."""

    @property
    def rank(self) -> int:
        """This process's number."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many processes there are."""
        ...

    def broadcast(self, tensors: Sequence[Tensor], owner: int) -> None:
        """Give ``tensors``, of the same shapes on all ranks, the values that rank ``owner`` has, in place."""
        ...


class Alone:
    """The collectives of a single process."""

    rank = 0
    num_ranks = 1

    def broadcast(self, tensors: Sequence[Tensor], owner: int) -> None:
        """Nobody else is there."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Blocks of one stack that are refreshed at once, by one owner."""

    stack: int
    part: slice
    owner: int


def plan_refreshes(stacks: Sequence[Stack], *, every: int, owners: int) -> list[list[Refresh]]:
    """What is refreshed in each of ``every`` turns.

    The blocks, in order, are cut into turns of equal cost, and each turn into owners' shares of equal cost; the cost of
    a block is its rows' and columns' cubes.
    """
    costs = [sum(side**3 for side in stack.shape[1:]) for stack in stacks]
    total = sum(cost * stack.blocks for cost, stack in zip(costs, stacks, strict=True))
    turns: list[list[Refresh]] = [[] for _ in range(every)]
    before = 0
    for index, (cost, stack) in enumerate(zip(costs, stacks, strict=True)):
        places = [
            (2 * before + (2 * block + 1) * cost) * every * owners // (2 * total) for block in range(stack.blocks)
        ]
        for place, part in _runs(places):
            turns[place // owners].append(Refresh(index, part, place % owners))
        before += cost * stack.blocks
    return turns


def _runs(places: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Ranges of equal neighbours."""
    first = 0
    for stop in range(1, len(places) + 1):
        if stop == len(places) or places[stop] != places[first]:
            yield places[first], slice(first, stop)
            first = stop
