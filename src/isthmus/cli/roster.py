"""``isthmus roster``: who is in a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir
from isthmus.windows import WINDOW_FORMS

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands
    from isthmus.roster import Roster


def add(commands: Commands) -> None:
    """Add the command and its parts."""
    parser = commands.add_parser("roster", help="show, change or sign the list of a run's islands")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = parts.add_parser("show", help="show who is in the run, and whom each trades with")
    add_run_dir(show)
    show.set_defaults(command=run_show)
    sign = parts.add_parser(
        "sign",
        help="sign roster.toml again after a change to it or to run.toml",
        description="Sign roster.toml, one version up, for run.toml as it now is. Needs owner.key. Give both files "
        "to every site afterwards; while islands train, run.toml stays as it is.",
    )
    add_run_dir(sign)
    sign.set_defaults(command=run_sign)
    join = parts.add_parser(
        "add",
        help="add an island, in a slot of its own",
        description="Add an island to roster.toml and sign it, one version up. Needs owner.key. Without a certificate "
        "the island's files and keys are written, too: give its site islands/NAME. Give roster.toml to one site at "
        "least; islands that train see it, go by it, and tell the others.",
    )
    add_run_dir(join)
    join.add_argument("name", metavar="NAME", help="its name: a-z, 0-9 and -")
    join.add_argument("--address", metavar="HOST:PORT", help="where the others reach it; without, it only dials")
    join.add_argument("--certificate", type=Path, metavar="FILE", help="its identity.crt, if its site made one")
    join.set_defaults(command=run_add)
    remove = parts.add_parser(
        "remove",
        help="take an island out",
        description="Take an island from roster.toml and sign it, one version up. Needs owner.key. Give the file to "
        "one other site at least; islands that train see it, tell the others, and refuse the removed one.",
    )
    add_run_dir(remove)
    remove.add_argument("name", metavar="NAME", help="its name")
    remove.set_defaults(command=run_remove)
    windows = parts.add_parser(
        "windows",
        help="say when an island's capacity is there",
        description="Set an island's windows in roster.toml and sign it, one version up: it waits until one opens, "
        "publishes what it has, saves and leaves before it closes, and the others do not wait for it meanwhile. Needs "
        "owner.key. Give the file to one site at least.",
    )
    add_run_dir(windows)
    windows.add_argument("name", metavar="NAME", help="its name")
    windows.add_argument(
        "windows", metavar="WINDOW", nargs="*", help=f"{WINDOW_FORMS}; none: its capacity is always there"
    )
    windows.set_defaults(command=run_windows)


def run_show(args: argparse.Namespace) -> int:
    """Print a verified roster."""
    from isthmus.config import load_shared

    shared = load_shared(args.run_dir)
    print(f"run {shared.run.run.name} ({shared.run.short_hash}), signed by {shared.run.run.owner}")
    _print_roster(shared.roster)
    return 0


def run_sign(args: argparse.Namespace) -> int:
    """Sign the roster again and print it."""
    from isthmus.config import sign_again

    _print_roster(sign_again(args.run_dir))
    return 0


def run_add(args: argparse.Namespace) -> int:
    """Add an island and print the roster."""
    from isthmus.config import add_island

    _print_roster(add_island(args.run_dir, args.name, address=args.address, certificate=args.certificate))
    return 0


def run_remove(args: argparse.Namespace) -> int:
    """Take an island out and print the roster."""
    from isthmus.config import remove_island

    _print_roster(remove_island(args.run_dir, args.name))
    return 0


def run_windows(args: argparse.Namespace) -> int:
    """Set an island's windows and print the roster."""
    from isthmus.config import set_windows

    _print_roster(set_windows(args.run_dir, args.name, args.windows))
    return 0


def _print_roster(roster: Roster) -> None:
    from isthmus.identity import certificate_fingerprint
    from isthmus.roster import partners

    print(f"roster version {roster.version} of run {roster.run[:12]}")
    for island in sorted(roster.islands, key=lambda island: island.slot):
        trades = ", ".join(roster.at(partner.slot).name for partner in partners(island.slot, roster.slots))
        where = ", ".join(island.addresses) or "dials out"
        there = f"; there {', '.join(island.windows)}" if island.windows else ""
        fingerprint = certificate_fingerprint(island.certificate_pem)[:16]
        trades = f"trades with {trades or 'nobody'}"
        print(f"  slot {island.slot:2d}  {island.name}  {where}  key {fingerprint}  {trades}{there}")
