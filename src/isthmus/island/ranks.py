"""The processes of one island, as one of them sees the others.

Rank 0 is the gateway: it alone speaks to other islands. What all must do alike, they agree on through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from isthmus.rows import share


class Ranks(Protocol):
    """All ranks of an island; every call is made by all of them, in the same order."""

    @property
    def rank(self) -> int:
        """This process's number; 0 is the gateway."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def largest(self, *values: float) -> tuple[float, ...]:
        """The largest of all ranks' first values, of their second ones, and so on."""
        ...

    def total(self, *values: float) -> tuple[float, ...]:
        """The sum of all ranks' first values, of their second ones, and so on, in the order of ranks."""
        ...

    def collect(self, own: bytes) -> list[bytes]:
        """What each rank gave, at every rank."""
        ...

    def share(self, message: bytes, num_bytes: int) -> bytes:
        """The gateway's message of so many bytes, at every rank; what the others give is not looked at."""
        ...

    def gather(self, own: memoryview, sizes: Sequence[int]) -> list[memoryview]:
        """What each rank gave, at the gateway; nothing at the others. ``sizes`` are all ranks' bytes."""
        ...

    def scatter(self, parts: Sequence[memoryview], num_bytes: int) -> memoryview:
        """The part that the gateway has for this rank, of so many bytes."""
        ...

    def whole(self, own: Tensor, rows: int) -> Tensor:
        """All rows of a matrix [rows, n], of which each rank has its share, at every rank."""
        ...


class Alone:
    """The one process of an island that has no other."""

    rank = 0
    size = 1

    def largest(self, *values: float) -> tuple[float, ...]:
        """Its own."""
        return values

    def total(self, *values: float) -> tuple[float, ...]:
        """Its own."""
        return values

    def collect(self, own: bytes) -> list[bytes]:
        """Its own."""
        return [own]

    def share(self, message: bytes, num_bytes: int) -> bytes:
        """Its own."""
        return message

    def gather(self, own: memoryview, sizes: Sequence[int]) -> list[memoryview]:
        """Its own."""
        return [own]

    def scatter(self, parts: Sequence[memoryview], num_bytes: int) -> memoryview:
        """Its own."""
        return parts[0]

    def whole(self, own: Tensor, rows: int) -> Tensor:
        """Its own."""
        return own


class TorchRanks:
    """The ranks of torch's default process group.

    Small things are agreed on through a group of gloo, so that no device is waited for; rows go through the default
    group, whose backend is that of their device.
    """

    def __init__(self) -> None:
        self._control: dist.ProcessGroup = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def group(self) -> dist.ProcessGroup:
        """The group through which small things are agreed on."""
        return self._control

    def largest(self, *values: float) -> tuple[float, ...]:
        """See ``Ranks.largest``."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._control)
        return tuple(tensor.tolist())

    def total(self, *values: float) -> tuple[float, ...]:
        """See ``Ranks.total``."""
        each = torch.empty(self.size * len(values), dtype=torch.float64)
        _all_gather(each, torch.tensor(values, dtype=torch.float64), group=self._control)
        return tuple(float(sum(column)) for column in zip(*each.view(self.size, -1).tolist(), strict=True))

    def collect(self, own: bytes) -> list[bytes]:
        """See ``Ranks.collect``."""
        sizes = torch.empty(self.size, dtype=torch.int64)
        _all_gather(sizes, torch.tensor([len(own)]), group=self._control)
        most = int(sizes.max())
        if most == 0:
            return [b""] * self.size
        padded = _buffer(most)
        padded[: len(own)] = _bytes(own)
        every = _buffer(most * self.size)
        _all_gather(every, padded, group=self._control)
        parts = every.view(self.size, most).numpy()
        return [parts[rank, :size].tobytes() for rank, size in enumerate(sizes.tolist())]

    def share(self, message: bytes, num_bytes: int) -> bytes:
        """See ``Ranks.share``."""
        buffer = _bytes(message) if self.rank == 0 else _buffer(num_bytes)
        if num_bytes:
            dist.broadcast(buffer, src=0, group=self._control)
        return buffer.numpy().tobytes()

    def gather(self, own: memoryview, sizes: Sequence[int]) -> list[memoryview]:
        """See ``Ranks.gather``."""
        if self.rank:
            if own.nbytes:
                dist.send(_bytes(own), dst=0, group=self._control)
            return []
        parts = [own, *(memoryview(bytearray(size)) for size in sizes[1:])]
        for rank in range(1, self.size):
            if sizes[rank]:
                dist.recv(_bytes(parts[rank]), src=rank, group=self._control)
        return parts

    def scatter(self, parts: Sequence[memoryview], num_bytes: int) -> memoryview:
        """See ``Ranks.scatter``."""
        if self.rank:
            own = memoryview(bytearray(num_bytes))
            if num_bytes:
                dist.recv(_bytes(own), src=0, group=self._control)
            return own
        for rank in range(1, self.size):
            if parts[rank].nbytes:
                dist.send(_bytes(parts[rank]), dst=rank, group=self._control)
        return parts[0]

    def whole(self, own: Tensor, rows: int) -> Tensor:
        """See ``Ranks.whole``."""
        most = share(rows, own.shape[1], rank=0, size=self.size).stop
        padded = own.contiguous()
        if len(own) < most:
            padded = own.new_zeros(most, own.shape[1])
            padded[: len(own)] = own
        every = own.new_empty(most * self.size, own.shape[1])
        _all_gather(every, padded)
        return every[:rows]


def num_ranks() -> int:
    """How many processes torch's default process group has; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_gateway() -> bool:
    """Whether this process is the one of its island that speaks to others, writes and exports."""
    return num_ranks() == 1 or dist.get_rank() == 0


def open_ranks() -> Ranks:
    """The ranks of torch's default process group if there are several, else this process alone."""
    return TorchRanks() if num_ranks() > 1 else Alone()


def _buffer(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def _bytes(data: bytes | memoryview) -> Tensor:
    """The bytes as a tensor: their memory if it may be written to, else a copy."""
    if not len(data):
        return _buffer(0)
    is_writable = isinstance(data, memoryview) and not data.readonly
    return torch.frombuffer(data if is_writable else bytearray(data), dtype=torch.uint8)


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
