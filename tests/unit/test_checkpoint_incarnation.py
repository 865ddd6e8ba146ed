"""The incarnation number only grows."""

from __future__ import annotations

import pytest

from isthmus.checkpoint import CrashError, FaultPlan, FaultyStorage, MemoryStorage, incarnation_at, raise_incarnation
from isthmus.errors import CheckpointError

NAME = "incarnation.json"


def test_every_start_has_a_higher_number_from_one():
    storage = MemoryStorage()
    assert [raise_incarnation(storage) for _ in range(3)] == [1, 2, 3]


def test_a_number_known_from_elsewhere_is_passed_and_never_lowers_one_kept_here():
    storage = MemoryStorage()
    assert raise_incarnation(storage, at_least=6) == 7
    assert raise_incarnation(storage, at_least=3) == 8


def test_a_number_is_on_the_disk_before_anybody_hears_it():
    storage = MemoryStorage()
    points = FaultyStorage(storage, FaultPlan())
    raise_incarnation(points)
    for crash_at in range(points.points):
        before = raise_incarnation(storage)
        with pytest.raises(CrashError):
            raise_incarnation(FaultyStorage(storage, FaultPlan(crash_at=crash_at)))
        assert raise_incarnation(storage) > before


def test_any_damage_is_refused_with_the_mend_and_left_for_inspection():
    storage = MemoryStorage()
    raise_incarnation(storage, at_least=41)
    with storage.open(NAME) as file:
        good = file.read()
    damaged = [good[:length] for length in range(len(good))]
    damaged += [bytes([*good[:at], good[at] ^ 1, *good[at + 1 :]]) for at in range(len(good))]
    for bad in damaged:
        storage.write_atomic(NAME, [bad])
        with pytest.raises(CheckpointError, match="remove the file"):
            raise_incarnation(storage)
        with storage.open(NAME) as file:
            assert file.read() == bad


def test_the_mend_works():
    storage = MemoryStorage()
    storage.write_atomic(NAME, [b'{"incarnation": 12, "crc32": 1330857165}'])
    assert raise_incarnation(storage) == 13


def test_a_full_disk_and_the_end_of_the_numbers_are_refused():
    with pytest.raises(CheckpointError, match="could not be raised"):
        raise_incarnation(FaultyStorage(MemoryStorage(), FaultPlan(capacity_bytes=5)))
    with pytest.raises(CheckpointError, match="damaged"):
        raise_incarnation(MemoryStorage(), at_least=2**31 - 1)


def test_an_island_that_lost_its_disk_or_runs_from_a_copy_is_newer_than_before():
    first, later = (incarnation_at(wall_s) for wall_s in (1_800_000_000, 1_800_000_001))
    disk = MemoryStorage()
    original = raise_incarnation(disk, at_least=first)
    copy = MemoryStorage()
    copy.load_state_dict(disk.state_dict())
    assert original < raise_incarnation(MemoryStorage(), at_least=later)
    assert original < raise_incarnation(copy, at_least=later + 1) != raise_incarnation(disk, at_least=later + 5)


@pytest.mark.parametrize("wall_s", [-1e9, 0.0, 1e18])
def test_a_clock_that_is_wrong_leaves_room_for_many_starts(wall_s):
    disk = MemoryStorage()
    numbers = [raise_incarnation(disk, at_least=incarnation_at(wall_s)) for _ in range(3)]
    assert numbers[0] > 0 and numbers[2] == numbers[0] + 2 < 2**31 - 2**19
