"""What every storage promises."""

from __future__ import annotations

import pytest

from isthmus.checkpoint import FaultPlan, FaultyStorage, LocalStorage, MemoryStorage, Storage
from isthmus.errors import CheckpointError


@pytest.fixture(params=["local", "memory", "faulty without faults"])
def storage(request, tmp_path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "new" / "folder")
    if request.param == "memory":
        return MemoryStorage()
    return FaultyStorage(MemoryStorage(), FaultPlan())


def content(storage: Storage, name: str) -> bytes:
    with storage.open(name) as file:
        return file.read()


def test_chunks_of_every_kind_come_back_joined(storage):
    storage.write_atomic("a.bin", [b"one", bytearray(b"two"), memoryview(b"three"), b""])
    assert content(storage, "a.bin") == b"onetwothree"
    assert storage.size("a.bin") == 11
    assert storage.exists("a.bin")


def test_an_empty_file_is_a_file(storage):
    storage.write_atomic("empty", [])
    assert storage.exists("empty")
    assert storage.size("empty") == 0
    assert content(storage, "empty") == b""


def test_a_second_write_replaces_the_first(storage):
    storage.write_atomic("a", [b"a long first version"])
    storage.write_atomic("a", [b"short"])
    assert content(storage, "a") == b"short"


def test_an_error_in_the_chunks_leaves_the_old_file_and_no_trace(storage):
    def broken():
        yield b"half of the new"
        raise ValueError("no more")

    storage.write_atomic("a", [b"old"])
    with pytest.raises(ValueError, match="no more"):
        storage.write_atomic("a", broken())
    with pytest.raises(ValueError, match="no more"):
        storage.write_atomic("b", broken())
    assert content(storage, "a") == b"old"
    assert storage.names() == ["a"]


def test_an_open_file_keeps_its_content_when_it_is_replaced_or_deleted(storage):
    storage.write_atomic("a", [b"old"])
    with storage.open("a") as file:
        storage.write_atomic("a", [b"new"])
        storage.delete("a")
        assert file.read() == b"old"


def test_readinto_fills_a_buffer(storage):
    storage.write_atomic("a", [b"abcdef"])
    buffer = bytearray(4)
    with storage.open("a") as file:
        assert file.readinto(memoryview(buffer)) == 4
        assert bytes(buffer) == b"abcd"
        assert file.readinto(memoryview(buffer)) == 2
        assert file.readinto(memoryview(buffer)) == 0


def test_names_are_sorted_and_filtered_by_prefix(storage):
    assert storage.names() == []
    for name in ("b-2", "a-1", "b-1"):
        storage.write_atomic(name, [b"x"])
    assert storage.names() == ["a-1", "b-1", "b-2"]
    assert storage.names("b-") == ["b-1", "b-2"]


def test_what_is_missing_is_said_and_deleting_it_is_no_error(storage):
    storage.delete("nothing")
    assert not storage.exists("nothing")
    with pytest.raises(FileNotFoundError):
        storage.open("nothing")
    with pytest.raises(FileNotFoundError):
        storage.size("nothing")


def test_a_deleted_file_is_gone(storage):
    storage.write_atomic("a", [b"x"])
    storage.delete("a")
    assert not storage.exists("a")
    assert storage.names() == []


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "/root", "a\0b", "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(storage, name):
    for call in (storage.open, storage.size, storage.exists, storage.delete):
        with pytest.raises(CheckpointError, match="not a name"):
            call(name)
    with pytest.raises(CheckpointError, match="not a name"):
        storage.write_atomic(name, [b"x"])


def test_many_small_files_are_kept_apart(storage):
    names = [f"file-{index:03d}" for index in range(30)]
    for name in names:
        storage.write_atomic(name, [name.encode()])
    storage.sweep()
    assert storage.names("file-") == names
    assert all(content(storage, name) == name.encode() for name in names)
