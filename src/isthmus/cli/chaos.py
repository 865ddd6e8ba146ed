"""``isthmus chaos``: kills, stops and cuts off real islands, and says what that costs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir, names, positive_float
from isthmus.units import format_count

if TYPE_CHECKING:
    from isthmus.chaos.goodput import Cost
    from isthmus.cli.arguments import Commands

_KINDS = ("kill", "stop", "cut", "isolate")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chaos",
        help="kill, stop and cut off the islands of a run on this machine, and measure what that costs",
        description="Start every island whose directory is here, strike them at random times (kill -9 and a restart, "
        "SIGSTOP, a cut between two, a cut between one and all others), then ask all to save and leave. Prints "
        "goodput: tokens trained over what the living islands could have trained; and the longest stall of an island "
        "that was not struck itself. The same seed strikes alike. What it measured is in RUN_DIR/chaos.json.",
    )
    add_run_dir(parser)
    parser.add_argument("--seed", type=int, default=0, help="of all chance (default: 0)")
    parser.add_argument("--minutes", metavar="M", type=positive_float, default=5.0, help="how long (default: 5)")
    parser.add_argument(
        "--every-s", metavar="S", type=positive_float, default=60.0, help="seconds from strike to strike (default: 60)"
    )
    parser.add_argument(
        "--step-s",
        metavar="S",
        type=positive_float,
        default=0.0,
        help="let a step take at least so long, so that one machine carries many islands (default: as fast as it can)",
    )
    parser.add_argument(
        "--kinds",
        type=names,
        default=_KINDS,
        help=f"what may happen, with commas between (default: {','.join(_KINDS)})",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run a drill and print what it has cost."""
    from isthmus.chaos import DrillPlan, run_drill
    from isthmus.chaos.strikes import KINDS
    from isthmus.errors import ConfigError

    if unknown := [kind for kind in args.kinds if kind not in KINDS] or not args.kinds:
        raise ConfigError("no such strike", got=f"--kinds {unknown}", wanted=f"some of {', '.join(KINDS)}")
    if args.every_s > args.minutes * 60:
        raise ConfigError(
            "the drill ends before its first strike",
            got=f"--every-s {args.every_s:g} in {args.minutes:g} minutes",
            wanted=f"--every-s of at most {args.minutes * 60:g}",
        )
    plan = DrillPlan(
        seed=args.seed,
        duration_s=args.minutes * 60,
        every_s=args.every_s,
        kinds=tuple(args.kinds),
        step_s=args.step_s,
    )
    cost, strikes, failed = run_drill(args.run_dir, plan, lambda line: print(line, flush=True))
    _print_cost(cost)
    print(f"{len(strikes)} strikes in {args.minutes:g} minutes; goodput {cost.goodput:.3f}")
    print(f"longest stall of an island that was not struck: {cost.stall_steps:.2f} steps")
    for name in failed:
        print(f"isthmus: {name} ended badly; its last words are in {args.run_dir}/islands/{name}", file=sys.stderr)
    return int(bool(failed))


def _print_cost(cost: Cost) -> None:
    rows = [("island", "trained", "could have", "lost", "step", "longest stall")]
    for name, island in cost.islands.items():
        rows.append(
            (
                name,
                format_count(island.tokens),
                format_count(round(island.possible_tokens)),
                format_count(island.lost_tokens),
                f"{island.step_s:.2f} s",
                f"{island.stall_s:.2f} s",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
