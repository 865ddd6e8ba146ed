"""Checkpoints that several processes have saved, as any number of processes reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from isthmus.checkpoint import LocalStorage, commit, draft, load_latest, prune, save
from isthmus.errors import CheckpointError, ShapeError
from isthmus.parts import Part, fill, rows_part

MATRIX = torch.arange(35.0).reshape(7, 5)


class Team:
    """One process that saves as several do."""

    rank, size = 0, 1

    @property
    def group(self) -> dist.ProcessGroup:
        return dist.group.WORLD

    def collect(self, own: bytes) -> list[bytes]:
        return [own]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "file"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Team()
    dist.destroy_process_group()


@pytest.fixture
def saved(tmp_path: Path, team: Team) -> LocalStorage:
    """Two checkpoints, of steps 1 and 2."""
    storage = LocalStorage(tmp_path)
    for step in (1, 2):
        commit(storage, draft(storage, step, state(step), team), team)
    return storage


def state(step: int) -> dict[str, object]:
    return {
        "rows": rows_part(MATRIX + step, first=0, of=7),
        "copy": Part.whole(torch.tensor(float(step))),
        "plain": {"step": step, "bytes": b"abc", ("a", 1): [None, 2.5]},
    }


def shard_of(storage: LocalStorage, number: int) -> Path:
    (path,) = (storage.root / f"checkpoint-0000000{number}.shards").iterdir()
    return path


def read(source: object, shape: tuple[int, ...] = (7, 5)) -> torch.Tensor:
    whole = torch.zeros(shape)
    fill([(source, Part.whole(whole))])
    return whole


def test_what_was_saved_in_parts_is_read_by_anybody(saved: LocalStorage):
    found, info = load_latest(saved)
    assert (info.step, info.skipped) == (2, ())
    assert info.num_bytes == sum(
        path.stat().st_size for path in (saved.root / f"{info.name}.safetensors", shard_of(saved, 2))
    )
    assert found["plain"] == state(2)["plain"]
    assert torch.equal(read(found["rows"]), MATRIX + 2)
    assert read(found["copy"], ()) == 2
    corner = torch.zeros(2, 3)
    fill([(found["rows"], Part((7, 5), (4, 1), corner)), (found["rows"], Part((7, 5), (0, 0), torch.empty(0, 5)))])
    assert torch.equal(corner, (MATRIX + 2)[4:6, 1:4])


def test_a_tensor_of_another_shape_is_refused(saved: LocalStorage):
    found, _ = load_latest(saved)
    with pytest.raises(ShapeError, match="does not fit"):
        read(found["rows"], (5, 7))
    with pytest.raises(ShapeError, match="does not fit"):
        fill([(MATRIX, Part.whole(torch.zeros(6, 5)))])


@pytest.mark.parametrize("damage", ["flip", "cut", "lose"])
def test_a_checkpoint_with_a_damaged_shard_is_passed_over(saved: LocalStorage, damage: str):
    path = shard_of(saved, 2)
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        case "cut":
            path.write_bytes(content[:-1])
        case "lose":
            path.unlink()
    found, info = load_latest(saved)
    assert info.step == 1
    assert [skip.name for skip in info.skipped] == ["checkpoint-00000002"]
    assert torch.equal(read(found["rows"]), MATRIX + 1)


def test_what_was_never_committed_is_not_there_and_is_swept(saved: LocalStorage, team: Team):
    shutil.copytree(saved.root / "checkpoint-00000002.shards", saved.root / "checkpoint-00000003.shards")
    assert load_latest(saved)[1].step == 2
    commit(saved, draft(saved, 3, state(3), team), team)
    prune(saved, keep=2)
    found = [path.name for path in sorted(saved.root.glob("*.shards"))]
    assert found == ["checkpoint-00000002.shards", "checkpoint-00000003.shards"]
    assert load_latest(saved)[1].step == 3


def test_a_lone_process_goes_on_beside_them(saved: LocalStorage):
    save(saved, 3, {"x": 1})
    assert load_latest(saved) == ({"x": 1}, load_latest(saved)[1])
    prune(saved, keep=1)
    assert not list(saved.root.glob("*.shards"))
    with pytest.raises(CheckpointError, match="by one process"):
        save(saved, 4, state(4))


def test_the_copy_is_of_the_moment(tmp_path: Path, team: Team):
    storage, rows = LocalStorage(tmp_path), MATRIX.clone()
    drawn = draft(storage, 1, {"rows": rows_part(rows, first=0, of=7)}, team)
    rows.zero_()
    commit(storage, drawn, team)
    assert torch.equal(read(load_latest(storage)[0]["rows"]), MATRIX)


def test_a_disk_that_refuses_is_an_error_and_older_checkpoints_stay(saved: LocalStorage, team: Team):
    drawn = draft(saved, 3, state(3), team)
    (saved.root / f"{drawn.name}.shards").write_bytes(b"in the way")
    with pytest.raises(CheckpointError, match="checkpoint of step 3 was not saved"):
        commit(saved, drawn, team)
    assert load_latest(saved)[1].step == 2


class Quarrel(Team):
    """A second process that says what the first says, but for one word."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new

    def collect(self, own: bytes) -> list[bytes]:
        return [own, own.replace(self._old, self._new)]


def after(storage: LocalStorage, other: dict[str, Any]) -> Team:
    """A first process whose second says what a process that holds ``other`` says."""

    class Told(Team):
        said: ClassVar[list[bytes]] = []

        def collect(self, own: bytes) -> list[bytes]:
            self.said.append(own)
            return [own]

    class Both(Team):
        def collect(self, own: bytes) -> list[bytes]:
            return [own, Told.said.pop(0)]

    draft(storage, 3, other, Told())
    return Both()


def test_what_one_process_cannot_store_no_process_stores(saved: LocalStorage, team: Team):
    with pytest.raises(CheckpointError, match=r"state of rank 0 cannot be stored; got .*\['x'\].*object"):
        draft(saved, 3, {"x": object()}, team)


def test_processes_with_other_states_are_told_so(saved: LocalStorage):
    with pytest.raises(
        CheckpointError, match="do not hold the same state; got another structure than rank 0's at rank 1"
    ):
        draft(saved, 3, state(3), after(saved, {**state(3), "more": 1}))


def test_processes_with_other_bytes_are_told_so(saved: LocalStorage):
    with pytest.raises(CheckpointError, match="other counters or small buffers than rank 0's at rank 1"):
        draft(saved, 3, {"memory": b"one"}, after(saved, {"memory": b"two"}))


def test_processes_with_other_counters_are_told_so(saved: LocalStorage):
    class Other(Team):
        def collect(self, own: bytes) -> list[bytes]:
            return [own, own[:-1] + bytes([own[-1] ^ 1])]

    with pytest.raises(CheckpointError, match="other counters or small buffers than rank 0's at rank 1"):
        draft(saved, 3, state(3), Other())


def test_what_a_killed_save_left_goes_before_the_next_begins(saved: LocalStorage, team: Team):
    shutil.copytree(saved.root / "checkpoint-00000002.shards", saved.root / "checkpoint-00000003.shards")
    draft(saved, 3, state(3), team)
    assert sorted(path.stem for path in saved.root.glob("*.shards")) == ["checkpoint-00000001", "checkpoint-00000002"]


def test_processes_that_see_other_files_are_told_so_and_leave_none_behind(saved: LocalStorage, team: Team):
    drawn = draft(saved, 3, state(3), team)
    with pytest.raises(CheckpointError, match="do not see the same files"):
        commit(saved, drawn, Quarrel(b"shard-00001", b"shard-00009"))
    assert not (saved.root / f"{drawn.name}.shards").exists()
    assert load_latest(saved)[1].step == 2


def test_shards_hold_no_pickle(saved: LocalStorage):
    content = shard_of(saved, 2).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert {entry["dtype"] for name, entry in header.items() if name != "__metadata__"} == {"F32"}
    assert b"pickle" not in content
    assert [path.suffix for path in (saved.root / "checkpoint-00000002.shards").iterdir()] == [".safetensors"]
