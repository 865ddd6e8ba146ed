"""Saving, loading and pruning one state."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest
import safetensors.torch
import torch

from isthmus.checkpoint import FaultPlan, FaultyStorage, LocalStorage, MemoryStorage, load_latest, prune, save
from isthmus.checkpoint.safetensors_file import encode
from isthmus.errors import CheckpointError
from isthmus.terms import Phase

STATE = {"step": 3, "w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "seen": b"\x00\xff"}


def saved_and_loaded(state: dict) -> dict:
    storage = MemoryStorage()
    save(storage, 1, state)
    loaded = load_latest(storage)
    assert loaded is not None
    assert loaded[1].skipped == ()
    return loaded[0]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8]
UNSIGNED = [torch.uint64, torch.uint32, torch.uint16, torch.uint8]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *UNSIGNED])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3, 4)])
def test_every_bit_pattern_of_every_dtype_comes_back(dtype, shape):
    generator = torch.Generator().manual_seed(1)
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype).reshape(shape)
    back = saved_and_loaded({"t": tensor})["t"]
    assert (back.dtype, back.shape, bits(back)) == (dtype, tensor.shape, bits(tensor))


def test_bools_views_parameters_and_shared_memory_come_back_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "bool": torch.tensor([True, False]),
        "transposed": base.T,
        "strided": base[:, ::2],
        "expanded": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(base.clone()),
        "same": [base, base, base[0]],
    }
    back = saved_and_loaded(state)
    assert torch.equal(back["bool"], state["bool"])
    assert torch.equal(back["transposed"], base.T)
    assert torch.equal(back["strided"], base[:, ::2])
    assert torch.equal(back["expanded"], torch.ones(5))
    assert not back["parameter"].requires_grad
    assert all(torch.equal(one, other) for one, other in zip(back["same"], state["same"], strict=True))


@pytest.mark.slow
def test_an_optimizer_with_integer_keys_continues_exactly():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    back = saved_and_loaded({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(back["model"])
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1)
    twin_optimizer.load_state_dict(back["optimizer"])
    for one, its_optimizer in ((model, optimizer), (twin, twin_optimizer)):
        its_optimizer.zero_grad()
        one(torch.ones(1, 3)).sum().backward()
        its_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_enums_numpy_scalars_and_ordered_mappings_come_back_plain():
    class Level(IntEnum):
        HIGH = 3

    values = [Phase.TRAINING, Level.HIGH, np.float32(0.1), np.int64(-5), np.bool_(True), np.float64("inf")]
    back = saved_and_loaded({"values": values, "mapping": OrderedDict(z=1, a=2)})
    expected = ["training", 3, float(np.float32(0.1)), -5, True, float("inf")]
    assert back["values"] == expected
    assert [type(value) for value in back["values"]] == [type(value) for value in expected]
    assert list(back["mapping"].items()) == [("z", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\]"),
        ({"a": {1, 2}}, r"state\['a'\]"),
        ({"a": np.zeros(3)}, r"state\['a'\]"),
        ({"a": np.longdouble(1)}, r"state\['a'\]"),
        ({Fraction(1, 2): 1}, "a key of state"),
        ({torch.ones(1): 1}, "a key of state"),
        ({"a": torch.zeros(2, device="meta")}, r"state\['a'\]"),
        ({"a": torch.zeros(2).to_sparse()}, r"state\['a'\]"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, r"state\['a'\]"),
        ({"a": memoryview(b"abcd")[::2]}, r"state\['a'\]"),
        ({"a": 10**5000}, "a number that cannot be written"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_place_before_anything_is_written(value, place):
    storage = MemoryStorage()
    with pytest.raises(CheckpointError, match=place):
        save(storage, 1, value)
    assert storage.names() == []


def test_a_state_that_contains_itself_is_refused():
    state: dict = {}
    state["self"] = state
    with pytest.raises(CheckpointError, match="contains itself"):
        save(MemoryStorage(), 1, state)


def test_nothing_saved_is_none_and_an_uncommitted_state_is_nothing():
    storage = MemoryStorage()
    assert load_latest(storage) is None
    storage.write_atomic("checkpoint-00000001.safetensors", [b"half"])
    assert load_latest(storage) is None


def test_the_newest_save_wins_even_when_its_step_is_lower():
    storage = MemoryStorage()
    save(storage, 10, {"x": 1})
    saved = save(storage, 5, {"x": 2})
    loaded = load_latest(storage)
    assert loaded is not None
    state, info = loaded
    assert state == {"x": 2}
    assert (info.name, info.step, info.num_bytes) == (saved.name, 5, saved.num_bytes)
    assert storage.size(f"{saved.name}.safetensors") == saved.num_bytes


def test_any_safetensors_reader_opens_a_checkpoint(tmp_path):
    saved = save(LocalStorage(tmp_path), 1, STATE)
    raw = (tmp_path / f"{saved.name}.safetensors").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == saved.sha256
    tensors = safetensors.torch.load(raw)
    assert torch.equal(tensors["0"], STATE["w"])


def test_pruning_keeps_the_newest_and_clears_interrupted_saves(tmp_path):
    storage = LocalStorage(tmp_path)
    for step in range(1, 5):
        save(storage, step, {"x": step})
    storage.write_atomic("checkpoint-00000005.safetensors", [b"uncommitted"])
    storage.write_atomic("incarnation.json", [b"not mine"])
    (tmp_path / ".checkpoint-00000006.safetensors.tmp").write_bytes(b"half")
    assert prune(storage, keep=2) == (
        "checkpoint-00000001",
        "checkpoint-00000002",
        "checkpoint-00000005",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-00000003.json",
        "checkpoint-00000003.safetensors",
        "checkpoint-00000004.json",
        "checkpoint-00000004.safetensors",
        "incarnation.json",
    ]
    with pytest.raises(CheckpointError, match="at least one"):
        prune(storage, keep=0)


def two_saved() -> tuple[MemoryStorage, str]:
    storage = MemoryStorage()
    save(storage, 1, {"x": 1})
    return storage, save(storage, 2, STATE).name


def content(storage: MemoryStorage, name: str) -> bytes:
    with storage.open(name) as file:
        return file.read()


def assert_falls_back(storage: MemoryStorage, damaged: str) -> None:
    loaded = load_latest(storage)
    assert loaded is not None
    state, info = loaded
    assert state == {"x": 1}
    assert info.step == 1
    assert [skip.name for skip in info.skipped] == [damaged]
    assert info.skipped[0].reason


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_flipped_bit_anywhere_is_noticed_and_the_one_before_is_taken(suffix):
    storage, name = two_saved()
    good = content(storage, name + suffix)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        storage.write_atomic(name + suffix, [bad])
        assert_falls_back(storage, name)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_file_cut_anywhere_is_noticed_and_the_one_before_is_taken(suffix):
    storage, name = two_saved()
    good = content(storage, name + suffix)
    for length in (*range(len(good)), len(good) + 1):
        storage.write_atomic(name + suffix, [(good + b"}")[:length]])
        assert_falls_back(storage, name)


def test_a_missing_state_is_noticed_and_the_one_before_is_taken():
    storage, name = two_saved()
    storage.delete(f"{name}.safetensors")
    assert_falls_back(storage, name)


@pytest.mark.parametrize("write", [0, 1])
def test_a_disk_that_lies_about_a_write_costs_only_that_checkpoint(write):
    storage = MemoryStorage()
    save(storage, 1, {"x": 1})
    saved = save(FaultyStorage(storage, FaultPlan(torn_writes=frozenset({write}))), 2, STATE)
    assert_falls_back(storage, saved.name)
    save(storage, 3, {"x": 3})
    assert load_latest(storage)[0] == {"x": 3}


def test_only_damaged_checkpoints_are_an_error_that_names_them_and_not_a_fresh_start():
    storage = MemoryStorage()
    name = save(storage, 1, STATE).name
    storage.write_atomic(f"{name}.json", [b"{}"])
    with pytest.raises(CheckpointError, match=f"no checkpoint can be used; got {name}: commit record is damaged"):
        load_latest(storage)


def forge(leaves: dict, metadata: dict[str, str]) -> MemoryStorage:
    """A checkpoint whose hashes are right and whose content is not."""
    storage = MemoryStorage()
    raw = b"".join(encode(leaves, metadata))
    commit = {
        "format": "isthmus-checkpoint-1",
        "step": 1,
        "num_bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }
    storage.write_atomic("checkpoint-00000001.safetensors", [raw])
    storage.write_atomic("checkpoint-00000001.json", [json.dumps(commit).encode()])
    return storage


@pytest.mark.parametrize(
    "structure",
    [
        "",
        "not json",
        "[" * 100_000,
        "[" * 500 + "]" * 500,
        "[]",
        "3",
        '{"dict":[["t",{"tensor":"9"}]]}',
        '{"dict":[["t",{"tensor":"0"}],["u",{"tensor":"0"}]]}',
        '{"dict":[["t",{"bytes":"0"}]]}',
        '{"dict":[]}',
        '{"dict":[["t"]]}',
        '{"dict":["ab"]}',
        '{"dict":[[["list"],{"tensor":"0"}]]}',
        '{"dict":[["t",{"tensor":"0"}],["t",1]]}',
        '{"dict":[["t",{"tensor":"0","dict":[]}]]}',
        '{"dict":[["t",{"tensor":"0"}],["u",{"float":"1e999"}]]}',
        '{"dict":[["t",{"tensor":"0"}],["u",{"eval":"1"}]]}',
        '{"dict":[["t",{"tensor":"0"}],["u",' + "9" * 5000 + "]]}",
        '{"tuple":{"tensor":"0"}}',
    ],
)
def test_a_forged_structure_is_refused(structure):
    metadata = {"format": "isthmus-checkpoint-1", "step": "1", "structure": structure}
    with pytest.raises(CheckpointError, match="no checkpoint can be used"):
        load_latest(forge({"0": torch.ones(2)}, metadata))


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"format": "isthmus-checkpoint-1", "step": "2", "structure": '{"dict":[]}'},
        {"format": "isthmus-checkpoint-9", "step": "1", "structure": '{"dict":[]}'},
    ],
)
def test_a_state_of_another_step_or_format_is_refused(metadata):
    with pytest.raises(CheckpointError, match="disagree"):
        load_latest(forge({}, metadata))
