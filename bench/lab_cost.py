"""What the lab costs: a run of two islands, its overhead over bare training steps, and the memory of many islands.

    python bench/lab_cost.py --pairs 10
    python bench/lab_cost.py --islands 64

The first prints processor seconds of one `micro` run of two islands, and the ratio of its steps' time to that of as
many bare training steps by the same trainer, in interleaved pairs. The second prints the peak memory of a run in which
many islands have met.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import torch
from sync_overhead import machine_facts, median_interval, publish_report

from isthmus.lab.files import load_setup
from isthmus.lab.grid import Cell, comparison_cells
from isthmus.lab.run import LabRun
from isthmus.lab.study import load_study
from isthmus.train import Trainer, open_stream
from isthmus.units import MIB

STUDY = """
[study]
name = "cost"
control = "arm"
controls = false
seeds = [1]
[base.run.run]
token_budget = {tokens}
[base.run.model]
preset = "{preset}"
[base.run.mixing]
window_steps = {window}
[base.run.data]
evaluate_bytes = {evaluate_bytes}
[base.island.island]
batch_size = {batch}
[base.link]
rtt_ms = 180
rate_mbit = 100
[[arm]]
name = "arm"
islands = {islands}
"""


def cell_of(root: Path, args: argparse.Namespace, steps: int) -> Cell:
    tokens = args.islands * steps * args.batch * 256
    path = root / "study.toml"
    path.write_text(
        STUDY.format(
            tokens=tokens,
            preset=args.preset,
            window=args.window,
            evaluate_bytes=args.evaluate_bytes,
            batch=args.batch,
            islands=args.islands,
        )
    )
    return comparison_cells(load_study(path), {})[0]


def run_lab(cell: Cell, folder: Path, cache: Path) -> dict[str, float]:
    row = LabRun(cell, folder, cache).run(lambda: False, lambda progress: None)
    assert row is not None and row.outcome == "done", row
    steps = sum(row.steps.values())
    return {
        "steps": steps,
        "cpu_s": row.cpu_s,
        "step_ms": 1000 * (row.cpu_s - row.score_cpu_s) / steps,
        "train_ms": 1000 * row.train_cpu_s / steps,
        "tokens": row.tokens,
        "meetings": row.meetings,
    }


def bare_step_ms(cell: Cell, folder: Path, cache: Path, steps: int) -> float:
    loaded = load_setup(cell.setup, folder, cache)
    members = [(Trainer(each), open_stream(each)) for each in loaded.values()]
    started_s = time.process_time()
    for step in range(steps):
        trainer, stream = members[step % len(members)]
        _, loss = trainer.step(stream, step / steps)
        float(loss)
    return 1000 * (time.process_time() - started_s) / steps


def compare(args: argparse.Namespace, root: Path) -> dict[str, object]:
    cell, cache, steps = cell_of(root, args, args.steps), root / "cache", args.islands * args.steps
    run_lab(cell, root / "first", cache)  # reads the texts
    runs, bare_ms = [], []
    for pair in range(args.pairs):
        lab = lambda: runs.append(run_lab(cell, root / f"lab{pair}", cache))  # noqa: B023, E731
        bare = lambda: bare_ms.append(bare_step_ms(cell, root / f"bare{pair}", cache, steps))  # noqa: B023, E731
        for measure in (lab, bare) if pair % 2 else (bare, lab):
            measure()
    ratios = [run["step_ms"] / bare for run, bare in zip(runs, bare_ms, strict=True)]
    return {"overhead": median_interval(ratios), "run": runs[-1], "bare_step_ms": bare_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="micro")
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150, help="of every island")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--window", type=int, default=12)
    parser.add_argument("--evaluate-bytes", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if args.islands > 2:
            run = run_lab(cell_of(root, args, args.steps), root / "run", root / "cache")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(
                f"{args.islands} islands of {args.preset}: peak memory {peak / MIB:.0f} MiB, {run['meetings']} meetings"
            )
            report: dict[str, object] = {"islands": args.islands, "peak_bytes": peak, "run": run}
        else:
            report = compare(args, root)
            overhead = report["overhead"]
            print(f"a step in the lab over a bare one: {json.dumps(overhead)}")
    publish_report({**report, "machine": facts}, args.json)


if __name__ == "__main__":
    main()
