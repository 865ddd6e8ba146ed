"""A TCP relay that makes loopback a long, thin link: delay and rate in each direction, cuts, and byte counts.

Each direction is one bottleneck that all connections share. What waits in it is bounded by about one
bandwidth-delay product and 100 ms, after which the relay stops reading, so that senders feel the link's rate. Needs
no root.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass

from isthmus.addresses import split_address
from isthmus.transport.doorman import address_of, listen
from isthmus.units import KIB, MIB

WINDOW_S = 0.1
QUEUE_S = 0.1

_SLICE_S = 0.005
_STREAM_BUFFER_BYTES = 16 * KIB
_KERNEL_BUFFER_BYTES = 32 * KIB
_UNLIMITED_QUEUE_BYTES = 16 * MIB


@dataclass(frozen=True)
class ShaperOptions:
    """Where to listen and forward to (``host:port``), the round trip, and the rate of each direction (or None)."""

    listen: str
    target: str
    rtt_s: float = 0.0
    rate_bits_per_s: float | None = None


class Direction:
    """One way through the relay: a queue of bounded length, a rate, then a delay."""

    def __init__(self, rtt_s: float, rate_bits_per_s: float | None) -> None:
        self.rtt_s = rtt_s
        self.rate_bits_per_s = rate_bits_per_s
        self.windows: dict[int, int] = {}
        self._free_s = 0.0
        self._inside_bytes = 0
        self._room = asyncio.Condition()

    @property
    def read_bytes(self) -> int:
        """How much to read at once, so that connections take fair turns: 5 ms worth."""
        if self.rate_bits_per_s is None:
            return 64 * KIB
        return int(min(max(self.rate_bits_per_s / 8 * _SLICE_S, KIB), 64 * KIB))

    async def enter(self, num_bytes: int, now_s: float) -> float:
        """Wait for room, then take it; when these bytes come out at the other end."""
        async with self._room:
            await self._room.wait_for(lambda: self._inside_bytes < self._capacity_bytes())
            self._inside_bytes += num_bytes
        start_s = max(now_s, asyncio.get_running_loop().time(), self._free_s)
        rate = self.rate_bits_per_s
        self._free_s = start_s if rate is None else start_s + num_bytes * 8 / rate
        return self._free_s + self.rtt_s / 2

    async def leave(self, num_bytes: int, now_s: float) -> None:
        """These bytes came out."""
        window = int(now_s / WINDOW_S)
        self.windows[window] = self.windows.get(window, 0) + num_bytes
        await self.give_up(num_bytes)

    async def give_up(self, num_bytes: int) -> None:
        """These bytes are gone: their connection ended."""
        async with self._room:
            self._inside_bytes -= num_bytes
            self._room.notify_all()

    def _capacity_bytes(self) -> float:
        if self.rate_bits_per_s is None:
            return _UNLIMITED_QUEUE_BYTES
        return max(self.rate_bits_per_s / 8 * (self.rtt_s / 2 + QUEUE_S), 2 * self.read_bytes)


class Shaper:
    """The relay; used inside an event loop."""

    def __init__(self, options: ShaperOptions) -> None:
        self._target = split_address(options.target)
        self._directions = [Direction(options.rtt_s, options.rate_bits_per_s) for _ in range(2)]
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._relays: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen; the address with the real port.

        Raises:
            LinkError: the address cannot be had.
        """
        listener = listen(address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BUFFER_BYTES)
        listener.setblocking(False)
        where = address_of(listener)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_STREAM_BUFFER_BYTES)
        return where

    def cut(self) -> None:
        """Stop forwarding without a word, and turn new connections away."""
        self._healthy.clear()

    def heal(self) -> None:
        """Forward again, what was held up first."""
        self._healthy.set()

    def reset(self) -> None:
        """Break all connections there are."""
        for relay in self._relays:
            relay.cancel()

    def set_rate(self, rate_bits_per_s: float | None) -> None:
        """Change the rate of both directions."""
        for direction in self._directions:
            direction.rate_bits_per_s = rate_bits_per_s

    def set_rtt(self, rtt_s: float) -> None:
        """Change the round trip."""
        for direction in self._directions:
            direction.rtt_s = rtt_s

    def take_windows(self) -> list[tuple[float, int, int]]:
        """Windows of 100 ms that are over since the last call: start in seconds, bytes forward, bytes backward."""
        over = int(asyncio.get_running_loop().time() / WINDOW_S)
        ahead, back = (direction.windows for direction in self._directions)
        done = sorted(window for window in ahead.keys() | back.keys() if window < over)
        return [(window * WINDOW_S, ahead.pop(window, 0), back.pop(window, 0)) for window in done]

    async def close(self) -> None:
        """Stop listening and break all connections."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.current_task()
        assert relay is not None
        self._relays.add(relay)
        try:
            if self._healthy.is_set():
                await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # a broken connection is what this tool is for; the other end is broken in turn
        finally:
            self._relays.discard(relay)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = socket.socket(socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BUFFER_BYTES)
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, self._target)
            far_reader, far_writer = await asyncio.open_connection(sock=far, limit=_STREAM_BUFFER_BYTES)
        except BaseException:
            far.close()
            raise
        ahead, back = self._directions
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer, ahead))
                group.create_task(self._pump(far_reader, writer, back))
        except* OSError:
            pass  # as in _accept
        finally:
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        _bound_kernel_buffer(writer)
        line: deque[tuple[float, bytes]] = deque()
        arrived = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._deliver(line, arrived, writer, direction))
                await self._collect(reader, line, arrived, direction)
        finally:
            await direction.give_up(sum(len(data) for _, data in line))

    async def _collect(
        self,
        reader: asyncio.StreamReader,
        line: deque[tuple[float, bytes]],
        arrived: asyncio.Event,
        direction: Direction,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await reader.read(direction.read_bytes)
            out_s = await direction.enter(len(data), loop.time())
            line.append((out_s, data))
            arrived.set()
            if not data:
                return

    async def _deliver(
        self,
        line: deque[tuple[float, bytes]],
        arrived: asyncio.Event,
        writer: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not line:
                arrived.clear()
                await arrived.wait()
            out_s, data = line[0]
            await asyncio.sleep(out_s - loop.time())
            await self._healthy.wait()
            if not data:
                line.popleft()
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            line.popleft()
            await direction.leave(len(data), loop.time())


def _bound_kernel_buffer(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.transport.set_write_buffer_limits(high=0)
