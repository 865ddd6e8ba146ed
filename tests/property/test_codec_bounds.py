"""Properties of the block codecs over whatever finite rows there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.codec import CODECS


def from_bytes(data: bytes) -> torch.Tensor:
    values = np.frombuffer(data[: len(data) // 4 * 4], "<f4").copy()
    return torch.from_numpy(np.nan_to_num(values))[None]


def gaussian(length: int, seed: int, exponent: int) -> torch.Tensor:
    return torch.randn(1, length, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent


ANY_BITS = st.binary(min_size=4, max_size=600).map(from_bytes)
ROWS = ANY_BITS | st.builds(gaussian, st.integers(1, 300), st.integers(0, 1000), st.integers(-35, 37))
MAX_CODE = {"int8": 127, "int4": 7}
LARGEST_EXACT_RANGE = 2.9e38


def through(name: str, rows: torch.Tensor) -> torch.Tensor:
    data = torch.empty(rows.shape[0], CODECS[name].row_bytes(rows.shape[1]), dtype=torch.uint8)
    CODECS[name].encode(rows, data)
    decoded = torch.empty(rows.shape)
    CODECS[name].decode(data, decoded)
    return decoded


@pytest.mark.parametrize("name", MAX_CODE)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_each_element_is_within_half_a_step_of_its_block(name: str, rows: torch.Tensor) -> None:
    rows = rows.clamp(-LARGEST_EXACT_RANGE, LARGEST_EXACT_RANGE)
    decoded = through(name, rows)
    for block, result in zip(rows[0].double().split(128), decoded[0].double().split(128), strict=True):
        step = block.abs().max() / MAX_CODE[name] * (1 + 2.0**-8)
        too_small_to_code = 8.0 * MAX_CODE[name] * 2.0**-103
        assert ((block - result).abs() <= 0.5001 * step + too_small_to_code).all()


@pytest.mark.parametrize(("name", "max_code"), [("int3", 3), ("int2", 1)])
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_no_block_is_coded_worse_than_without_cutting_its_largest_off(
    name: str, max_code: int, rows: torch.Tensor
) -> None:
    rows = rows.clamp(-1e18, 1e18)
    decoded = through(name, rows)
    for block, result in zip(rows[0].split(128), decoded[0].split(128), strict=True):
        scale = (block.abs().max() / max_code).bfloat16().float()
        scale = scale if scale >= 2.0**-100 else torch.tensor(0.0)
        plain = (block * scale.reciprocal().nan_to_num(posinf=0.0)).round().clamp(-max_code, max_code) * scale
        assert (block - result).square().sum() <= (block - plain).square().sum() * (1 + 1e-5)


@settings(max_examples=40, deadline=None)
@given(rows=ANY_BITS)
def test_fp32_keeps_every_bit(rows: torch.Tensor) -> None:
    assert torch.equal(through("fp32", rows).view(torch.int32), rows.view(torch.int32))


@pytest.mark.parametrize("name", MAX_CODE)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_the_sign_and_the_order_of_a_block_survive(name: str, rows: torch.Tensor) -> None:
    rows = rows[:, :128].sort(dim=1).values
    decoded = through(name, rows)
    assert (decoded.diff(dim=1) >= 0).all()
    assert (decoded * rows.sign() >= 0).all()


@pytest.mark.parametrize(("name", "at_most"), [("int2", 0.441), ("int3", 0.216), ("int4", 0.119), ("int8", 0.0066)])
def test_the_rms_error_on_gaussian_rows_stays_what_it_is(name: str, at_most: float) -> None:
    rows = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    assert (through(name, rows) - rows).square().mean().sqrt() < at_most
