"""``isthmus leases``: islands for whoever comes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.addresses import split_address
from isthmus.cli.arguments import add_run_dir, names

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command and its parts."""
    parser = commands.add_parser("leases", help="let machines take islands that are free, kept by NATS servers")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    init = parts.add_parser(
        "init",
        help="write leases.toml, keys and the servers' files",
        description="Say which islands are leased, and where. Give leases.toml, leases/client.* and leases/server.crt "
        "to every site, with islands/NAME of the leased islands; leases/server.key and its nats-N.conf to server N.",
    )
    add_run_dir(init)
    init.add_argument(
        "--islands", type=names, required=True, metavar="A,B,...", help="those that are leased; * stands for anything"
    )
    init.add_argument(
        "--servers",
        type=_servers,
        default=("127.0.0.1:47222",),
        metavar="HOST:PORT,...",
        help="where the servers are reached: one, or a cluster of 3 or 5 (default: 127.0.0.1:47222)",
    )
    init.set_defaults(command=run_init)
    serve = parts.add_parser(
        "serve",
        help="run a lease server",
        description="Run a server as leases/nats-N.conf says, until Ctrl-C or SIGTERM: nats-server, 2.11 or newer.",
    )
    add_run_dir(serve)
    serve.add_argument("--node", type=int, default=0, metavar="N", help="which of a cluster's (default: 0)")
    serve.add_argument("--binary", type=Path, metavar="FILE", help="the program (default: the nats-server there is)")
    serve.set_defaults(command=run_serve)
    show = parts.add_parser("show", help="show who holds which island")
    add_run_dir(show)
    show.add_argument("--json", action="store_true", help="print JSON instead of text")
    show.set_defaults(command=run_show)


def run_init(args: argparse.Namespace) -> int:
    """Write the files."""
    from isthmus.leases import write_leases

    config = write_leases(args.run_dir, args.islands, args.servers)
    print(
        f"Wrote leases.toml and leases/ to {args.run_dir}: {', '.join(config.islands)} at {', '.join(config.servers)}"
    )
    nodes = [""] if len(args.servers) == 1 else [f" --node {node}" for node in range(len(args.servers))]
    for node, server in zip(nodes, args.servers, strict=True):
        print(f"At {server}:  isthmus leases serve {args.run_dir}{node}")
    print(f"At any site: isthmus train {args.run_dir} --lease")
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """Become the server."""
    from isthmus.config import RunPaths
    from isthmus.errors import ConfigError
    from isthmus.leases import find_server

    directory, conf = RunPaths(args.run_dir).leases_dir, f"nats-{args.node}.conf"
    if not (directory / conf).is_file():
        mend = f"Write it with `isthmus leases init {args.run_dir}`."
        raise ConfigError("there is no such server", got=f"no file {directory / conf}", mend=mend)
    binary = (find_server() if args.binary is None else args.binary).resolve()
    os.chdir(directory)
    try:
        os.execv(binary, [str(binary), "-c", conf])
    except OSError as error:
        raise ConfigError("the server cannot be started", got=f"{binary}: {error.strerror}") from error


def run_show(args: argparse.Namespace) -> int:
    """Print who holds what."""
    from msgspec import structs

    from isthmus.leases import read_leases, say_holders

    pool, book = read_leases(args.run_dir)
    if args.json:
        held = {name: book.holder(name) for name in pool}
        print(json.dumps({name: holder and structs.asdict(holder) for name, holder in held.items()}, indent=2))
    else:
        print("\n".join(say_holders(pool, book)))
    return 0


def _servers(text: str) -> tuple[str, ...]:
    found = names(text)
    for server in found:
        split_address(server)
    return found
