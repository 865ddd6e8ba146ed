"""``isthmus demo``: islands over slow links, against training in one place."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import positive_float, positive_int

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="islands on this machine over slow links, compared with training in one place",
        description="Start islands as processes of their own that speak TLS through a shaper which makes loopback "
        "a long, thin link; then train the same model in one place on as many tokens, and compare.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="run directory (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=positive_int,
        metavar="N",
        help="steps of the larger island (default: 528, under 6 minutes on 2 cores)",
    )
    parser.add_argument(
        "--no-baseline", dest="baseline", action="store_false", help="leave out the training in one place"
    )
    parser.add_argument(
        "--rtt-ms",
        type=positive_float,
        default=180.0,
        metavar="MS",
        help="round trip of the link in milliseconds (default: %(default)g)",
    )
    parser.add_argument(
        "--rate-mbit",
        type=positive_float,
        metavar="MBIT",
        help="rate of the link in Mbit/s, each way (default: so low that synchronous training would crawl)",
    )
    parser.add_argument(
        "--islands", type=positive_int, default=2, metavar="N", help="2 to 8 islands (default: %(default)s)"
    )
    parser.add_argument("--optimizer", default="shampoo", help="inner optimizer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and order of data (default: %(default)s)")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    from isthmus.demo import run_demo

    return run_demo(
        out=args.out,
        steps=args.steps,
        baseline=args.baseline,
        rtt_ms=args.rtt_ms,
        rate_mbit=args.rate_mbit,
        optimizer=args.optimizer,
        seed=args.seed,
        islands=args.islands,
    )
