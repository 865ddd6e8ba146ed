"""``isthmus status``: who is where, from the files of a run alone."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir
from isthmus.errors import ConfigError
from isthmus.units import format_count, format_duration

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands
    from isthmus.config import IslandPaths
    from isthmus.observe.tally import Tally

_COLUMNS = ("island", "state", "process", "step", "tokens", "of run", "tokens/s", "peers up", "last word")


@dataclass(frozen=True)
class IslandStatus:
    """Where one island is, as its files say. ``run_share`` is the run's progress, 0 to 1, as it last heard it."""

    island: str
    state: str
    process: str
    step: int
    tokens: int
    run_share: float | None
    tokens_per_s: float
    peers_up: tuple[str, ...]
    last_word_s: float | None


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "status",
        help="say who is where in a run",
        description="Read the records and locks of the islands whose directories are here; asks nobody.",
    )
    add_run_dir(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print one line an island."""
    from isthmus.config import RunPaths

    present = RunPaths(args.run_dir).present()
    if not present:
        raise ConfigError(
            f"there is no island in {args.run_dir}",
            wanted="the directory of a run, with islands/NAME in it",
            mend="Write one with `isthmus init DIR`.",
        )
    found = [island_status(paths, now_s=time.time()) for paths in present]
    if args.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    else:
        _print_table([_COLUMNS, *map(_row, found)])
    return 0


def island_status(paths: IslandPaths, *, now_s: float) -> IslandStatus:
    """Where the island is whose files are at ``paths``; ``now_s`` is Unix time."""
    from isthmus.observe.journal import read_records
    from isthmus.observe.tally import Tally

    tally = Tally(paths.root.name)
    if paths.records.is_file():
        for record in read_records(paths.records):
            tally.add(record)
    process = _process(paths.lock)
    return IslandStatus(
        island=tally.name,
        state="killed" if tally.alive and process == "none" else tally.state,
        process=process,
        step=tally.step,
        tokens=tally.tokens,
        run_share=_run_share(tally),
        tokens_per_s=tally.tokens_per_s if tally.alive and process != "none" else 0.0,
        peers_up=tuple(sorted(name for name, peer in tally.peers.items() if peer.up)),
        last_word_s=max(0.0, now_s - tally.last_wall_s) if tally.started else None,
    )


def _process(lock: Path) -> str:
    """Which process holds the island: its number, or where it runs if that is another machine, or ``none``."""
    try:
        holder = json.loads(lock.read_text(encoding="utf-8"))
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, TypeError, KeyError):
        return "none"
    if host != platform.node():
        return f"{pid} on {host}"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "none"
    except PermissionError:
        pass
    return str(pid)


def _run_share(tally: Tally) -> float | None:
    if tally.started is None or tally.started.token_budget < 1:
        return None
    return max(tally.progress_tokens, tally.tokens) / tally.started.token_budget


def _row(status: IslandStatus) -> tuple[str, ...]:
    share = "-" if status.run_share is None else f"{status.run_share:.1%}"
    last = "never" if status.last_word_s is None else f"{format_duration(status.last_word_s)} ago"
    return (
        status.island,
        status.state,
        status.process,
        str(status.step),
        format_count(status.tokens),
        share,
        format_count(status.tokens_per_s),
        ", ".join(status.peers_up) or "none",
        last,
    )


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
