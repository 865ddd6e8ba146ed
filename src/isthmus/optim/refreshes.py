"""When which blocks are refreshed: no step carries the whole cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isthmus.optim.tiles import Stack


@dataclass(frozen=True, slots=True)
class Refresh:
    """Blocks of one stack that are refreshed at once."""

    stack: int
    part: slice


def plan_refreshes(stacks: Sequence[Stack], *, every: int) -> list[list[Refresh]]:
    """What is refreshed in each of ``every`` turns: the blocks, in order, are cut into turns of equal cost."""
    turns: list[list[Refresh]] = [[] for _ in range(every)]
    for index, places in enumerate(_turns_of(stacks, every)):
        for turn, part in _runs(places):
            turns[turn].append(Refresh(index, part))
    return turns


def plan_share(own: Sequence[Sequence[Stack]], whole: Sequence[Sequence[Stack]], *, every: int) -> list[list[Refresh]]:
    """``plan_refreshes`` for the blocks that one rank owns, each in the turn that it has in one process.

    Args:
        own: The rank's stacks by group of parameters; refreshes count them end to end.
        whole: All blocks, as one process stacks them up, by group.
        every: So many turns.
    """
    found: dict[tuple[int, int, int, int], int] = {}
    flat = [(group, stack) for group, stacks in enumerate(whole) for stack in stacks]
    for (group, stack), places in zip(flat, _turns_of([stack for _, stack in flat], every), strict=True):
        found |= {(group, *block): place for block, place in zip(_blocks(stack), places, strict=True)}
    turns: list[list[Refresh]] = [[] for _ in range(every)]
    mine = [(group, stack) for group, stacks in enumerate(own) for stack in stacks]
    for index, (group, stack) in enumerate(mine):
        for turn, part in _runs([found[group, *block] for block in _blocks(stack)]):
            turns[turn].append(Refresh(index, part))
    return turns


def _turns_of(stacks: Sequence[Stack], every: int) -> Iterator[list[int]]:
    """The turn of each block of each stack; the cost of a block is its rows' and columns' cubes."""
    costs = [sum(side**3 for side in stack.shape[1:]) for stack in stacks]
    total = sum(cost * stack.blocks for cost, stack in zip(costs, stacks, strict=True))
    before = 0
    for cost, stack in zip(costs, stacks, strict=True):
        yield [(2 * before + (2 * block + 1) * cost) * every // (2 * total) for block in range(stack.blocks)]
        before += cost * stack.blocks


def _blocks(stack: Stack) -> Iterator[tuple[int, int, int]]:
    """Parameter, tile and matrix of each block."""
    for tile in stack.tiles:
        yield from ((tile.parameter, tile.index, matrix) for matrix in range(tile.matrices.start, tile.matrices.stop))


def _runs(places: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Ranges of equal neighbours."""
    first = 0
    for stop in range(1, len(places) + 1):
        if stop == len(places) or places[stop] != places[first]:
            yield places[first], slice(first, stop)
            first = stop
