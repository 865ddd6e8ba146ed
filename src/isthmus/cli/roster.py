"""``isthmus roster``: who is in a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from isthmus.cli.arguments import add_run_dir

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands
    from isthmus.roster import Roster


def add(commands: Commands) -> None:
    """Add the command and its two parts."""
    parser = commands.add_parser("roster", help="show or sign the list of a run's islands")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = parts.add_parser("show", help="show who is in the run, and whom each trades with")
    add_run_dir(show)
    show.set_defaults(command=run_show)
    sign = parts.add_parser(
        "sign",
        help="sign roster.toml again after a change to it or to run.toml",
        description="Sign roster.toml, one version up, for run.toml as it now is. Needs owner.key. Give both files "
        "to every site afterwards.",
    )
    add_run_dir(sign)
    sign.set_defaults(command=run_sign)


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


def _print_roster(roster: Roster) -> None:
    from isthmus.identity import certificate_fingerprint
    from isthmus.roster import partners

    print(f"roster version {roster.version} of run {roster.run[:12]}")
    for island in sorted(roster.islands, key=lambda island: island.slot):
        trades = ", ".join(roster.at(partner.slot).name for partner in partners(island.slot, roster.slots))
        where = ", ".join(island.addresses) or "dials out"
        fingerprint = certificate_fingerprint(island.certificate_pem)[:16]
        print(f"  slot {island.slot:2d}  {island.name}  {where}  key {fingerprint}  trades with {trades or 'nobody'}")
