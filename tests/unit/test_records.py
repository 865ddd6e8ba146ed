from __future__ import annotations

import errno
import json
import os
import typing

import msgspec
import pytest

from isthmus.clock import VirtualClock
from isthmus.errors import ConfigError
from isthmus.observe import RecordDecoder, RecordTail, RecordWriter, read_records
from isthmus.observe.records import Common, Note, Record, StepDone, finite

CLOCK = VirtualClock(100.0)


def note(writer: RecordWriter, text: str) -> Note:
    return Note(**writer.stamp(island="a", step=3, tokens=30), text=text)


class FullDisk:
    """Takes bytes while it has room, as ``os.write`` does."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(file, data[: self.room])
        self.room -= taken
        return taken


def texts(path) -> list[str]:
    return [record.text for record in read_records(path) if isinstance(record, Note)]


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "islands" / "a" / "records.jsonl"
    with RecordWriter(path, CLOCK) as writer:
        written = note(writer, "über\n</script>")
        writer.write(written)
    assert list(read_records(path)) == [written]
    assert json.loads(path.read_text())["kind"] == "note"


def test_every_kind_of_record_has_a_tag_of_its_own_and_stands_in_the_union():
    tags = [kind.__struct_config__.tag for kind in Common.__subclasses__()]
    assert len(set(tags)) == len(tags) == len(typing.get_args(Record))


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
    writer = RecordWriter(tmp_path / "r.jsonl", CLOCK)
    tail = RecordTail(writer.path)
    writer.write(note(writer, "one"))
    assert [r.text for r in tail.new()] == ["one"]
    assert tail.new() == []
    writer.close()


def test_times_count_from_the_start_of_the_writer(tmp_path):
    clock = VirtualClock(50.0)
    with RecordWriter(tmp_path / "r.jsonl", clock) as writer:
        clock.advance_to(52.5)
        stamp = writer.stamp(island="a", step=1, tokens=2)
        assert (stamp["t_s"], stamp["wall_s"]) == (2.5, 52.5)
        assert writer.since_start_s(51.0) == 1.0


def test_a_resumed_island_appends_to_its_file(tmp_path):
    path = tmp_path / "r.jsonl"
    for text in ("first life", "second life"):
        with RecordWriter(path, CLOCK) as writer:
            writer.write(note(writer, text))
    assert texts(path) == ["first life", "second life"]


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, CLOCK) as writer:
        writer.write(note(writer, "whole"))
        writer.write(note(writer, "torn"))
    os.truncate(path, path.stat().st_size - 9)
    decoder = RecordDecoder()
    assert [r.text for r in read_records(path, decoder)] == ["whole"]
    assert decoder.broken == 0
    with RecordWriter(path, CLOCK) as writer:
        writer.write(note(writer, "after"))
    assert [r.text for r in read_records(path, decoder)] == ["whole", "after"]
    assert decoder.broken == 1


def test_kinds_and_fields_of_a_newer_version_are_skipped_and_counted(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, CLOCK) as writer:
        known = msgspec.to_builtins(note(writer, "known"))
    lines = [known | {"mood": "good"}, known | {"kind": "dream"}, {"kind": "note"}, 17]
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnonsense\n\n")
    decoder = RecordDecoder()
    assert [r.text for r in read_records(path, decoder)] == ["known"]
    assert (decoder.unknown, decoder.broken) == (1, 3)


def test_a_tail_waits_for_the_rest_of_a_line(tmp_path):
    path = tmp_path / "r.jsonl"
    tail = RecordTail(path)
    assert tail.new() == []
    with RecordWriter(tmp_path / "other.jsonl", CLOCK) as writer:
        line = msgspec.json.encode(note(writer, "slow")) + b"\n"
    path.write_bytes(line[:20])
    assert tail.new() == []
    with path.open("ab") as file:
        file.write(line[20:] + line[:5])
    assert [r.text for r in tail.new()] == ["slow"]
    assert tail.decoder.broken == 0


def test_a_full_disk_is_told_once_and_loses_nothing_when_space_returns(tmp_path):
    disk, told = FullDisk(200), []
    writer = RecordWriter(tmp_path / "r.jsonl", CLOCK, write=disk.write, warn=told.append)
    for index in range(50):
        writer.write(note(writer, str(index)))
    writer.flush()
    assert len(told) == 1
    assert "No space left" in told[0]
    assert len(texts(writer.path)) == 2
    disk.room = 10**6
    writer.write(note(writer, "50"))
    writer.close()
    assert texts(writer.path) == [str(index) for index in range(51)]
    assert writer.lost == 0


def test_records_lost_to_a_long_full_disk_are_counted_and_the_loss_is_recorded(tmp_path):
    disk, told = FullDisk(100), []
    writer = RecordWriter(tmp_path / "r.jsonl", CLOCK, write=disk.write, warn=told.append)
    for index in range(5000):
        writer.write(note(writer, str(index)))
    disk.room = 10**7
    writer.write(note(writer, "last"))
    writer.close()
    found = texts(writer.path)
    decoder = RecordDecoder()
    assert len(list(read_records(writer.path, decoder))) == len(found)
    assert decoder.broken == 0
    assert writer.lost == 5001 - (len(found) - 1)
    assert found[-1].startswith(f"{writer.lost} records were lost")
    assert found[-2] == "last"
    assert len(told) == 1


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write records") as caught:
        RecordWriter(tmp_path / "file" / "r.jsonl", CLOCK)
    assert caught.value.mend


def test_closing_twice_is_harmless(tmp_path):
    writer = RecordWriter(tmp_path / "r.jsonl", CLOCK)
    writer.close()
    writer.close()


def test_a_loss_that_is_not_finite_survives_the_file(tmp_path):
    with RecordWriter(tmp_path / "r.jsonl", CLOCK) as writer:
        step = StepDone(
            **writer.stamp(island="a", step=1, tokens=8),
            loss_nats=finite(float("nan")),
            step_tokens=8,
            step_s=0.1,
            sync_s=0.0,
            blocked_s=0.0,
            learning_rate=1e-3,
            progress_tokens=8,
        )
        writer.write(step)
    assert list(read_records(writer.path)) == [step]
    assert step.loss_nats is None
