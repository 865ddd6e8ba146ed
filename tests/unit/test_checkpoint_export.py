"""Exported weights, and the safetensors reader against malformed files."""

from __future__ import annotations

import json

import pytest
import safetensors
import safetensors.torch
import torch

from isthmus.checkpoint import export_safetensors, file_order, load_exported
from isthmus.checkpoint.safetensors_file import encode
from isthmus.errors import CheckpointError
from isthmus.parts import Later

WEIGHTS = {
    "odd.bias": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "embed.weight": torch.randn(4, 3).bfloat16(),
    "norm.weight": torch.randn(5, 2).T,
    "scale": torch.tensor(0.5, dtype=torch.float64),
    "empty": torch.zeros(0, 2),
}


def test_an_export_is_read_by_the_reference_reader_in_the_same_dtypes(tmp_path):
    path = tmp_path / "out" / "my model.safetensors"
    export_safetensors(path, WEIGHTS, {"model": '{"layers": 2}'})
    theirs = safetensors.torch.load_file(path)
    ours, metadata = load_exported(path)
    for tensors in (theirs, ours):
        assert tensors.keys() == WEIGHTS.keys()
        for name, tensor in WEIGHTS.items():
            assert tensors[name].dtype == tensor.dtype
            assert torch.equal(tensors[name], tensor)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == metadata == {"format": "pt", "model": '{"layers": 2}'}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_file_of_the_reference_writer_is_read(tmp_path):
    weights = {name: tensor.contiguous() for name, tensor in WEIGHTS.items()}
    safetensors.torch.save_file(weights, tmp_path / "theirs")
    ours, metadata = load_exported(tmp_path / "theirs")
    assert metadata == {}
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def test_a_refused_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.safetensors"
    export_safetensors(path, {"w": torch.ones(2)}, {})
    for bad in ({"w": torch.zeros(2, device="meta")}, {"__metadata__": torch.ones(1)}):
        with pytest.raises(CheckpointError):
            export_safetensors(path, bad, {})
    assert torch.equal(load_exported(path)[0]["w"], torch.ones(2))


def test_a_path_that_cannot_be_written_or_read_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="was not written"):
        export_safetensors(tmp_path / "file" / "model", {"w": torch.ones(2)}, {})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_exported(tmp_path / "none")


def test_contiguous_tensors_are_written_from_their_own_memory():
    tensor = torch.zeros(4)
    _, chunk = encode({"w": tensor}, {})
    tensor.fill_(1.0)
    assert bytes(chunk) == torch.ones(4).numpy().tobytes()


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def raw_file(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 8,
        (10**9).to_bytes(8, "little") + b"{}",
        raw_file(b"\xff\xfe"),
        raw_file(b"{" * 100_000),
        raw_file(b'{"w":' * 50_000),
        raw_file(b"[]"),
        raw_file({"__metadata__": {"a": 1}, "w": entry()}),
        raw_file({"__metadata__": [], "w": entry()}),
        raw_file({"w": 3}),
        raw_file({"w": entry(dtype="F99")}),
        raw_file({"w": entry(dtype=["F32"])}),
        raw_file({"w": entry(shape=(3,))}),
        raw_file({"w": entry(shape=(-2,))}),
        raw_file({"w": entry(shape=(2.0,))}),
        raw_file({"w": entry(shape=(True, 2))}),
        raw_file({"w": entry(offsets=(8, 0))}),
        raw_file({"w": entry(offsets=(-8, 0))}),
        raw_file({"w": entry(offsets=(0, 8, 16))}),
        raw_file({"w": entry(offsets=(4, 12))}),
        raw_file({"w": entry(shape=(0, 2**70), offsets=(0, 0))}, b""),
        raw_file({"w": entry(shape=(0, 2**62, 2**62), offsets=(0, 0))}, b""),
        raw_file({"w": entry(shape=(1,) * 100, offsets=(0, 4))}, b"\0" * 4),
        raw_file({"w": entry(shape=(2**40,), offsets=(0, 2**42))}),
        raw_file({"a": entry(), "b": entry()}),
        raw_file({"a": entry(), "b": entry(offsets=(12, 20))}, b"\0" * 20),
        raw_file({"w": entry()}, b"\0" * 7),
        raw_file({"w": entry()}, b"\0" * 9),
        raw_file({}),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, raw):
    (tmp_path / "bad").write_bytes(raw)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load_exported(tmp_path / "bad")


def test_tensors_that_are_made_later_are_made_in_order_one_at_a_time(tmp_path):
    made = []

    def later(name, tensor):
        def make():
            made.append(name)
            return tensor

        return Later(tuple(tensor.shape), tensor.dtype, make)

    tensors = {"a": torch.arange(3).to(torch.bfloat16), "b": torch.arange(6.0).reshape(2, 3), "c": torch.tensor(1.5)}
    laters = {name: later(name, tensor) for name, tensor in tensors.items()}
    export_safetensors(tmp_path / "model", {**laters, "d": torch.ones(2)}, {})
    found, _ = load_exported(tmp_path / "model")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert made == [name for name in file_order({**laters, "d": torch.ones(2)}) if name != "d"] == ["b", "c", "a"]
