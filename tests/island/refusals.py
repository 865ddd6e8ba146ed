"""Run by torchrun: what ranks that do not belong together are told, all of them the same.

torchrun --nproc-per-node 2 refusals.py RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus
from isthmus.errors import CheckpointError, ConfigError, IsthmusError, ShapeError
from isthmus.island import TorchRanks, at_gateway
from isthmus.optim import build_optimizer
from isthmus.session import cut_model
from isthmus.session.trainee import Training


def model(width: int = 6, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.Linear(width, 6))


def different_tokens(run_dir: Path, rank: int) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with isthmus.Island.join(run_dir, name="solo", model=net, optimizer=optimizer) as island:
        island.step(tokens=10)
        island.step(tokens=10 + rank)


class Plain(torch.optim.SGD):
    """Keeps a plain tensor for parameters that are divided among ranks."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["mean"] = torch.zeros(parameter.to_local().shape)


def undivided_state(ranks: TorchRanks) -> None:
    net = fully_shard(model())
    optimizer = Plain(net.parameters(), lr=0.0)
    optimizer.step()
    Training(net, optimizer, None, ranks).state_dict()


def fails() -> None:
    raise ConfigError("the gateway cannot", got=1, wanted="2", mend="Mend it.")


def main(run_dir: Path) -> None:
    dist.init_process_group("gloo")
    ranks = TorchRanks()
    settings = {"num_fragments": 1, "peers": ("b",), "embedding_codec": "int8", "ranks": ranks}
    rank = ranks.rank
    with pytest.raises(ShapeError, match="is a plain tensor, but not the same at all ranks"):
        cut_model(model(seed=rank), **settings)
    other = "rank 1 of this island has built another model than rank 0; got its model has '0.bias 7"
    with pytest.raises(ShapeError, match=other):
        cut_model(model(6 + rank), **settings)
    sharded = fully_shard(model().bfloat16())
    masters = {name: torch.zeros(each.shape) for name, each in sharded.named_parameters()}
    with pytest.raises(ShapeError, match=r"master of '0.weight' is not divided"):
        cut_model(sharded, masters=masters, **settings)
    for optimizer in ("shampoo", "muon"):
        with pytest.raises(ConfigError, match="does not train parameters that are sharded"):
            build_optimizer(fully_shard(model()), optimizer, learning_rate=0.1)
    with pytest.raises(CheckpointError, match=r"'0.weight' cannot be saved: the parameter is divided among ranks"):
        undivided_state(ranks)
    with pytest.raises(ConfigError, match=r"^the gateway cannot; got 1; wanted 2\. Mend it\.$"):
        at_gateway(ranks, fails)
    with pytest.raises(IsthmusError, match="have not decided alike"):
        different_tokens(run_dir, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
