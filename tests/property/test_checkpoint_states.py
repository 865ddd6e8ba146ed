"""Any state comes back as it was, and any bytes are read or refused."""

from __future__ import annotations

import io
import json
import struct
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.checkpoint import MemoryStorage, load_latest, save
from isthmus.checkpoint.safetensors_file import decode, encode
from isthmus.checkpoint.structure import unflatten
from isthmus.errors import CheckpointError

MARKERS = ["tuple", "dict", "float", "tensor", "bytes", "__metadata__", "structure", "0", "nan"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.int16]

texts = st.sampled_from(MARKERS) | st.text(st.characters(), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=8)
plain_keys = st.none() | st.booleans() | st.integers() | texts | st.binary(max_size=4)
keys = plain_keys | st.tuples(plain_keys, plain_keys) | st.just(())


@st.composite
def tensors(draw) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    raw = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    flat = torch.tensor(list(raw), dtype=torch.uint8).view(dtype)
    tensor = flat.reshape(shape)
    return tensor.T if tensor.dim() == 2 and draw(st.booleans()) else tensor


def containers(inner):
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.sampled_from(MARKERS), inner, min_size=1, max_size=2)
    )


states = st.dictionaries(keys, st.recursive(scalars | tensors(), containers, max_leaves=12), max_size=4)


def same(one: object, other: object) -> bool:
    """Equal in value, type and order, floats and tensors bit for bit."""
    if type(one) is not type(other):
        return False
    match one:
        case torch.Tensor():
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return False
            views = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
            return torch.equal(*views)
        case float():
            return (one != one and other != other) or struct.pack("d", one) == struct.pack("d", other)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return same(list(one.items()), list(other.items()))
    return one == other


@pytest.mark.slow
@given(states)
@settings(max_examples=150, deadline=None)
def test_any_state_comes_back_as_it_was(state):
    storage = MemoryStorage()
    save(storage, 1, state)
    loaded = load_latest(storage)
    assert loaded is not None
    assert same(loaded[0], state)


@given(st.binary(max_size=64), st.integers(0, 200), st.integers(0, 7), st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_a_mangled_file_is_read_or_refused_and_nothing_else(insert, at, bit, cut):
    raw = bytearray(b"".join(encode({"a": torch.ones(3), "b": b"xyz"}, {"k": "v"})))
    raw[at % len(raw)] ^= 1 << bit
    raw = raw[: at % len(raw)] + insert + raw[cut % len(raw) :]
    with suppress(CheckpointError):
        decode(io.BytesIO(raw), len(raw))


json_like = st.recursive(
    scalars.filter(lambda value: not isinstance(value, bytes)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MARKERS), inner, max_size=2),
    max_leaves=8,
)


@given(json_like)
@settings(max_examples=100, deadline=None)
def test_any_structure_is_read_or_refused_and_nothing_else(node):
    with suppress(CheckpointError):
        unflatten(json.dumps(node), {"0": torch.ones(2)})
