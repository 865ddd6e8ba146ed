"""``isthmus init``: an example run to change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import names, positive_int

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "init",
        help="write the commented files and keys of a new run",
        description="Write run.toml, roster.toml, the owner's key, and each island's island.toml and identity. As "
        "written, the run works on this machine: `isthmus up DIR`.",
    )
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="a directory that is empty or does not exist")
    parser.add_argument(
        "--islands",
        type=names,
        default=("us-east", "asia"),
        metavar="A,B,...",
        help="names of the islands, in the order of their slots (default: us-east,asia)",
    )
    parser.add_argument("--preset", default="nano", help="the model (default: %(default)s)")
    parser.add_argument(
        "--tokens",
        type=positive_int,
        default=20_000_000,
        metavar="N",
        help="token budget of the whole run (default: %(default)s)",
    )
    parser.add_argument(
        "--addresses",
        type=_addresses,
        default={},
        metavar="A=HOST:PORT,...",
        help="where the others reach an island (default: loopback, ports from 47110)",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Write the example."""
    from isthmus.config import RunPaths, write_example

    config = write_example(
        args.run_dir, args.islands, preset=args.preset, addresses=args.addresses, token_budget=args.tokens
    )
    paths = RunPaths(args.run_dir)
    print(f"Wrote the run {config.run.name} ({config.short_hash}) to {paths.root}:")
    print("  run.toml     what all islands share")
    print("  roster.toml  the islands, signed with owner.key (which stays with you)")
    for name in args.islands:
        print(f"  {paths.island(name).root.relative_to(paths.root)}/  for the site of {name} alone")
    print(f"After a change to one of the first two: isthmus roster sign {paths.root}")
    print(f"All islands on this machine: isthmus up {paths.root}")
    print(f"One island at its site:      isthmus train {paths.root} --island {args.islands[0]}")
    return 0


def _addresses(text: str) -> dict[str, str]:
    pairs = dict[str, str]()
    for part in names(text):
        name, equals, address = part.partition("=")
        if not (name and equals and address):
            raise argparse.ArgumentTypeError(f"got {part!r}; wanted NAME=HOST:PORT")
        pairs[name] = address
    return pairs
