"""``isthmus train`` and ``isthmus up``: islands that train."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir, dialled, positive_float

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add both commands."""
    train = commands.add_parser(
        "train",
        help="run one island: what one site runs",
        description="Join the run as one island, train until its token budget is spent, and export the model. Ctrl-C "
        "and SIGTERM save and leave; the same command then resumes.",
    )
    add_run_dir(train)
    who = train.add_mutually_exclusive_group(required=True)
    who.add_argument("--island", metavar="NAME", help="which island of the roster this is")
    who.add_argument(
        "--lease", action="store_true", help="be any island that is free, of those in leases.toml; wait until one is"
    )
    drill = train.add_argument_group("for drills on one machine")
    drill.add_argument(
        "--step-s", metavar="S", type=positive_float, default=0.0, help="let a step take at least so many seconds"
    )
    drill.add_argument(
        "--dial", metavar="NAME=HOST:PORT", type=dialled, action="append", default=[], help="find a peer here"
    )
    train.set_defaults(command=run_train)
    up = commands.add_parser(
        "up",
        help="run all islands of a run on this machine",
        description="Start every island whose directory is here as a process of its own, and show how they fare.",
    )
    add_run_dir(up)
    up.set_defaults(command=run_up)


def run_train(args: argparse.Namespace) -> int:
    """Run one island; what a person should hear goes to standard error, one line a round and one an event."""
    from isthmus.train import Drill, run_island

    logging.basicConfig(level=logging.INFO, format="%(message)s")

    dial = {name: tuple(where for other, where in args.dial if other == name) for name, _ in args.dial}
    return run_island(args.run_dir, args.island, Drill(args.step_s, dial))


def run_up(args: argparse.Namespace) -> int:
    """Run all islands that are here."""
    from isthmus.up import run_up as start_all

    return start_all(args.run_dir)
