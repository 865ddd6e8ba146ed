"""Torch's default process group as an optimizer sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor

from isthmus.island.held import local_part, part_of
from isthmus.island.ranks import TorchRanks, num_ranks
from isthmus.optim import Collectives
from isthmus.parts import Part


class RankCollectives:
    """All ranks of torch's default process group; ``isthmus.optim.Shampoo`` divides its work among them."""

    def __init__(self) -> None:
        self._ranks = TorchRanks()
        self.rank, self.num_ranks = self._ranks.rank, self._ranks.size

    def part_of(self, tensor: Tensor) -> Part:
        """See ``Collectives.part_of``."""
        return part_of(tensor)

    def local(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.local``."""
        return local_part(tensor)

    def collect(self, own: bytes) -> list[bytes]:
        """See ``Collectives.collect``."""
        return self._ranks.collect(own)

    def exchange(self, sent: Tensor, sizes: Sequence[int], arriving: Sequence[int]) -> Tensor:
        """See ``Collectives.exchange``."""
        out = sent.new_empty(sum(arriving))
        dist.all_to_all_single(out, sent, [*arriving], [*sizes])
        return out

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """The ranks of the process that it comes to."""
        return type(self), ()

    def __deepcopy__(self, memo: Any) -> Self:
        """The same ranks."""
        return self


def open_collectives() -> Collectives | None:
    """The ranks of torch's default process group if there are several."""
    return RankCollectives() if num_ranks() > 1 else None
