"""Run by torchrun: a training loop of one's own over several ranks, as one island.

torchrun --nproc-per-node N own_loop.py RUN_DIR join|attach
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import isthmus

TOKENS = 10


def model_of(rank: int) -> nn.Module:
    """Sharded, computing in bf16, its activations computed again in backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 6))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model[0], mp_policy=policy)
    torch.manual_seed(rank)
    return fully_shard(model, mp_policy=policy)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """One optimizer step of two accumulated batches, clipped over the whole model."""
    optimizer.zero_grad()
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        x = torch.randn(4, 6)
        loss = (model(x) - torch.sin(x)).square().mean() / 2
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def computes_with_its_weights(model: nn.Module) -> None:
    """What FSDP made whole for a forward must not outlive a change of the shards."""
    first, _, last = model
    whole = [(each.weight.full_tensor().bfloat16(), each.bias.full_tensor().bfloat16()) for each in (first, last)]
    x = torch.ones(1, 6)
    wanted = F.linear(F.linear(x.bfloat16(), *whole[0]).tanh(), *whole[1])
    torch.testing.assert_close(model(x), wanted, rtol=0, atol=0)


def main(run_dir: Path, way: str) -> None:
    dist.init_process_group("gloo")
    model = model_of(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses: list[float] = []
    if way == "join":
        with isthmus.Island.join(run_dir, name="solo", model=model, optimizer=optimizer) as island:
            while not island.done:
                losses.append(float(train_step(model, optimizer)))
                island.step(tokens=TOKENS, loss=torch.tensor(losses[-1]))
                if len(losses) % 20 == 0:
                    with island.evaluating():
                        computes_with_its_weights(model)
                    computes_with_its_weights(model)
            island.settle()
            slow = island.digest
    else:
        attached = isthmus.attach(model, optimizer, run_dir, name="solo", tokens_per_step=TOKENS)
        with attached:
            while not attached.done:
                losses.append(float(train_step(model, optimizer)))
        slow = attached.island.digest
    digests: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, slow)
    assert len(set(digests)) == 1
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
