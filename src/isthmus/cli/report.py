"""``isthmus report``: a run as one page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="write report.html from a run's records",
        description="Write RUN_DIR/report.html, one file without links to others, from the records alone.",
    )
    add_run_dir(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and say where."""
    from isthmus.observe.report import write_report

    print(write_report(args.run_dir))
    return 0
