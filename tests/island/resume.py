"""Run by torchrun: an island that trains, saves and trains on, or goes on from what was saved.

torchrun --nproc-per-node N resume.py RUN_DIR begin|go-on LAYOUT OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from losses import CONFIG
from torch import Tensor, nn

import isthmus
from isthmus.island import Layout, Parallel, Precision, open_collectives
from isthmus.island.ranks import num_ranks
from isthmus.model import build_model
from isthmus.optim import build_optimizer
from isthmus.train import train_step

SAVED_AT, STEPS = 12, 20


class Batches:
    """Data that is where it is by its cursor alone; and noise, which is what the generators of a rank make of it."""

    cursor = 0

    def next(self) -> Tensor:
        self.cursor += 1
        generator = torch.Generator().manual_seed(self.cursor)
        return torch.randint(64, (8, 33), generator=generator)

    def state_dict(self) -> dict[str, int]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.cursor = state["cursor"]


class Counted(nn.Module):
    """What a user's module keeps beside its tensors: a tensor in its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(2, dtype=torch.int64)

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.seen = state["seen"] + 0


def run(run_dir: Path, what: str, parallel: Parallel, optimizer_name: str) -> dict[str, object]:
    """Train to the end; the losses after the save, and what was held at it."""
    model, data = build_model(CONFIG, seed=1), Batches()
    model.counted = counted = Counted()
    layout = Layout(model, parallel, batch_size=8)
    optimizer = build_optimizer(
        model, optimizer_name, learning_rate=3e-3, refresh_steps=4, collectives=open_collectives()
    )
    torch.manual_seed(num_ranks() + (dist.get_rank() if num_ranks() > 1 else 0))
    losses, noise, saved = [], [], ""
    with isthmus.Island.join(run_dir, name="solo", model=layout.model, optimizer=optimizer, data=data) as island:
        if what == "go-on":
            assert island.step_count == data.cursor == SAVED_AT
            assert counted.seen.tolist() == [SAVED_AT, SAVED_AT]
            saved = island.digest
        while island.step_count < STEPS:
            loss = train_step(layout, optimizer, Precision("fp32"), data.next(), clip_norm=0.5)
            counted.seen += 1
            island.step(tokens=256, loss=loss)
            (mean,) = island.ranks.total(float(loss))
            losses.append(mean / island.ranks.size)
            noise.append(float(torch.rand(())))
            if what == "begin" and island.step_count == SAVED_AT:
                island.save()
                losses, noise, saved = [], [], island.digest
        island.close("interrupted")
    return {"losses": losses, "noise": noise, "saved": saved, "end": island.digest}


def main(run_dir: str, what: str, layout: str, optimizer_name: str, out: str) -> None:
    sizes = dict(part.split("=") for part in layout.split(",") if "=" in part)
    if layout != "alone":
        dist.init_process_group("gloo")
    told = run(Path(run_dir), what, Parallel(**{name: int(size) for name, size in sizes.items()}), optimizer_name)
    if num_ranks() == 1 or dist.get_rank() == 0:
        Path(out).write_text(json.dumps(told))
    if layout != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
