"""Experts divided among ranks: tokens travel to the ranks that have their experts, and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from isthmus.model.experts import Experts


def divide_experts(experts: Experts, mesh: DeviceMesh) -> None:
    """Let each rank of a mesh have its share of the experts, and serve all ranks' tokens with it."""
    for name, parameter in [*experts.named_parameters()]:
        parts = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        setattr(experts, name, nn.Parameter(parts))
    compute, group = type(experts).forward, mesh.get_group()

    def forward(rows: Tensor, gates: Tensor, ends: Tensor) -> Tensor:
        own: Any = SimpleNamespace(**{name: _shard(each) for name, each in experts.named_parameters()})
        journey = _Journey(ends, group)
        return journey.back(compute(own, journey.go(rows), journey.go(gates), journey.ends))

    experts.forward = forward  # type: ignore[method-assign]


def _shard(parameter: Any) -> Tensor:
    """A DTensor's shard, with its gradient."""
    shard: Tensor = parameter.to_local()
    return shard


class _Journey:
    """Where rows, sorted by expert, go, and in which order they lie there: by expert, then by the rank they come from.

    Args:
        ends: (experts,), the row after each expert's last, of this rank's rows.
        group: The ranks that divide the experts.
    """

    def __init__(self, ends: Tensor, group: dist.ProcessGroup) -> None:
        self._group, ranks = group, dist.get_world_size(group)
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        sent, arriving = counts.view(ranks, -1), arriving.view(ranks, -1)
        self._sent, self._arriving = torch.stack([sent.sum(1), arriving.sum(1)]).tolist()  # waits for the device
        local = torch.arange(arriving.shape[1], device=ends.device).repeat(ranks)
        self._order = torch.repeat_interleave(local, arriving.flatten()).argsort(stable=True)
        self.ends = arriving.sum(0).cumsum(0).to(ends.dtype)

    def go(self, rows: Tensor) -> Tensor:
        """Rows at the ranks of their experts."""
        return _Exchange.exchanged(rows, self._sent, self._arriving, self._group)[self._order]

    def back(self, rows: Tensor) -> Tensor:
        """Rows where they came from."""
        back = torch.empty_like(self._order)
        back[self._order] = torch.arange(len(back), device=back.device)
        return _Exchange.exchanged(rows[back], self._arriving, self._sent, self._group)


class _Exchange(torch.autograd.Function):
    """Every rank gives every rank some rows; gradients go the other way."""

    @staticmethod
    def exchanged(rows: Tensor, sent: list[int], arriving: list[int], group: dist.ProcessGroup) -> Tensor:
        out: Tensor = _Exchange.apply(rows, sent, arriving, group)  # type: ignore[no-untyped-call]
        return out

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], arriving: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.way = sent, arriving, group
        return _all_to_all(rows, sent, arriving, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        sent, arriving, group = ctx.way
        return _all_to_all(grad, arriving, sent, group), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], arriving: list[int], group: dist.ProcessGroup) -> Tensor:
    out = rows.new_empty(sum(arriving), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), arriving, sent, group=group)
    return out
