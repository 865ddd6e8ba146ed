"""What holds for tests that start real islands."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

MARK = "ISTHMUS_TEST"
"""A variable that the processes of a test inherit, wherever they end up."""


@pytest.fixture(autouse=True)
def _no_island_outlives_its_test(monkeypatch: pytest.MonkeyPatch):
    """An island left behind trains on and slows everything after it."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    yield
    left = list(islands_of(mark))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "islands were left running"


def islands_of(mark: str) -> Iterator[int]:
    """The processes that train islands of a test."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
            if b"isthmus" in words and b"train" in words and f"{MARK}={mark}".encode() in environment:
                yield int(process.name)
