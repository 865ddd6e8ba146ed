"""What an optimizer asks of the processes that train one model together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from isthmus.parts import Part


class Collectives(Protocol):
    """All processes of a training, each of which holds parts of the parameters, or all of them; all make every call.

    ``isthmus.island.RankCollectives`` is that of torch's default process group.
    """

    @property
    def rank(self) -> int:
        """This process's number."""
        ...

    @property
    def num_ranks(self) -> int:
        """How many processes there are."""
        ...

    def part_of(self, tensor: Tensor) -> Part:
        """What this process holds of a parameter; its memory."""
        ...

    def local(self, tensor: Tensor) -> Tensor:
        """The same of a parameter or a gradient, without saying where in it that lies."""
        ...

    def collect(self, own: bytes) -> list[bytes]:
        """What each process gave, at every one."""
        ...

    def exchange(self, sent: Tensor, sizes: Sequence[int], arriving: Sequence[int]) -> Tensor:
        """Give every process a piece of a vector, and get one from each.

        Args:
            sent: The pieces end to end, in the order of ranks.
            sizes: Their elements.
            arriving: Elements of the pieces that come.

        Returns:
            Those, end to end, in the order of ranks.
        """
        ...


class Alone:
    """The collectives of a single process."""

    rank = 0
    num_ranks = 1

    def part_of(self, tensor: Tensor) -> Part:
        """All of it."""
        return Part.whole(tensor.detach())

    def local(self, tensor: Tensor) -> Tensor:
        """All of it."""
        return tensor.detach()

    def collect(self, own: bytes) -> list[bytes]:
        """Its own."""
        return [own]

    def exchange(self, sent: Tensor, sizes: Sequence[int], arriving: Sequence[int]) -> Tensor:
        """Its own."""
        return sent
