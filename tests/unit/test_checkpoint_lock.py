"""One process per island directory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from isthmus.checkpoint import IslandLock
from isthmus.errors import LockError

HOLDER = """
import os, sys
from pathlib import Path
from isthmus.checkpoint import IslandLock

IslandLock(Path(sys.argv[1])).acquire()
if os.fork() == 0:  # the child, which by now has closed its copy of the lock, says so
    sys.stdout.write("held")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_a_held_island_is_refused_and_its_holder_named(tmp_path):
    with IslandLock(tmp_path), pytest.raises(LockError) as caught:
        IslandLock(tmp_path).acquire()
    assert f"process {os.getpid()} on {platform.node()}, since 20" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_released_island_can_be_taken_again_and_again(tmp_path):
    lock = IslandLock(tmp_path)
    for _ in range(3):
        with lock:
            pass
    lock.release()
    with pytest.raises(KeyError), IslandLock(tmp_path):
        raise KeyError
    with IslandLock(tmp_path):
        pass


def test_two_islands_have_two_locks(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with IslandLock(tmp_path / "a"), IslandLock(tmp_path / "b"):
        pass


def test_a_holder_that_has_not_named_itself_is_still_a_holder(tmp_path):
    with IslandLock(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(LockError, match="a process that has not yet said which"):
            IslandLock(tmp_path).acquire()


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(LockError, match="cannot open"):
        IslandLock(tmp_path / "none").acquire()


@pytest.mark.slow
def test_a_killed_holder_frees_the_island_though_its_child_lives(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.read(4) == b"held"
        with pytest.raises(LockError, match=f"process {holder.pid} "):
            IslandLock(tmp_path).acquire()
        holder.kill()
        holder.wait()
        with IslandLock(tmp_path):
            pass
        holder.stdin.close()
