"""The relay that makes loopback a long, thin link."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from isthmus.errors import ConfigError, LinkError
from isthmus.transport.relay import Shaper, ShaperOptions
from isthmus.transport.shaper import add_arguments, obey, options_from, serve_shaper
from isthmus.transport.shaper_process import ShaperProcess


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve_one(peer: socket.socket) -> None:
            with peer:
                try:
                    while data := peer.recv(65536):
                        peer.sendall(data)
                except ConnectionError:
                    return

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve_one, args=(peer,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def dial(shaper: ShaperProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", shaper.port), timeout=10.0)


def exchange(sock: socket.socket, data: bytes) -> bytes:
    def send() -> None:
        with contextlib.suppress(OSError):
            sock.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    back = b""
    while len(back) < len(data):
        part = sock.recv(65536)
        assert part, "hung up"
        back += part
    return back


def test_bytes_come_back_unchanged_after_a_round_trip_at_the_rate(echo):
    data = bytes(range(256)) * 400
    with ShaperProcess(ShaperOptions("127.0.0.1:0", echo, rtt_s=0.1, rate_bits_per_s=4e6)) as shaper:
        with dial(shaper) as sock:
            start_s = time.monotonic()
            assert exchange(sock, b"x") == b"x"
            assert 0.1 <= time.monotonic() - start_s < 1.0
            start_s = time.monotonic()
            assert exchange(sock, data) == data
            assert time.monotonic() - start_s >= 0.1 + len(data) * 8 / 4e6
        windows = shaper.take_windows()
        ahead = [window[1] for window in windows]
        assert sum(ahead) <= len(data) + 1
        assert max(ahead) <= 1.5 * 4e6 / 8 * 0.1


def test_two_connections_share_one_bottleneck(echo):
    data = bytes(50_000)
    options = ShaperOptions("127.0.0.1:0", echo, rate_bits_per_s=4e6)
    with ShaperProcess(options) as shaper, dial(shaper) as one, dial(shaper) as two:
        start_s = time.monotonic()
        other = threading.Thread(target=exchange, args=(one, data))
        other.start()
        exchange(two, data)
        other.join()
        assert time.monotonic() - start_s >= 2 * len(data) * 8 / 4e6


def test_a_cut_holds_up_and_a_reset_breaks(echo):
    with ShaperProcess(ShaperOptions("127.0.0.1:0", echo)) as shaper, dial(shaper) as sock:
        assert exchange(sock, b"before") == b"before"
        shaper.cut()
        shaper.take_windows()
        sock.sendall(b"during")
        with dial(shaper) as turned_away, pytest.raises((ConnectionError, AssertionError)):
            exchange(turned_away, b"x")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(10)
        sock.settimeout(10.0)
        shaper.heal()
        assert sock.recv(10) == b"during"
        shaper.reset()
        with pytest.raises((ConnectionError, AssertionError)):
            exchange(sock, b"x")
        with dial(shaper) as fresh:
            assert exchange(fresh, b"after") == b"after"


def test_the_end_of_a_stream_passes_through(echo):
    with ShaperProcess(ShaperOptions("127.0.0.1:0", echo, rtt_s=0.02)) as shaper, dial(shaper) as sock:
        sock.sendall(b"last words")
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while part := sock.recv(100):
            received += part
        assert received == b"last words"


def test_rate_and_delay_change_while_it_runs(echo):
    with ShaperProcess(ShaperOptions("127.0.0.1:0", echo, rtt_s=5.0, rate_bits_per_s=1e3)) as shaper:
        shaper.set_rtt(0.05)
        shaper.set_rate(None)
        shaper.take_windows()
        with dial(shaper) as sock:
            start_s = time.monotonic()
            assert exchange(sock, bytes(1000)) == bytes(1000)
            assert 0.05 <= time.monotonic() - start_s < 4.0


def test_it_says_where_it_listens_and_ends_with_its_commands():
    output = io.StringIO()
    serve_shaper(ShaperOptions("127.0.0.1:0", "127.0.0.1:9"), ["cut\n", "nonsense\n", "quit\n", "cut\n"], output)
    started, done, complaint = (json.loads(line) for line in output.getvalue().splitlines())
    assert started["listen"] == f"127.0.0.1:{started['port']}"
    assert done == {"done": "cut"}
    assert "nonsense" in complaint["error"]


@pytest.mark.parametrize("line", ["rate", "rate x", "rtt -5", "", "cut now"])
def test_a_command_that_makes_no_sense_is_answered(line):
    async def answer() -> object:
        return obey(Shaper(ShaperOptions("127.0.0.1:0", "127.0.0.1:9")), line.split())

    assert "error" in str(asyncio.run(answer()))


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LinkError, match="cannot listen"):
            serve_shaper(ShaperOptions(where, "127.0.0.1:9"), [], io.StringIO())


def test_the_arguments_are_those_of_the_command_line():
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["--listen", "127.0.0.1:1", "--to", "127.0.0.1:2", "--rtt-ms", "180", "--rate-mbit", "5"]
    assert options_from(parser.parse_args(words)) == ShaperOptions("127.0.0.1:1", "127.0.0.1:2", 0.18, 5e6)
    with pytest.raises(ConfigError):
        options_from(parser.parse_args(["--to", "127.0.0.1:2", "--rtt-ms", "-1"]))


def test_it_ends_when_whoever_started_it_is_gone(echo):
    command = [sys.executable, "-m", "isthmus.transport.shaper", "--to", echo]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(10) == 0
