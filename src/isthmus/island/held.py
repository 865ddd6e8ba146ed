"""One tensor of a model as a rank holds it, and the way between that and the rows that are the rank's share.

What a layout (FSDP2, tensor or expert parallel, DDP, one process) makes of a parameter is known here alone.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from isthmus.errors import CheckpointError
from isthmus.island.ranks import Ranks
from isthmus.parts import Later, Part
from isthmus.rows import share


class Held(ABC):
    """A tensor, whole or a part of it.

    Attributes:
        local: What this rank holds of it; the memory that the model computes with.
        row_length: n.
        is_copy: Whether all ranks hold the same.
        in_place: This rank's rows [k, n] where they are that memory; None where they must be fetched.
        part: That memory as a part of the whole tensor.
    """

    local: Tensor
    row_length: int
    is_copy = False
    in_place: Tensor | None = None
    part: Part

    @abstractmethod
    def fetch(self) -> Tensor:
        """This rank's rows [k, n]: those in place, or copies. All ranks call it."""

    def no_rows(self) -> Tensor:
        """What a rank has whose share is empty, [0, n]."""
        return self.local.new_empty(0, self.row_length)

    @abstractmethod
    def push(self, own: Tensor) -> None:
        """Let the model's tensor be made of all ranks' rows, of which these are this one's. All ranks call it."""


def hold(tensor: Tensor, ranks: Ranks) -> Held:
    """How a rank holds a parameter or buffer of its model."""
    tensor = tensor.detach()
    held: Held
    if isinstance(tensor, DTensor):
        held = _Rows(tensor) if _lies_by_rows(tensor, ranks) else _Spread(tensor, ranks)
    else:
        held = _Whole(tensor, ranks) if tensor.is_contiguous() else _Strided(tensor, ranks)
    held.row_length = tensor.shape[-1] if tensor.ndim else 1
    held.part = part_of(tensor)
    return held


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; its memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: Tensor) -> Part:
    """What this rank holds of a tensor, and where in it that belongs; its memory."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return Part.whole(tensor)
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Part(tuple(tensor.shape), tuple(offsets), tensor.to_local())


def state_part(tensor: Tensor, parameter: Tensor | None, what: str) -> Part:
    """An optimizer's tensor for a parameter as this rank's part.

    Raises:
        CheckpointError: The parameter is divided among ranks and this is not, or not as the parameter is.
    """
    if isinstance(parameter, DTensor) and tensor.numel() > 1:
        fits = isinstance(tensor, DTensor) and tensor.shape == parameter.shape
        if not fits:
            raise CheckpointError(
                f"{what} cannot be saved: the parameter is divided among ranks, and this otherwise",
                got=f"{type(tensor).__name__} {tuple(tensor.shape)}",
                wanted=f"a DTensor {tuple(parameter.shape)}",
                mend="Use an optimizer that keeps DTensors of its parameters' shape, as torch's AdamW does.",
            )
    return part_of(tensor)


def spread_like(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """A new tensor without values that lies as a DTensor of the same shape does; None where there is none such."""
    if not isinstance(tensor, DTensor) or tuple(tensor.shape) != shape:
        return None
    return torch.empty_like(tensor.detach(), dtype=dtype)


def reshard(model: nn.Module) -> None:
    """Let FSDP forget whole parameters that it made of shards, before those change."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class WholeState:
    """A model's state with every tensor whole; what ranks divide is gathered by all of them, one after the other.

    Args:
        model: The model.

    Attributes:
        tensors: By name; those that must be gathered are made later.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, Tensor | Later] = {}
        self._divided: dict[str, DTensor] = {}
        for name, tensor in model.state_dict().items():
            whole = tensor.detach()
            if isinstance(whole, DTensor):
                self._divided[name] = whole
                self.tensors[name] = Later(tuple(whole.shape), whole.dtype, partial(self._gather, name))
            else:
                self.tensors[name] = whole

    def gather_rest(self, order: Iterable[str]) -> None:
        """Take part in gathering all that was not gathered yet."""
        for name in order:
            if name in self._divided:
                self._gather(name)

    def _gather(self, name: str) -> Tensor:
        with _quiet():
            return self._divided.pop(name).full_tensor()


class _Rows(Held):
    """A DTensor whose shards are the ranks' shares."""

    def __init__(self, tensor: DTensor) -> None:
        self.local = tensor.to_local()
        self.in_place = _matrix(self.local, tensor.shape)

    def fetch(self) -> Tensor:
        return _matrix(self.local, self.local.shape)

    def push(self, own: Tensor) -> None:
        if own.data_ptr() != self.local.data_ptr():
            self.local.copy_(own.view(self.local.shape))


class _Whole(Held):
    """A plain tensor, of which all ranks hold the same."""

    is_copy = True

    def __init__(self, tensor: Tensor, ranks: Ranks) -> None:
        self.local, self._ranks = tensor, ranks
        self._matrix = _matrix(tensor, tensor.shape)
        self._own = share(*self._matrix.shape, rank=ranks.rank, size=ranks.size)
        self.in_place = self._matrix[self._own]

    def fetch(self) -> Tensor:
        return self._matrix[self._own]

    def push(self, own: Tensor) -> None:
        rows = self._ranks.whole(own, len(self._matrix))
        if rows.data_ptr() != self._matrix.data_ptr():
            self._matrix.copy_(rows)


class _Strided(Held):
    """A plain tensor whose rows do not lie end to end; all ranks hold the same."""

    is_copy = True

    def __init__(self, tensor: Tensor, ranks: Ranks) -> None:
        self.local, self._ranks = tensor, ranks

    def fetch(self) -> Tensor:
        matrix = _matrix(self.local.contiguous(), self.local.shape)
        return matrix[share(*matrix.shape, rank=self._ranks.rank, size=self._ranks.size)].clone()

    def push(self, own: Tensor) -> None:
        rows = self.local.numel() // own.shape[1]
        self.local.copy_(self._ranks.whole(own, rows).view(self.local.shape))


class _Spread(Held):
    """A DTensor of any other placements: made whole for a moment."""

    def __init__(self, tensor: DTensor, ranks: Ranks) -> None:
        self._tensor, self._ranks = tensor, ranks
        self.local = tensor.to_local()

    def fetch(self) -> Tensor:
        with _quiet():
            matrix = _matrix(self._tensor.full_tensor(), self._tensor.shape)
        return matrix[share(*matrix.shape, rank=self._ranks.rank, size=self._ranks.size)].clone()

    def push(self, own: Tensor) -> None:
        tensor = self._tensor
        whole = self._ranks.whole(own, tensor.numel() // own.shape[1]).view(tensor.shape)
        part = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
        self.local.copy_(part.to_local())


def _lies_by_rows(tensor: DTensor, ranks: Ranks) -> bool:
    """Whether every rank's shard is just its share; all ranks find the same."""
    mesh = tensor.device_mesh
    split = [place for place, size in zip(tensor.placements, mesh.shape, strict=True) if size > 1]
    if split != [Shard(0)] or mesh.mesh.flatten().tolist() != list(range(ranks.size)) or tensor.ndim < 2:
        return ranks.size == 1
    if not tensor.to_local().is_contiguous():
        raise AssertionError("a shard of a parameter is not contiguous")
    length, inner = tensor.shape[0], math.prod(tensor.shape[1:-1])
    most = -(-length // ranks.size)
    rows = tensor.numel() // tensor.shape[-1]
    for rank in range(ranks.size):
        own = share(rows, tensor.shape[-1], rank=rank, size=ranks.size)
        if (own.start, own.stop) != (min(length, rank * most) * inner, min(length, (rank + 1) * most) * inner):
            return False
    return True


def _matrix(tensor: Tensor, shape: torch.Size) -> Tensor:
    """A contiguous tensor as rows of the last dimension of ``shape``."""
    return tensor.view(-1, shape[-1] if shape else 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's advice on how placements might be better chosen."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
