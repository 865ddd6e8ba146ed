"""Blocks on their way: gradients to the ranks that work on them, and changes to all that hold the weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from isthmus.optim.collectives import Collectives
from isthmus.optim.owners import Box, Transfer, as_stack, box_of, plan
from isthmus.optim.tiles import Tile
from isthmus.parts import Part


class Exchange:
    """Between what ranks hold of some parameters and the tiles that they own. All ranks make every call.

    Args:
        owned: Every rank's tiles.
        held: What every rank holds, by parameter.
        collectives: The ranks.
        device: Where the tensors lie.
    """

    def __init__(
        self,
        owned: Sequence[Sequence[Tile]],
        held: Sequence[Mapping[int, Box]],
        collectives: Collectives,
        device: torch.device,
    ) -> None:
        self._device = device
        self._inward = _Way(plan(owned, held, outward=False), collectives)
        self._outward = _Way(plan(owned, held, outward=True), collectives)

    @torch.no_grad()
    def to_owners(self, held: Sequence[Tensor | None], tiles: Sequence[Tensor]) -> None:
        """Fill this rank's tiles [count, rows, columns] of what all ranks hold; zeros where there is nothing.

        Args:
            held: This rank's part of each parameter's gradient.
            tiles: In fp32.
        """

        def has(transfer: Transfer) -> Iterator[Tensor]:
            tensor = held[transfer.parameter]
            if tensor is None:
                yield torch.zeros(transfer.size, dtype=torch.float32, device=self._device)
            else:
                yield as_stack(tensor)[transfer.in_part].float()

        for transfer, values in self._inward.go(has, lambda transfer: transfer.size, self._device):
            place = tiles[transfer.tile][transfer.in_tile]
            place.copy_(values.view(place.shape))

    @torch.no_grad()
    def to_holders(
        self, tiles: Sequence[Tensor], counted: Sequence[Tensor]
    ) -> Iterator[tuple[int, Transfer, Tensor, Tensor]]:
        """What of all owners' tiles this rank holds: parameter, where, the values and a flag for each of the matrices.

        Args:
            tiles: This rank's.
            counted: Their flags, [count, 1, 1].
        """

        def has(transfer: Transfer) -> Iterator[Tensor]:
            yield tiles[transfer.tile][transfer.in_tile]
            yield counted[transfer.tile][transfer.in_tile[0]]

        def size(transfer: Transfer) -> int:
            return transfer.size + _matrices(transfer)

        for transfer, values in self._outward.go(has, size, self._device):
            shape = [each.stop - each.start for each in transfer.in_part]
            yield (
                transfer.parameter,
                transfer,
                values[: transfer.size].view(shape),
                values[transfer.size :].view(-1, 1, 1),
            )


class _Way:
    """One direction: what this rank keeps, sends and gets."""

    def __init__(self, transfers: Sequence[Transfer], collectives: Collectives) -> None:
        self._collectives, own = collectives, collectives.rank
        self._any = any(each.source != each.target for each in transfers)
        self._kept: list[Transfer] = []
        self._sent: list[list[Transfer]] = [[] for _ in range(collectives.num_ranks)]
        self._arriving: list[list[Transfer]] = [[] for _ in range(collectives.num_ranks)]
        for each in transfers:
            if each.source == each.target == own:
                self._kept.append(each)
            elif each.source == own:
                self._sent[each.target].append(each)
            elif each.target == own:
                self._arriving[each.source].append(each)

    def go(
        self, has: Callable[[Transfer], Iterator[Tensor]], size: Callable[[Transfer], int], device: torch.device
    ) -> Iterator[tuple[Transfer, Tensor]]:
        """Send what ``has`` gives for each transfer; what this rank gets, as vectors of ``size`` elements."""
        for transfer in self._kept:
            yield transfer, torch.cat([each.reshape(-1) for each in has(transfer)])
        if not self._any:
            return
        pieces = [each.reshape(-1) for to in self._sent for transfer in to for each in has(transfer)]
        sent = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.float32, device=device)
        sizes, arriving = ([sum(map(size, each)) for each in way] for way in (self._sent, self._arriving))
        got = self._collectives.exchange(sent, sizes, arriving)
        transfers = [transfer for each in self._arriving for transfer in each]
        yield from zip(transfers, got.split_with_sizes([*map(size, transfers)]), strict=True)


def held_by_all(parts: Mapping[int, Part], collectives: Collectives) -> list[dict[int, Box]]:
    """What every rank holds, by parameter."""
    boxes = {place: box_of(part) for place, part in parts.items()}
    told = collectives.collect(json.dumps({place: box.sides for place, box in boxes.items() if box}).encode())
    return [{int(place): _box(sides) for place, sides in json.loads(each).items()} for each in told]


def _box(sides: Sequence[Sequence[int]]) -> Box:
    first, second, third = ((int(start), int(stop)) for start, stop in sides)
    return Box((first, second, third))


def _matrices(transfer: Transfer) -> int:
    matrices = transfer.in_tile[0]
    return int(matrices.stop - matrices.start)
