"""How the ranks of an island divide the bundled model and its batches; the model knows nothing of it.

Ranks form two meshes in one order: for all weights but experts' (ddp, shard, tp), where shard = fsdp x ep, and for
experts' (ddp, fsdp, ep, tp). Expert parallelism divides batches as data parallelism does, and tokens travel to the
ranks that have their experts; tensor parallelism divides attention's heads and the hidden units of dense feed-forwards.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from isthmus.errors import ConfigError
from isthmus.island.blocks import modules_of
from isthmus.island.expert_parallel import divide_experts
from isthmus.island.held import local_part
from isthmus.island.ranks import num_ranks
from isthmus.model.decoder import Block
from isthmus.model.experts import Experts, Router
from isthmus.model.layers import Attention, SwiGLU

_NO_BUFFERS: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")  # the latter before torch 2.13
        if name in inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    ): False
}


@dataclass(frozen=True)
class Parallel:
    """Into how many parts weights are divided: by FSDP2, by tensor and by expert parallelism.

    What ranks there are beyond their product are copies of the whole (DDP).
    """

    fsdp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks make one copy."""
        return self.fsdp * self.tp * self.ep


_WHOLE = Parallel()


class Layout:
    """A model laid out over all ranks of torch's default process group, or over the one process there is.

    Args:
        model: The bundled model, alike on every rank, on its device; changed in place.
        parallel: How.
        batch_size: Sequences of a step of the whole island, to be checked.
        parts: Into how many parts each rank divides its sequences, to be checked.

    Raises:
        ConfigError: The ranks, the model or the batch cannot be divided so; all reasons at once.
    """

    def __init__(
        self, model: nn.Module, parallel: Parallel = _WHOLE, *, batch_size: int | None = None, parts: int = 1
    ) -> None:
        world = num_ranks()
        problems = [*_problems(model, parallel, world=world, batch_size=batch_size, parts=parts)]
        if problems:
            raise ConfigError("; ".join(problems), got=f"[parallel] {parallel} at {world} ranks")
        self.model, self._module, self._parallel, self._size = model, model, parallel, world
        self._whole_copies = world // parallel.ranks
        self.batches = world // parallel.tp
        self.batch_index = 0
        if world > 1:
            self._spread(next(model.parameters()).device.type)

    def own(self, batch: Tensor) -> Tensor:
        """The sequences of a batch that this rank works on."""
        size = len(batch) // self.batches
        return batch[self.batch_index * size : (self.batch_index + 1) * size]

    @contextmanager
    def part_of_step(self, *, is_last: bool) -> Iterator[None]:
        """Around a forward and backward; only those of a step's last part exchange gradients between ranks."""
        with ExitStack() as stack:
            if isinstance(self.model, nn.parallel.DistributedDataParallel) and not is_last:
                stack.enter_context(self.model.no_sync())
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(is_last)
            yield

    @torch.no_grad()
    def finish_gradients(self) -> None:
        """Make gradients those of the whole batch's mean, between backward and the optimizer's step.

        And sum up the routers' loads, so that all ranks move their biases alike.
        """
        if self._size == 1:
            return
        experts = {id(parameter) for module in modules_of(self._module, Experts) for parameter in module.parameters()}
        for parameter in self._module.parameters():
            if parameter.grad is not None and id(parameter) in experts:
                self._finish_expert(local_part(parameter.grad))
            elif parameter.grad is not None and self._averages_here:
                self._average(local_part(parameter.grad), self._data)
        if self._parallel.tp > 1:
            for gain in _head_gains(self._module):
                if gain.grad is not None:  # each rank has seen its own heads alone
                    dist.all_reduce(local_part(gain.grad), group=self._outer["tp"].get_group())
        for router in modules_of(self._module, Router):
            if self.batches > 1:
                dist.all_reduce(router.load, group=self._data)

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> None:
        """Scale all gradients down to a norm over the whole model, as ``clip_grad_norm_`` does."""
        if self._size == 1:
            nn.utils.clip_grad_norm_(self._module.parameters(), max_norm)
            return
        gradients = [parameter.grad for parameter in self._module.parameters() if parameter.grad is not None]
        parts = [local_part(gradient) for gradient in gradients]
        norms = torch._foreach_norm(parts)
        shares = torch.tensor([1 / self._copies(gradient) for gradient in gradients], device=norms[0].device)
        square = (torch.stack(norms).double().square() * shares).sum()
        dist.all_reduce(square)
        torch._foreach_mul_(parts, (max_norm / (square.sqrt() + 1e-6)).clamp(max=1.0).float())

    def _spread(self, device_type: str) -> None:
        each = self._parallel
        copies, shard = self._whole_copies, each.fsdp * each.ep
        self._outer = init_device_mesh(device_type, (copies, shard, each.tp), mesh_dim_names=("ddp", "shard", "tp"))
        inner = (copies, each.fsdp, each.ep, each.tp)
        self._inner = init_device_mesh(device_type, inner, mesh_dim_names=("ddp", "fsdp", "ep", "tp"))
        self._data = self._outer["ddp", "shard"]._flatten("data").get_group()
        self._experts_ddp = self._inner["ddp"].get_group()
        self.batch_index = self._outer.get_local_rank("ddp") * shard + self._outer.get_local_rank("shard")
        self._averages_here = each.fsdp == 1 and self.batches > 1
        if each.tp > 1:
            parallelize_module(self._module, self._outer["tp"], _tensor_plan(self._module))
        if each.ep > 1:
            for module in modules_of(self._module, Experts):
                divide_experts(module, self._inner["ep"])
        if each.fsdp > 1:
            self._shard_fully()
        elif each.ranks == 1:
            self.model = nn.parallel.DistributedDataParallel(self._module, **_NO_BUFFERS)
            self._averages_here = False

    def _shard_fully(self) -> None:
        outer, inner = (self._outer["shard"], self._inner["fsdp"])
        if self._whole_copies > 1:
            outer, inner = self._outer["ddp", "shard"], self._inner["ddp", "fsdp"]
        for block in modules_of(self._module, Block):
            if self._parallel.ep > 1:
                for module in modules_of(block, Experts):
                    fully_shard(module, mesh=inner)
            fully_shard(block, mesh=outer)
        fully_shard(self._module, mesh=outer)

    def _finish_expert(self, gradient: Tensor) -> None:
        if self._parallel.ep == 1:
            if self._averages_here:
                self._average(gradient, self._data)
            return
        if self._averages_here and self._whole_copies > 1:
            self._average(gradient, self._experts_ddp)
        gradient.div_(self._parallel.ep)

    @staticmethod
    def _average(gradient: Tensor, group: dist.ProcessGroup) -> None:
        dist.all_reduce(gradient, group=group)
        gradient.div_(dist.get_world_size(group))

    def _copies(self, gradient: Tensor) -> float:
        """How many ranks hold what this one holds of a gradient."""
        if not isinstance(gradient, DTensor):
            return self._size
        sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
        parts = math.prod(size for place, size in sizes if not isinstance(place, Replicate))
        return self._size / parts


def _problems(model: nn.Module, parallel: Parallel, *, world: int, batch_size: int | None, parts: int) -> Iterator[str]:
    if world % parallel.ranks:
        yield f"{world} ranks are no multiple of fsdp x tp x ep = {parallel.ranks}"
        return
    batches = world // parallel.tp
    if batch_size is not None and batch_size % (batches * parts):
        so = f" and into {parts} parts at each" if parts > 1 else ""
        yield f"a batch of {batch_size} sequences cannot be divided among {batches} ranks{so}"
    experts = modules_of(model, Experts)
    if parallel.ep > 1 and not experts:
        yield "a dense model has no experts to divide: ep must be 1"
    counts = {len(module.gate_up) for module in experts}
    yield from (f"{count} experts cannot be divided by ep = {parallel.ep}" for count in counts if count % parallel.ep)
    widths = {("heads", module.query.out_features // module.head_dim) for module in modules_of(model, Attention)}
    widths |= {
        ("key and value heads", module.key.out_features // module.head_dim) for module in modules_of(model, Attention)
    }
    widths |= {("hidden units", module.down.in_features) for module in modules_of(model, SwiGLU)}
    yield from (f"{n} {what} cannot be divided by tp = {parallel.tp}" for what, n in sorted(widths) if n % parallel.tp)


def _tensor_plan(model: nn.Module) -> dict[str, ParallelStyle]:
    """Attention by heads; a feed-forward's gate and up, halves of one matrix, come together before they meet."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            plan |= {f"{name}.{part}": ColwiseParallel() for part in ("query", "key", "value")}
            plan[f"{name}.out"] = RowwiseParallel()
        elif isinstance(module, SwiGLU):
            plan[f"{name}.gate_up"] = ColwiseParallel(output_layouts=Replicate())
            plan[f"{name}.down"] = RowwiseParallel(input_layouts=Replicate())
    return plan


def _head_gains(model: nn.Module) -> list[nn.Parameter]:
    """Gains that a rank applies to its own heads."""
    return [norm.weight for module in modules_of(model, Attention) for norm in (module.query_norm, module.key_norm)]
