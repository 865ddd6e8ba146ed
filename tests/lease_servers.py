"""Lease servers for tests: real ones, on loopback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from isthmus.addresses import split_address
from isthmus.leases import find_server
from small_runs import until


class Servers:
    """The servers whose files ``isthmus leases init`` has written into a directory.

    Args:
        directory: ``leases/`` of the run.
        addresses: Where each of them listens.
    """

    def __init__(self, directory: Path, addresses: Sequence[str]) -> None:
        self._directory, self._addresses = directory, addresses
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *nodes: int) -> None:
        """Start some, all if none is named, and wait until they answer."""
        nodes = nodes or tuple(range(len(self._addresses)))
        for node in nodes:
            command = [find_server(), "-c", f"nats-{node}.conf", "-l", f"nats-{node}.log"]
            self._running[node] = subprocess.Popen(command, cwd=self._directory, stdin=subprocess.DEVNULL)
        for node in nodes:
            until(lambda node=node: self._answers(node), f"server {node}")

    def kill(self, *nodes: int) -> None:
        """Kill some, all if none is named."""
        for node in nodes or tuple(self._running):
            process = self._running.pop(node)
            process.kill()
            process.wait()

    def _answers(self, node: int) -> bool:
        with suppress(OSError), socket.create_connection(split_address(self._addresses[node]), timeout=1.0):
            return True
        return False


@contextmanager
def serving(directory: Path, addresses: Sequence[str]) -> Iterator[Servers]:
    """Servers that run meanwhile."""
    servers = Servers(directory, addresses)
    servers.start()
    try:
        yield servers
    finally:
        servers.kill()
