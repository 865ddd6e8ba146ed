"""``isthmus demo``: islands over long, thin links, and the same model trained in one place."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console

from isthmus.checkpoint import IslandLock
from isthmus.config import RunPaths, load_run
from isthmus.data import Manifest, describe_manifest
from isthmus.demo import words
from isthmus.demo.scene import NAME, NAMES, RATE_MBIT, Scene, default_steps, shaped_run, write_standard
from isthmus.errors import ConfigError
from isthmus.observe.report import write_report
from isthmus.observe.summary import write_summary
from isthmus.optim import require_known
from isthmus.train import prepare_texts
from isthmus.units import format_count
from isthmus.up import IslandProcesses, report_failures, watch

__all__ = ["run_demo"]


def run_demo(
    *,
    out: Path,
    steps: int | None,
    baseline: bool,
    rtt_ms: float,
    rate_mbit: float | None,
    optimizer: str,
    seed: int,
    islands: int = 2,
) -> int:
    """Run the demo; see ``isthmus demo --help``.

    Returns:
        The exit code: 1 if an island failed or the islands did not end with one model.
    """
    require_known(optimizer)
    if islands not in range(2, len(NAMES) + 1):
        raise ConfigError("a demo of so many islands cannot be shown", got=islands, wanted=f"2 to {len(NAMES)}")
    rate_bits_per_s = (rate_mbit or RATE_MBIT) * 1e6
    scene = Scene(out, steps or default_steps(islands), rtt_ms / 1000, rate_bits_per_s, optimizer, seed, islands)
    console = Console()
    _make_room(out)
    _print(console, words.introduction(scene))
    if _train_jointly(scene, console):
        return 1
    summary = _summary(out)
    if baseline and _train_in_one_place(scene, summary["tokens"], console):
        return 1
    summary = _summary(out)
    console.print(words.score_table(summary), words.island_table(scene, summary))
    _print(console, words.in_step(scene, summary))
    one = words.is_one_model(summary)
    _print(console, f"One model at all {islands} islands: " + ("yes, bit for bit." if one else "NO."))
    _print(console, f"Report: {write_report(out)}")
    return int(not one)


def _train_jointly(scene: Scene, console: Console) -> bool:
    """Run both islands over the shaped link; whether one of them failed."""
    with shaped_run(scene) as paths:
        if console.is_terminal:
            with console.status("reading the texts of this installation ..."):
                manifest = _prepare_texts(paths)
        else:
            manifest = _prepare_texts(paths)
        _print(console, "\n".join([*describe_manifest(manifest), ""]))
        processes = IslandProcesses(scene.out, paths.present())
        watch(scene.out, processes, console)
        return report_failures(processes, console)


def _train_in_one_place(scene: Scene, tokens: int, console: Console) -> bool:
    """Train on as many tokens in one place; whether that failed."""
    paths = write_standard(scene, tokens)
    _print(console, f"\nNow the same model in one place, on as many tokens ({format_count(tokens)}):")
    processes = IslandProcesses(paths.root, paths.present())
    watch(paths.root, processes, console)
    return report_failures(processes, console)


def _prepare_texts(paths: RunPaths) -> Manifest:
    """Read every island's texts once, so that the islands find them ready; all have the same manifest."""
    return [prepare_texts(load_run(paths.root, island.root.name)) for island in paths.present()][-1]


def _summary(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(write_summary(out).read_text(encoding="utf-8"))
    return summary


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _make_room(out: Path) -> None:
    """Remove an earlier demo that has ended; anything else stays, and is an error."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    paths = RunPaths(out)
    try:
        name = tomllib.loads(paths.run.read_text(encoding="utf-8"))["run"]["name"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        name = None
    if name != NAME:
        raise ConfigError(
            f"{out} holds something that is no earlier demo",
            wanted="a missing or empty directory, or one that an earlier demo made",
            mend="Name another one with --out.",
        )
    for island in paths.present():
        with IslandLock(island.root):
            pass
    shutil.rmtree(out)
