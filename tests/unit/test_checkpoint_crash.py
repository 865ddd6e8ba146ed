"""A crash, a full disk or a kill at any instant leaves the old state or the new one, whole."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isthmus.checkpoint import (
    CrashError,
    FaultPlan,
    FaultyStorage,
    LocalStorage,
    MemoryStorage,
    Storage,
    load_latest,
    prune,
    save,
)
from isthmus.errors import CheckpointError


def state_of(step: int, count: int = 5) -> dict:
    return {"step": step, "w": torch.full((count,), float(step)), "cursor": (step, b"%d" % step)}


def loaded_step(storage: Storage) -> int:
    loaded = load_latest(storage)
    assert loaded is not None
    state, info = loaded
    expected = state_of(info.step, count=len(state["w"]))
    assert torch.equal(state.pop("w"), expected.pop("w"))
    assert state == expected
    assert info.skipped == ()
    return info.step


def storage_after_three_saves(kind: str, folder: Path) -> Storage:
    storage = LocalStorage(folder) if kind == "local" else MemoryStorage()
    for step in (1, 2, 3):
        save(storage, step, state_of(step))
    return storage


def save_and_prune(storage: Storage) -> None:
    save(storage, 4, state_of(4))
    prune(storage, keep=2)


def count_points() -> int:
    storage = FaultyStorage(storage_after_three_saves("memory", Path()), FaultPlan())
    save_and_prune(storage)
    return storage.points


@pytest.mark.parametrize("kind", ["memory", pytest.param("local", marks=pytest.mark.slow)])
def test_a_crash_at_every_point_leaves_the_old_state_or_the_new_one(kind, tmp_path):
    points = count_points()
    assert points > 15
    found = []
    for crash_at in range(points):
        storage = storage_after_three_saves(kind, tmp_path / str(crash_at))
        with pytest.raises(CrashError):
            save_and_prune(FaultyStorage(storage, FaultPlan(crash_at=crash_at)))
        found.append(loaded_step(storage))
        save(storage, 5, state_of(5))
        prune(storage, keep=2)
        assert loaded_step(storage) == 5
        assert len(storage.names()) == 4
    assert found == sorted(found)
    assert set(found) == {3, 4}


def test_a_full_disk_is_an_error_that_keeps_the_old_state_and_leaves_no_trace():
    full_size = MemoryStorage()
    before = storage_after_three_saves("memory", Path())
    used = sum(before.size(name) for name in before.names())
    save(full_size, 4, state_of(4))
    needed = sum(full_size.size(name) for name in full_size.names())
    for free in range(0, needed, 7):
        storage = storage_after_three_saves("memory", Path())
        names = storage.names()
        faulty = FaultyStorage(storage, FaultPlan(capacity_bytes=used + free))
        with pytest.raises(CheckpointError, match=r"step 4 was not saved; got .*No space left"):
            save(faulty, 4, state_of(4))
        assert storage.names() == names
        assert loaded_step(storage) == 3
        prune(faulty, keep=1)
        assert save(faulty, 4, state_of(4)).step == 4
    storage = FaultyStorage(storage_after_three_saves("memory", Path()), FaultPlan(capacity_bytes=used + needed))
    save(storage, 4, state_of(4))
    assert loaded_step(storage) == 4


@pytest.mark.slow
def test_twenty_kills_in_mid_save_never_lose_a_finished_save(tmp_path):
    ended = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0, "no kill fell into a write"
    save(LocalStorage(tmp_path), 0, state_of(0))
    prune(LocalStorage(tmp_path))
    assert len(list(tmp_path.iterdir())) == 4


def _save_until_killed(storage: Storage, told: int) -> None:
    step = loaded_step(storage) if storage.names() else 0
    while True:
        step += 1
        save(storage, step, state_of(step, count=500_000))
        os.write(told, step.to_bytes(8, "little"))
        prune(storage, keep=2)


def _is_mid_write(folder: Path) -> bool:
    return any(name.startswith(".") for name in os.listdir(folder))


def _kill_once(folder: Path, delay_s: float, *, mid_write: bool) -> int:
    """Kill a saving child ``delay_s`` after its first save, or at its next write after that.

    Returns the last step it said was saved.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _save_until_killed(LocalStorage(folder), writing)
    os.close(writing)
    told = os.read(reading, 8)
    if not told:
        raise SystemExit("the saving child ended before its first save")
    select.select([], [], [], delay_s)
    while mid_write and not _is_mid_write(folder):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 8):
        told = more
    os.close(reading)
    return int.from_bytes(told, "little")


def _main(folder: Path) -> None:
    """Twenty kills; prints how many left a half-written file."""
    torch.set_num_threads(1)
    rng = random.Random(7)
    storage = LocalStorage(folder)
    torn = 0
    for kill in range(20):
        told = _kill_once(folder, rng.uniform(0.0, 0.03), mid_write=kill % 2 == 0)
        found = loaded_step(storage)
        if found not in (told, told + 1):
            raise SystemExit(f"step {told} was said to be saved, {found} was found")
        torn += _is_mid_write(folder)
    sys.stdout.write(str(torn))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
