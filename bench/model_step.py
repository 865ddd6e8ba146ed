"""Training speed of the presets: forward, backward and optimizer step, in tokens per second.

    python bench/model_step.py --presets nano micro --precisions fp32 bf16-autocast --json step.json

Configurations are interleaved, so that a busy moment of the machine falls on all of them; medians are over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from isthmus.island import PRECISIONS, Precision, native_bf16
from isthmus.model import build_model, next_token_loss, num_parameters, preset
from isthmus.optim import OPTIMIZERS, build_optimizer

SHAPES = {"micro": (8, 256), "nano": (16, 256), "dense": (16, 256), "small": (4, 512)}
"""Batch size and sequence length of a preset's step."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    cases = [(name, precision) for name in arguments.presets for precision in arguments.precisions]
    steps = [build_step(*case, arguments.optimizer, device) for case in cases]
    samples = measure(steps, arguments.rounds, device)
    rows = [describe(*case, sample) for case, sample in zip(cases, samples, strict=True)]
    report = {
        "threads": arguments.threads,
        "device": str(device),
        "torch": torch.__version__,
        "native_bf16": native_bf16(device),
        "optimizer": arguments.optimizer,
        "rounds": arguments.rounds,
        "cases": rows,
    }
    print_table(rows, arguments.threads, device)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=SHAPES, default=["micro", "nano", "dense", "small"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def build_step(name: str, precision: str, optimizer_name: str, device: torch.device) -> Callable[[], None]:
    model = build_model(preset(name), seed=0).to(device)
    optimizer = build_optimizer(model, optimizer_name, learning_rate=1e-3)
    generator = torch.Generator().manual_seed(0)
    compute = Precision(precision)
    batch_size, seq_len = SHAPES[name]

    def step() -> None:
        batch = torch.randint(0, 256, (batch_size, seq_len + 1), generator=generator).to(device)
        next_token_loss(compute(model, batch[:, :-1]), batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(steps: list[Callable[[], None]], rounds: int, device: torch.device) -> list[list[tuple[float, float]]]:
    """Wall and CPU seconds of each step in each round, after two rounds that do not count."""
    samples: list[list[tuple[float, float]]] = [[] for _ in steps]
    for round_index in range(-2, rounds):
        for step, sample in zip(steps, samples, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            if round_index >= 0:
                sample.append((time.perf_counter() - wall, time.process_time() - cpu))
    return samples


def describe(name: str, precision: str, sample: list[tuple[float, float]]) -> dict[str, object]:
    batch_size, seq_len = SHAPES[name]
    tokens = batch_size * seq_len
    wall, cpu = (statistics.median(column) for column in zip(*sample, strict=True))
    counts = num_parameters(preset(name))
    return {
        "preset": name,
        "precision": precision,
        "parameters": counts.total,
        "active_parameters": counts.active,
        "batch_size": batch_size,
        "seq_len": seq_len,
        "step_s": wall,
        "step_cpu_s": cpu,
        "tokens_per_s": tokens / wall,
        "tokens_per_cpu_s": tokens / cpu,
    }


def print_table(rows: list[dict[str, object]], threads: int, device: torch.device) -> None:
    table = Table(title=f"training step on {device}, {threads} thread(s)")
    for column in ("preset", "precision", "parameters", "batch", "step ms", "tokens/s", "tokens/CPU s"):
        table.add_column(column, justify="left" if column in ("preset", "precision") else "right")
    for row in rows:
        table.add_row(
            str(row["preset"]),
            str(row["precision"]),
            f"{row['parameters']:,}",
            f"{row['batch_size']} x {row['seq_len']}",
            f"{row['step_s'] * 1e3:.0f}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['tokens_per_cpu_s']:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
