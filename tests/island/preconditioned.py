"""Run by torchrun: Shampoo over several ranks, beside the same in one process, on the same gradients.

torchrun --nproc-per-node N preconditioned.py fsdp=2 fsdp=2,tp=2 ...
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from losses import CONFIG
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

from isthmus.island import Layout, Parallel, open_collectives
from isthmus.model import build_model
from isthmus.optim import Shampoo, build_optimizer

STEPS = 9


def drive(model: nn.Module, *, spread: bool) -> torch.optim.Optimizer:
    """Steps with gradients that depend on the step and the parameter's name alone."""
    collectives = open_collectives() if spread else None
    optimizer = build_optimizer(model, "shampoo", learning_rate=0.02, refresh_steps=4, collectives=collectives)
    if spread:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    for step in range(STEPS):
        for place, (_, parameter) in enumerate(sorted(model.named_parameters())):
            generator = torch.Generator().manual_seed(1000 * step + place)
            grad = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.grad = grad
        optimizer.step()
    return optimizer


def num_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())


def check(parallel: Parallel, lone: nn.Module, alone: torch.optim.Optimizer) -> None:
    model = build_model(CONFIG, seed=1)
    Layout(model, parallel)
    optimizer = drive(model, spread=True)
    weights = dict(lone.named_parameters())
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        torch.testing.assert_close(whole, weights[name], rtol=1e-4, atol=1e-5, msg=f"{name} differs")
    matrices = num_bytes(optimizer) / num_bytes(alone)
    assert matrices < 1.35 / dist.get_world_size() + 0.1, matrices


def check_sums() -> None:
    """Gradients that are still to be summed over ranks, as sequence parallelism leaves them, are."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    whole = [torch.randn(8, 6), torch.randn(5)]
    own = [nn.Parameter(distribute_tensor(each, mesh, [Replicate()])) for each in whole]
    lone = [nn.Parameter(each.clone()) for each in whole]
    optimizers = (
        Shampoo(own, lr=0.1, refresh_steps=2, collectives=open_collectives()),
        Shampoo(lone, lr=0.1, refresh_steps=2),
    )
    for _ in range(4):
        for mine, its in zip(own, lone, strict=True):
            parts = torch.randn(size, *its.shape)
            mine.grad, its.grad = DTensor.from_local(parts[rank], mesh, [Partial()]), parts.sum(0)
        for optimizer in optimizers:
            optimizer.step()
    for mine, its in zip(own, lone, strict=True):
        torch.testing.assert_close(mine.full_tensor(), its)


if __name__ == "__main__":
    lone = build_model(CONFIG, seed=1)
    alone = drive(lone, spread=False)
    dist.init_process_group("gloo")
    check_sums()
    for layout in sys.argv[1:]:
        sizes = dict(part.split("=") for part in layout.split(",") if part != "ddp")
        check(Parallel(**{name: int(size) for name, size in sizes.items()}), lone, alone)
    dist.destroy_process_group()
