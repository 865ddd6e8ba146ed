"""``isthmus shape``: loopback as a long, thin link."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command; its arguments are read when it runs, because they are the shaper's own."""
    parser = commands.add_parser("shape", add_help=False, help="forward TCP with delay, a rate, cuts and heals")
    parser.set_defaults(command=run, passes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Run the shaper until its input ends."""
    from isthmus.transport import shaper

    parser = argparse.ArgumentParser(
        prog="isthmus shape",
        description="Forward TCP connections as if over a long, thin link. Standard input takes "
        "cut, heal, reset, rate MBIT, rtt MS and stats, one a line; it ends with its input.",
    )
    shaper.add_arguments(parser)
    return shaper.main(shaper.options_from(parser.parse_args(args.rest)))
