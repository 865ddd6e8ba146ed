"""What a study of optimizers says of tokens and of time: bits per byte by both, and what each needs to the control's.

    python bench/optimizer_study.py docs/results/shampoo/table.jsonl docs/results/shampoo/nano/table.jsonl

Reads the tables of ``isthmus lab`` over ``run.run.token_budget``. Every length is a run of its own, with its own course
of the learning rate, so what an arm needs to reach the control's bits at the longest run is read between the ends of
its shorter runs, on a logarithmic scale of tokens. Seconds are processor seconds of training steps alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Point:
    """Means over seeds of one arm at one length."""

    tokens: float
    train_s: float
    bits_per_byte: float


def read(path: Path) -> dict[str, dict[str, list[Point]]]:
    """Points in order of length, by held-out set and arm."""
    runs: dict[tuple[str, str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["stage"] != "compare" or row["outcome"] != "done":
            continue
        for score in row["scores"]:
            if score["final"] and score["subject"] == "joint":
                key = score["set_name"], row["arm"], row["case"]["run.run.token_budget"]
                runs[key].append((row["tokens"], row["train_cpu_s"], score["bits_per_byte"]))
    found: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for (set_name, arm, _), points in sorted(runs.items()):
        found[set_name][arm].append(Point(*(statistics.fmean(each) for each in zip(*points, strict=True))))
    return found


def needed(points: list[Point], bits: float) -> tuple[float, float] | None:
    """Tokens and seconds at which an arm reaches ``bits``; None where its lengths do not enclose that."""
    for before, after in pairwise(points):
        if before.bits_per_byte >= bits >= after.bits_per_byte:
            share = (before.bits_per_byte - bits) / (before.bits_per_byte - after.bits_per_byte)
            return _between(before.tokens, after.tokens, share), _between(before.train_s, after.train_s, share)
    return None


def _between(before: float, after: float, share: float) -> float:
    return float(before ** (1 - share) * after**share)


def print_study(path: Path, control: str) -> None:
    for set_name, arms in read(path).items():
        table = Table(title=f"{path.parent.name}: {set_name}", title_justify="left")
        for column in ("arm", "tokens", "train CPU s", "bits per byte"):
            table.add_column(column, justify="left" if column == "arm" else "right")
        for arm, points in arms.items():
            for point in points:
                table.add_row(arm, f"{point.tokens:,.0f}", f"{point.train_s:.1f}", f"{point.bits_per_byte:.4f}")
        Console().print(table)
        end = arms[control][-1]
        for arm, points in arms.items():
            if arm == control:
                continue
            found = needed(points, end.bits_per_byte)
            if found is None:
                first = points[0]
                words = (
                    f"has {first.bits_per_byte:.4f} at its shortest run, {first.tokens / end.tokens:.2f} of the tokens"
                )
            else:
                words = (
                    f"needs {found[0] / end.tokens:.2f} of the tokens and {found[1] / end.train_s:.2f} of the seconds"
                )
            print(f"{arm} {words} to {control}'s {end.bits_per_byte:.4f}")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--control", default="adamw")
    args = parser.parse_args()
    for path in args.tables:
        print_study(path, args.control)


if __name__ == "__main__":
    main()
