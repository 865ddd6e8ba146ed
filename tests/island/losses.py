"""Run by torchrun: a model trained over several ranks, beside the same one in one process.

torchrun --nproc-per-node N losses.py OPTIMIZER fsdp=2 fsdp=2,tp=2 ...
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from isthmus.island import Layout, Parallel, Precision, open_collectives, recompute_activations
from isthmus.model import ModelConfig, build_model
from isthmus.optim import build_optimizer
from isthmus.train import train_step

STEPS = 8
CLOSE = {"adamw": 2e-5, "shampoo": 1e-2}
"""Shampoo makes rounding larger where experts have seen few tokens: in one process, too, a change of gradients by a
hundred millionth moves these losses by some thousandths. On the same gradients see ``preconditioned.py``."""
CONFIG = ModelConfig(
    d_model=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=8,
    top_k=2,
    expert_hidden=32,
    shared_hidden=32,
    max_seq_len=32,
)


def train(layout: Layout, name: str, parts: int = 1) -> list[float]:
    """The mean losses of some steps."""
    optimizer = build_optimizer(layout.model, name, learning_rate=3e-3, refresh_steps=4, collectives=open_collectives())
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(STEPS):
        batch = torch.randint(64, (8, 33), generator=generator)
        losses.append(train_step(layout, optimizer, Precision("fp32"), batch, clip_norm=0.5, parts=parts))
    return torch.stack(losses).tolist()


def check(name: str, parallel: Parallel, parts: int, losses: list[float], weights: dict[str, torch.Tensor]) -> None:
    """Compare with what one process has computed."""
    model = build_model(CONFIG, seed=1)
    if parts > 1:
        recompute_activations(model)
    mean = torch.tensor(train(Layout(model, parallel, batch_size=8, parts=parts), name, parts))
    dist.all_reduce(mean)
    torch.testing.assert_close(mean / dist.get_world_size(), torch.tensor(losses), rtol=0, atol=CLOSE[name])
    if name != "adamw":
        return
    for key, tensor in model.state_dict().items():
        if parts > 1 and key.endswith(".load"):
            continue  # what is computed again is counted again; its signs alone matter
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        close = torch.allclose(whole.float(), weights[key].float(), rtol=1e-3, atol=2e-4)
        assert close, (key, (whole - weights[key]).abs().max())


if __name__ == "__main__":
    lone = build_model(CONFIG, seed=1)
    losses = train(Layout(lone), sys.argv[1])
    dist.init_process_group("gloo")
    for layout in sys.argv[2:]:
        sizes = dict(part.split("=") for part in layout.split(",") if part != "ddp")
        parts = int(sizes.pop("parts", 1))
        check(
            sys.argv[1], Parallel(**{name: int(size) for name, size in sizes.items()}), parts, losses, lone.state_dict()
        )
    dist.destroy_process_group()
