"""What trading costs an island: the share of step time inside ``island.step``, and training speed with it over without.

    python bench/sync_overhead.py --preset small --pairs 20 --json overhead.json

The measured island trains for real, in one thread, over a real TLS link on loopback. Its partner is a real island in
another process that steps when told to but trains nothing, on the last core and at low priority. Blocks of steps with
and without ``island.step`` alternate; a block holds whole windows, so that every block with it has as many departures
and arrivals. Checkpoints are measured apart: training alone would write them too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_step import SHAPES

import isthmus
from isthmus.config import LoadedRun, NewIsland, load_run, resolve_model, write_run
from isthmus.island import PRECISIONS, Layout, Precision
from isthmus.model import build_model, num_parameters, preset
from isthmus.optim import OPTIMIZERS, build_optimizer
from isthmus.session import Island
from isthmus.session.site import open_tcp_link
from isthmus.train import train_step
from isthmus.transport import TcpLink
from isthmus.transport.ports import free_address

MEASURED, PARTNER = "measured", "partner"
MIXING = {"nano": (12, 4, 4), "small": (50, 4, 5)}
"""H, P and τ by preset: the demo's, and the defaults."""

STEP = b"s"
"""What the partner is told: take a step; the steps before and the next one are not in a row."""

DRIFT = 1e-3
"""How far the partner's fast weights move in a window, so that what it publishes is no string of zeros."""


# -- shared by the benches --


def machine_facts() -> dict[str, Any]:
    """What a figure depends on besides the code; take it before the measurement loads the machine."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "isthmus": isthmus.__version__,
        "commit": commit or None,
    }


def median_interval(values: Sequence[float]) -> dict[str, float]:
    """The median and its 95 % interval by order statistics; ``coverage`` is below 0.95 for fewer than 6 values."""
    ordered, count = sorted(values), len(values)
    outside, drop = 2.0**-count, 0
    while drop + 1 < count / 2 and 2 * (outside + math.comb(count, drop + 1) * 2.0**-count) <= 0.05:
        drop += 1
        outside += math.comb(count, drop) * 2.0**-count
    low, high = ordered[drop], ordered[count - 1 - drop]
    return {"median": statistics.median(ordered), "low": low, "high": high, "coverage": 1 - 2 * outside}


def cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far, all its threads, in steps of the kernel's tick (Linux)."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def publish_report(report: dict[str, Any], path: Path | None) -> None:
    """Write the report to ``path``, if there is one, and print it as one line of JSON."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


# -- the run --


def write_files(run_dir: Path, args: argparse.Namespace) -> None:
    flight_steps = min(MIXING[args.preset][2], args.window - 1)
    tables = {
        "run": {"name": "overhead", "token_budget": 10**15},
        "model": {"preset": args.preset},
        "mixing": {
            "window_steps": args.window,
            "fragments": args.fragments,
            "flight_steps": flight_steps,
            "calm_rounds": 0,
        },
        "train": {"sequence_length": args.sequence_length, "optimizer": args.optimizer},
    }
    address = free_address()
    own = {
        "island": {"batch_size": args.batch, "precision": args.precision, "threads": 1, "device": "cpu"},
        "checkpoint": {"every_steps": 10**9},
        "join": {"wait_s": 300.0},
    }
    write_run(
        run_dir,
        tables,
        [
            NewIsland(MEASURED, {**own, "link": {"listen": address}}, addresses=(address,)),
            NewIsland(PARTNER, {**own, "link": {"listen": "127.0.0.1:0"}}),
        ],
    )


def build(loaded: LoadedRun) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(loaded.member.slot)
    model = build_model(resolve_model(loaded.run.model), loaded.run.run.seed)
    train = loaded.run.train
    return model, build_optimizer(
        model, train.optimizer, learning_rate=train.learning_rate, weight_decay=train.weight_decay
    )


def follow(run_dir: Path) -> None:
    """Be the partner: take a step for every word on standard input."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.nice(10)
    loaded = load_run(run_dir, PARTNER)
    model, optimizer = build(loaded)
    tokens = loaded.island.island.batch_size * loaded.run.train.sequence_length
    weights = [parameter.detach() for parameter in model.parameters()]
    drift = [torch.randn_like(weight).mul_(DRIFT) for weight in weights]
    island = Island.join(run_dir, name=PARTNER, model=model, optimizer=optimizer)
    while os.read(sys.stdin.fileno(), 1):
        if island.step_count % loaded.window_steps == 0:
            torch._foreach_add_(weights, drift)
            torch._foreach_neg_(drift)
        island.step(tokens=tokens)
    island.close("interrupted", detail="the measurement is over")


@contextmanager
def partner_process(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The partner, which ends with this block."""
    command = [sys.executable, __file__, "--partner", str(run_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# -- the measurement --


@dataclass(frozen=True)
class Block:
    """What one block of steps took, all in seconds; ``link_cpu_s`` includes what was still on its way after it."""

    wall_s: float
    cpu_s: float
    link_cpu_s: float
    sync_s: float
    sync_cpu_s: float


class Measured:
    """The island that is measured, and the partner that follows it."""

    def __init__(self, run_dir: Path, partner: subprocess.Popen[bytes]) -> None:
        self.partner = partner
        self.loaded = load_run(run_dir, MEASURED)
        self.model, self.optimizer = build(self.loaded)
        self.precision = Precision(self.loaded.island.island.precision)
        self.links: list[TcpLink] = []
        self.island = Island.join(
            run_dir, name=MEASURED, model=self.model, optimizer=self.optimizer, open_link=self._open_link
        )
        self.slot_s = 0.0

    def _open_link(self, loaded: LoadedRun, incarnation: int) -> TcpLink:
        self.links.append(open_tcp_link(loaded, incarnation))
        return self.links[-1]

    def block(self, steps: int, *, trading: bool) -> Block:
        link_id = self.links[-1].process_id
        link_cpu_s, sync_s, sync_cpu_s = cpu_seconds(link_id), 0.0, 0.0
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss, tokens = self._train()
            if trading:
                self._tell(STEP)
                entered_s, entered_cpu_s = time.perf_counter(), time.process_time()
                self.island.step(tokens=tokens, loss=loss)
                sync_s += time.perf_counter() - entered_s
                sync_cpu_s += time.process_time() - entered_cpu_s
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        if trading:
            # The last publications take one slot to send; the block without trading must not share the machine with it.
            self.slot_s = wall_s / steps * self.loaded.window_steps / self.loaded.run.mixing.fragments
            time.sleep(1.2 * self.slot_s + 0.2)
        return Block(wall_s, cpu_s, cpu_seconds(link_id) - link_cpu_s, sync_s, sync_cpu_s)

    def meetings(self) -> int:
        return sum(edge.version for _, _, edge in self.island.engine.memory.all_edges())

    def checkpoint_seconds(self) -> float:
        started_s = time.perf_counter()
        self.island.save()
        return time.perf_counter() - started_s

    def close(self) -> None:
        self.island.close("interrupted", detail="the measurement is over")
        assert self.partner.stdin is not None
        self.partner.stdin.close()
        if self.partner.wait(60):
            raise SystemExit(f"the partner failed with exit code {self.partner.returncode}")

    def _train(self) -> tuple[torch.Tensor, int]:
        size = (self.loaded.island.island.batch_size, self.loaded.run.train.sequence_length + 1)
        batch = torch.randint(0, 256, size)
        loss = train_step(
            Layout(self.model), self.optimizer, self.precision, batch, clip_norm=self.loaded.run.train.clip_norm
        )
        return loss, batch[:, 1:].numel()

    def _tell(self, word: bytes) -> None:
        assert self.partner.stdin is not None
        self.partner.stdin.write(word)


def measure(measured: Measured, args: argparse.Namespace) -> tuple[list[Block], list[Block]]:
    steps = args.block_steps
    warm = measured.block(steps, trading=True)
    pair_s = 2 * warm.wall_s + 1.2 * measured.slot_s + 0.2
    print(
        f"{warm.wall_s / steps * 1000:.0f} ms a step; {args.pairs} pairs take about {args.pairs * pair_s / 60:.1f} min"
    )
    blocks: dict[bool, list[Block]] = {True: [], False: []}
    for pair in range(args.pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        for trading in order:
            blocks[trading].append(measured.block(steps, trading=trading))
    return blocks[True], blocks[False]


def evaluate(traded: list[Block], alone: list[Block], steps: int, tokens_per_step: int) -> dict[str, Any]:
    total = steps * len(traded)

    def speed(blocks: list[Block]) -> float:
        return tokens_per_step * steps / statistics.median(block.wall_s for block in blocks)

    def cpu_ms(blocks: list[Block]) -> dict[str, float]:
        return {
            "process": sum(block.cpu_s for block in blocks) / total * 1000,
            "link_process": sum(block.link_cpu_s for block in blocks) / total * 1000,
        }

    pairs = list(zip(traded, alone, strict=True))
    return {
        "step_ms": {"with": 1000 * _median_step_s(traded, steps), "without": 1000 * _median_step_s(alone, steps)},
        "tokens_per_s": {"with": speed(traded), "without": speed(alone)},
        "speed_ratio": median_interval([other.wall_s / block.wall_s for block, other in pairs]),
        "cpu_ratio_process": median_interval([other.cpu_s / block.cpu_s for block, other in pairs]),
        "sync_share": median_interval([block.sync_s / block.wall_s for block in traded]),
        "sync_share_of_all": sum(block.sync_s for block in traded) / sum(block.wall_s for block in traded),
        "sync_ms_per_step": sum(block.sync_s for block in traded) / total * 1000,
        "sync_cpu_ms_per_step": sum(block.sync_cpu_s for block in traded) / total * 1000,
        "cpu_ms_per_step": {"with": cpu_ms(traded), "without": cpu_ms(alone)},
    }


def _median_step_s(blocks: list[Block], steps: int) -> float:
    return statistics.median(block.wall_s for block in blocks) / steps


def print_result(result: dict[str, Any], measured_facts: dict[str, Any]) -> None:
    def interval(value: dict[str, float], form: str) -> str:
        low, high = format(value["low"], form), format(value["high"], form)
        return f"{value['median']:{form}} ({value['coverage']:.0%} interval {low} to {high})"

    cpu, speed = result["cpu_ms_per_step"], result["tokens_per_s"]
    print(f"share of step time in island.step: {interval(result['sync_share'], '.2%')}")
    print(f"training speed with / without:     {interval(result['speed_ratio'], '.4f')}")
    print(f"tokens/s: {speed['with']:,.0f} with, {speed['without']:,.0f} without")
    print(f"{'CPU ms a step':22}{'with':>10}{'without':>10}")
    for part in ("process", "link_process"):
        print(f"  {part.replace('_', ' '):20}{cpu['with'][part]:>10.2f}{cpu['without'][part]:>10.2f}")
    print(f"  inside island.step{result['sync_cpu_ms_per_step']:>12.2f}")
    checkpoint_s, step_ms = measured_facts["checkpoint_s"], result["step_ms"]["without"]
    print(
        f"meetings completed: {measured_facts['meetings']}; one checkpoint takes {checkpoint_s:.2f} s, every 100 steps "
        f"{checkpoint_s * 10 / step_ms:.2%} on top"
    )


def main() -> None:
    args = parse_arguments()
    if args.partner is not None:
        follow(args.partner)
        return
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as root:
        run_dir = Path(root) / "run"
        write_files(run_dir, args)
        with partner_process(run_dir) as partner:
            measured = Measured(run_dir, partner)
            before = measured.meetings()
            traded, alone = measure(measured, args)
            found = {"meetings": measured.meetings() - before, "checkpoint_s": measured.checkpoint_seconds()}
            measured.close()
    result = evaluate(traded, alone, args.block_steps, args.batch * args.sequence_length)
    print_result(result, found)
    settings = {key: value for key, value in vars(args).items() if key not in ("json", "partner")}
    parameters = num_parameters(preset(args.preset)).total
    report = {**settings, "parameters": parameters, **result, **found, "machine": facts}
    publish_report(report, args.json)
    if not found["meetings"]:
        raise SystemExit("no meeting was completed: this measured nothing")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=MIXING, default="nano")
    parser.add_argument("--window", type=int, help="H (default: the preset's)")
    parser.add_argument("--fragments", type=int, help="P (default: the preset's)")
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adamw", help="the quickest shows trading's cost best"
    )
    parser.add_argument("--pairs", type=int, default=20, help="blocks with and without island.step")
    parser.add_argument("--block-steps", type=int, help="steps of a block, whole windows (default: one window)")
    parser.add_argument("--batch", type=int, help="sequences a step (default: the preset's in model_step.py)")
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--json", type=Path, help="also write the JSON to this file")
    parser.add_argument("--partner", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.window = args.window or MIXING[args.preset][0]
    args.fragments = args.fragments or MIXING[args.preset][1]
    args.block_steps = args.block_steps or args.window
    args.batch = args.batch or SHAPES[args.preset][0]
    args.sequence_length = args.sequence_length or SHAPES[args.preset][1]
    if args.block_steps % args.window:
        parser.error("--block-steps must be a multiple of --window, so that all blocks have as many departures")
    return args


if __name__ == "__main__":
    main()
