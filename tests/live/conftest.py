"""What holds for tests that start real islands."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from small_runs import children_of

PR_SET_CHILD_SUBREAPER = 36  # prctl(2), Linux


@pytest.fixture(autouse=True)
def _no_island_outlives_its_test():
    """An island left behind trains on and slows everything after it; orphans come to this process to be found."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    yield
    left = children_of(os.getpid(), "isthmus train")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "islands were left running"
