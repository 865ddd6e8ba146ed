"""What a folder on a disk does beyond the common suite."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from isthmus.checkpoint import CrashError, FaultPlan, FaultyStorage, LocalStorage, MemoryStorage
from isthmus.clock import VirtualClock


@contextmanager
def no_file_longer_than(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_a_disk_that_refuses_bytes_leaves_the_old_file_and_no_trace(tmp_path, chunk_bytes):
    storage = LocalStorage(tmp_path)
    storage.write_atomic("a", [b"old"])
    with no_file_longer_than(50), pytest.raises(OSError) as caught:
        storage.write_atomic("a", [b"x" * chunk_bytes])
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_sweep_removes_what_a_killed_write_left_and_nothing_else(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.write_atomic("a", [b"x"])
    (tmp_path / ".b.tmp").write_bytes(b"half")
    (tmp_path / ".keep").write_bytes(b"")
    assert storage.names() == ["a"]
    storage.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".keep", "a"]


def test_reading_does_not_create_the_folder(tmp_path):
    storage = LocalStorage(tmp_path / "none")
    assert storage.names() == []
    assert not storage.exists("a")
    assert not (tmp_path / "none").exists()


def test_a_full_disk_says_so_and_has_room_again_after_a_delete():
    inner = MemoryStorage()
    storage = FaultyStorage(inner, FaultPlan(capacity_bytes=10))
    storage.write_atomic("a", [b"123456"])
    with pytest.raises(OSError) as caught:
        storage.write_atomic("b", [b"1234", b"5"])
    assert caught.value.errno == errno.ENOSPC
    assert inner.names() == ["a"]
    storage.delete("a")
    storage.write_atomic("b", [b"1234", b"5"])
    assert inner.size("b") == 5


def test_a_torn_write_reports_success_and_keeps_half():
    inner = MemoryStorage()
    storage = FaultyStorage(inner, FaultPlan(torn_writes=frozenset({1})))
    for name in ("a", "b", "c"):
        storage.write_atomic(name, [b"1234", b"5678"])
    assert [inner.size(name) for name in ("a", "b", "c")] == [8, 4, 8]


def test_a_crash_passes_handlers_of_ordinary_errors():
    storage = FaultyStorage(MemoryStorage(), FaultPlan(crash_at=0))

    def delete_and_forgive() -> None:
        with suppress(Exception):
            storage.delete("a")

    with pytest.raises(CrashError):
        delete_and_forgive()


def test_a_slow_disk_moves_the_clock():
    clock = VirtualClock()
    plan = FaultPlan(before_chunk=lambda: clock.advance_to(clock.now_s() + 2.0))
    FaultyStorage(MemoryStorage(), plan).write_atomic("a", [b"1", b"2", b"3"])
    assert clock.now_s() == 6.0
