"""``isthmus lab``: many islands in one process on a virtual clock, many runs in one grid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import positive_int

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "lab",
        help="run a study: a grid of training runs over arms and seeds, on a virtual clock",
        description="Run every cell of a study's grid on a virtual clock, several at a time, each in a process of its "
        "own; then write a table (JSON lines) and a report with intervals. Stopped or killed, the same command goes "
        "on where it was. See examples/study.toml.",
    )
    parser.add_argument("study", metavar="STUDY.toml", type=Path, help="the study file")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where everything goes (default: runs/lab/NAME)")
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="runs at a time (default: one a core)")
    parser.add_argument("--list", action="store_true", help="check the study and list its runs, without running any")
    parser.add_argument("--report", action="store_true", help="write table and report of the runs there are")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run, list or report a study, or be the worker of one run."""
    from isthmus.lab import command

    if args.cell is not None:
        return command.work_on(args.study, args.out, args.cell)
    if args.list:
        return command.list_runs(args.study, args.out)
    return command.run_study(args.study, args.out, jobs=args.jobs, only_report=args.report)
