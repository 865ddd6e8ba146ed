"""What Shampoo takes over several ranks: seconds of its step beside AdamW's, and state at a rank, by layout.

    OMP_NUM_THREADS=1 python bench/ranks_optimizer.py
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 bench/ranks_optimizer.py ddp fsdp=2 ep=2 tp=2

Gradients are random and the model is one of the presets; a step is timed from where all ranks begin it, over whole
cycles of refreshes, without forward and backward.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sync_overhead import machine_facts, publish_report
from torch import nn

from isthmus.island import Layout, Parallel, Ranks, local_part, open_collectives, open_ranks
from isthmus.model import PRESETS, build_model
from isthmus.optim import build_optimizer
from isthmus.units import MIB

REFRESH_STEPS = 20


def measure(model: nn.Module, name: str, ranks: Ranks, cycles: int) -> dict[str, float]:
    """Mean milliseconds of a step after the first cycle, and MiB of state: the most of all ranks."""
    optimizer = build_optimizer(
        model, name, learning_rate=1e-3, refresh_steps=REFRESH_STEPS, collectives=open_collectives()
    )
    seconds = []
    for _ in range((1 + cycles) * REFRESH_STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        ranks.largest(0.0)
        started_s = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - started_s)
    state = sum(local_part(each).nbytes for own in optimizer.state.values() for each in own.values())
    step_s, most = ranks.largest(statistics.fmean(seconds[REFRESH_STEPS:]), state)
    return {"step_ms": 1e3 * step_s, "state_mib": most / MIB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", default=["ddp"])
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    facts = machine_facts()
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    ranks, found = open_ranks(), {}
    for layout in args.layouts:
        sizes = dict(part.split("=") for part in layout.split(",") if "=" in part)
        model = build_model(PRESETS[args.preset], seed=0)
        Layout(model, Parallel(**{name: int(size) for name, size in sizes.items()}))
        found[layout] = {name: measure(model, name, ranks, args.cycles) for name in ("adamw", "shampoo")}
    if ranks.rank == 0:
        publish_report({**facts, "ranks": ranks.size, "preset": args.preset, "layouts": found}, args.json)
    if ranks.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
