"""A PyTorch loop of one's own as an island of a run, in two ways: ``Island.join``, and ``attach`` with ``--attach``.

    isthmus init runs/mine --preset own --tokens 100_000     # "own": the loop brings the model
    python examples/own_loop.py runs/mine us-east &          # one site
    python examples/own_loop.py runs/mine asia --attach      # another

Both print the same digest at the end: they hold one model. Ctrl-C saves and leaves; the same command then resumes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import isthmus

BATCH, CONTEXT = 32, 16
torch.set_num_threads(1)  # more would only get in each other's way on so small a model
TEXT = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """One step of a loop that knows nothing of islands; the random numbers it draws are part of every checkpoint."""
    starts = torch.randint(len(TEXT) - CONTEXT, (BATCH, 1))
    windows = TEXT[starts + torch.arange(CONTEXT + 1)]
    loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


parser = argparse.ArgumentParser()
parser.add_argument("run_dir", type=Path)
parser.add_argument("name", help="an island of the run")
parser.add_argument("--attach", action="store_true", help="let the optimizer's hook count the steps")
args = parser.parse_args()

torch.manual_seed(0)  # islands start equal, ...
model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 128), nn.GELU(), nn.Linear(128, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(sum(args.name.encode()))  # ... and each reads something else

if args.attach:  # for trainers whose loop cannot be changed: nothing between the steps
    with isthmus.attach(model, optimizer, args.run_dir, name=args.name, tokens_per_step=BATCH) as attachment:
        attachment.island.leave_on_signals()
        while not attachment.done:
            train_step(model, optimizer)
    island = attachment.island
else:  # the whole session: one call after each optimizer step
    with isthmus.Island.join(args.run_dir, name=args.name, model=model, optimizer=optimizer) as island:
        island.leave_on_signals()
        while not island.done:
            island.step(tokens=BATCH, loss=train_step(model, optimizer))

print(f"{island.name}: {island.step_count} steps, {island.progress:.0%} of the run, model {island.digest[:16]}")
