"""The command ``isthmus``: finds the command, runs it, and turns what it raises into a message and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from isthmus import __version__
from isthmus.cli import chaos, demo, evaluate, init, lab, leases, plan, report, roster, shape, status, train
from isthmus.errors import IsthmusError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells expect it."""

_COMMANDS = (init, demo, train, status, report, evaluate, roster, leases, plan, lab, shape, chaos)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse itself exits with 0 after help and 2 on bad arguments."""
    # Threads that spin while they wait starve on cores that others use too; OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if rest and not args.passes_rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        code = int(args.command(args))
        sys.stdout.flush()
        return code
    except IsthmusError as error:
        print(f"isthmus: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("isthmus: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="isthmus",
        description="Train one model on islands of compute joined by a thin link.",
        epilog="Start with `isthmus demo`, or `isthmus init DIR` for a run of your own. "
        "Exit codes: 0 done, 1 failed, 2 bad arguments or config.",
    )
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    parser.set_defaults(passes_rest=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add(commands)
    return parser
