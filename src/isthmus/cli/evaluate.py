"""``isthmus eval`` and ``isthmus export``: what comes out of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import positive_int

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add both commands."""
    score = commands.add_parser(
        "eval",
        help="score a checkpoint or an export in bits per byte",
        description="Score the slow weights on held-out sets or files, in bits per byte with a standard error.",
    )
    _add_checkpoint(score)
    score.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="SET|GLOB",
        help='a held-out set ("python code", "technical english") or a glob of text files; may be repeated',
    )
    score.add_argument(
        "--bytes", type=positive_int, metavar="N", help="score at most so many bytes of each (default: all)"
    )
    score.set_defaults(command=run_eval)
    export = commands.add_parser("export", help="write the slow weights of a checkpoint as safetensors")
    _add_checkpoint(export)
    export.add_argument("out", metavar="OUT", type=Path, help="file to write: model.safetensors")
    export.set_defaults(command=run_export)


def run_eval(args: argparse.Namespace) -> int:
    """Score."""
    from isthmus.evaluate import run_eval as score

    return score(args.checkpoint, tuple(args.data), num_bytes=args.bytes)


def run_export(args: argparse.Namespace) -> int:
    """Export."""
    from isthmus.evaluate import run_export as export

    return export(args.checkpoint, args.out)


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a checkpoint, an island's directory, or an export"
    )
