"""The link process: obeys its island over a socket pair, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from isthmus.errors import IdentityError, IsthmusError, LinkError
from isthmus.terms import LinkSample
from isthmus.transport.buffers import SharedBuffer
from isthmus.transport.dialler import Dialler
from isthmus.transport.doorman import Doorman, address_of, listen
from isthmus.transport.hub import Hub, Outbox
from isthmus.transport.ipc import (
    Close,
    Command,
    Failed,
    Listening,
    Publish,
    Samples,
    SendMessage,
    Taken,
    link_end,
)
from isthmus.transport.peer import Peer
from isthmus.transport.settings import LinkSettings
from isthmus.wire import Kind

SAMPLE_WINDOW_S = 0.1
SAMPLES_PER_REPORT = 10

_CRASHED = 70


class Agent:
    """Everything a link process runs.

    Raises:
        LinkError: the listen address cannot be had.
        IdentityError: keys or certificates are unusable.
    """

    def __init__(self, settings: LinkSettings, outbox: Outbox) -> None:
        self._hub = Hub(settings, outbox)
        self._peers = {address.name: Peer(self._hub, address) for address in settings.peers}
        listener = None if settings.listen is None else listen(settings.listen)
        outbox.put(Listening(None if listener is None else address_of(listener)))
        self._doorman = None if listener is None else Doorman(self._hub, self._peers, listener)
        if self._doorman is not None:
            _start(self._doorman.run, "doorman")
        for peer in self._peers.values():
            if peer.addresses:
                _start(Dialler(peer).run, f"dial {peer.name}")
        _start(Sampler(self._hub).run, "sampler")

    def obey(self, command: Command, fd: int | None) -> None:
        """Carry out a command; none takes long."""
        if isinstance(command, SendMessage):
            self._peers[command.peer].send(Kind.MESSAGE, command.body)
        elif isinstance(command, Publish):
            payload = memoryview(b"" if fd is None else SharedBuffer.received(fd, command.header.num_bytes))
            self._peers[command.peer].publish(command.header, payload, command.spread_s)
        elif isinstance(command, Taken):
            self._peers[command.peer].room.release()
        elif isinstance(command, Close):
            _start(lambda: self._close(command.timeout_s), "close")

    def _close(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._hub.closing.set()
        if self._doorman is not None:
            self._doorman.close()
        closers = [_start(partial(peer.close, deadline_s), "goodbye") for peer in self._peers.values()]
        for closer in closers:
            closer.join(max(0.0, deadline_s - time.monotonic()))
        self._hub.outbox.finish(timeout_s=1.0)
        os._exit(0)


class Sampler:
    """Counts bytes in windows of 100 ms, reports them once a second, and watches that the island lives."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._parent = os.getppid()

    def run(self) -> None:
        """Serve for good; ends the process when its parent has ended.

        The end of the socket pair says the same, unless a forked child of the island holds on to it.
        """
        samples: list[LinkSample] = []
        start_s = last_report_s = time.monotonic()
        while True:
            time.sleep(max(0.0, start_s + SAMPLE_WINDOW_S - time.monotonic()))
            now_s = time.monotonic()
            sample = self._hub.meter.sample(start_s, now_s - start_s)
            start_s = now_s
            if sample is not None:
                samples.append(sample)
            if samples and now_s - last_report_s >= SAMPLE_WINDOW_S * SAMPLES_PER_REPORT:
                self._hub.outbox.put(Samples(tuple(samples)))
                samples, last_report_s = [], now_s
            if os.getppid() != self._parent:
                os._exit(0)


def run_agent(fd: int) -> int:
    """Run a link process on its end of the socket pair; the exit code."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the island gets them too, and closes the link when it has saved
    threading.excepthook = _crash
    channel = link_end(socket.socket(fileno=fd))
    outbox = Outbox(channel)
    agent: Agent | None = None
    while True:
        try:
            commands = channel.receive()
        except EOFError:
            return 0
        for command, command_fd in commands:
            if isinstance(command, LinkSettings):
                try:
                    agent = Agent(command, outbox)
                except (LinkError, IdentityError) as error:
                    outbox.put(_failed(error))
                    outbox.finish(timeout_s=1.0)
                    return 1
            elif agent is not None:
                agent.obey(command, command_fd)


def _failed(error: IsthmusError) -> Failed:
    got = "" if error.got is None else str(error.got)
    wanted = "" if error.wanted is None else str(error.wanted)
    return Failed(error.what, got, wanted, error.mend)


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _crash(arguments: threading.ExceptHookArgs) -> None:
    traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback, file=sys.stderr)
    os._exit(_CRASHED)  # half a link is worse than none: the island starts a new one
