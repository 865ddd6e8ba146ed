"""What every codec must do; a new one adds a row to ``ROWS``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from isthmus.codec import CODECS
from isthmus.errors import CodecError

LENGTHS = (1, 2, 3, 64, 127, 128, 129, 255, 256, 300, 1000)
LARGEST = torch.finfo(torch.float32).max


def floats_of_bf16(data: np.ndarray) -> np.ndarray:
    halves = np.ascontiguousarray(data).view("<u2").astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


def numpy_fp32(data: np.ndarray, n: int) -> np.ndarray:
    return np.ascontiguousarray(data).view("<f4")


def numpy_bf16(data: np.ndarray, n: int) -> np.ndarray:
    return floats_of_bf16(data)


def numpy_int8(data: np.ndarray, n: int) -> np.ndarray:
    num_scales = -(-n // 128)
    scales = floats_of_bf16(data[:, : 2 * num_scales])
    codes = data[:, 2 * num_scales :].astype(np.int8).astype(np.float32)
    return codes * np.repeat(scales, 128, axis=1)[:, :n]


def numpy_int4(data: np.ndarray, n: int) -> np.ndarray:
    num_scales = -(-n // 128)
    scales = floats_of_bf16(data[:, : 2 * num_scales])
    packed = data[:, 2 * num_scales :]
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(data), -1)[:, :n].astype(np.int32)
    signed = np.where(codes >= 8, codes - 16, codes).astype(np.float32)
    return signed * np.repeat(scales, 128, axis=1)[:, :n]


def numpy_bits(data: np.ndarray, n: int, bits: int) -> np.ndarray:
    num_scales = -(-n // 128)
    scales = floats_of_bf16(data[:, : 2 * num_scales])
    ones = np.unpackbits(data[:, 2 * num_scales :], axis=1, bitorder="little")[:, : bits * n].reshape(
        len(data), n, bits
    )
    codes = (ones * (1 << np.arange(bits))).sum(-1).astype(np.int32)
    signed = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes).astype(np.float32)
    return signed * np.repeat(scales, 128, axis=1)[:, :n]


class Row:
    """A codec's numpy decoder, and the largest error it may make as a share of the row's largest element."""

    def __init__(self, decode: Callable[[np.ndarray, int], np.ndarray], error: float) -> None:
        self.decode = decode
        self.error = error


ROWS = {
    "fp32": Row(numpy_fp32, 0.0),
    "bf16": Row(numpy_bf16, 2.0**-8),
    "int8": Row(numpy_int8, 0.502 / 127),
    "int4": Row(numpy_int4, 0.502 / 7),
    "int3": Row(partial(numpy_bits, bits=3), 0.366),
    "int2": Row(partial(numpy_bits, bits=2), 0.654),
}


def encoded(name: str, rows: torch.Tensor) -> torch.Tensor:
    out = torch.full((rows.shape[0], CODECS[name].row_bytes(rows.shape[1])), 0xA5, dtype=torch.uint8)
    CODECS[name].encode(rows, out)
    return out


def read(name: str, data: torch.Tensor, length: int) -> torch.Tensor:
    """As it is read: what does not pass the check is not decoded."""
    CODECS[name].check(data.numpy(), length)
    rows = torch.full((data.shape[0], length), torch.nan)
    CODECS[name].decode(data, rows)
    return rows


def gaussian(num_rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, length, generator=generator) * 10.0 ** torch.randint(
        -6, 6, (num_rows, 1), generator=generator
    )


def test_every_codec_has_its_row() -> None:
    assert set(ROWS) == set(CODECS)


@pytest.mark.parametrize("name", CODECS)
class TestEveryCodec:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_decoding_equals_numpy_bit_for_bit(self, name: str, length: int) -> None:
        data = encoded(name, gaussian(9, length))
        expected = ROWS[name].decode(data.numpy(), length)
        assert read(name, data, length).numpy().tobytes() == expected.tobytes()

    @pytest.mark.parametrize("length", LENGTHS)
    def test_the_error_is_bounded_by_the_largest_element_of_the_row(self, name: str, length: int) -> None:
        rows = gaussian(9, length)
        error = (read(name, encoded(name, rows), length) - rows).abs()
        assert (error <= ROWS[name].error * rows.abs().amax(1, keepdim=True)).all()

    @pytest.mark.parametrize("length", LENGTHS)
    def test_bytes_of_some_rows_are_a_slice_of_the_bytes_of_all(self, name: str, length: int) -> None:
        rows = gaussian(7, length)
        assert torch.equal(encoded(name, rows[2:5]), encoded(name, rows)[2:5])
        assert torch.equal(
            read(name, encoded(name, rows)[2:5], length),
            read(name, encoded(name, rows), length)[2:5],
        )

    def test_more_rows_than_one_chunk_are_coded_alike(self, name: str) -> None:
        rows = gaussian(600, 1000)
        whole = encoded(name, rows)
        assert torch.equal(whole[599:], encoded(name, rows[599:]))
        assert torch.equal(read(name, whole, 1000)[599:], read(name, whole[599:], 1000))

    def test_zeros_stay_zeros(self, name: str) -> None:
        data = encoded(name, torch.zeros(2, 130))
        assert not data.any()
        assert not read(name, data, 130).any()

    @pytest.mark.parametrize("value", [1e-45, 1e-38, 1.2e-38, 1e-30, 1e-29, 1.0, 2.9e38, 3e38, LARGEST])
    def test_finite_values_of_any_size_decode_to_finite_values(self, name: str, value: float) -> None:
        rows = torch.tensor([[value, -value, 0.0, value / 3]]).repeat(2, 40)
        error = (read(name, encoded(name, rows), 160) - rows).abs().max()
        assert error <= max(0.13 * value, ROWS[name].error * value, 1.1e-28)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("column", [0, 128, 129])
    def test_a_value_that_is_not_finite_is_refused(self, name: str, value: float, column: int) -> None:
        rows = torch.ones(3, 130)
        rows[1, column] = value
        with pytest.raises(CodecError, match="not finite"):
            encoded(name, rows)

    @pytest.mark.parametrize("length", [1, 5, 128, 131])
    def test_arbitrary_bytes_decode_to_finite_values_or_are_refused(self, name: str, length: int) -> None:
        generator = torch.Generator().manual_seed(length)
        shape = (1, CODECS[name].row_bytes(length))
        decoded = 0
        for _ in range(200):
            data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            try:
                assert read(name, data, length).isfinite().all()
                decoded += 1
            except CodecError:
                continue
        assert decoded > 0

    @pytest.mark.parametrize("extra", [-1, 1])
    def test_rows_of_another_length_are_refused(self, name: str, extra: int) -> None:
        width = CODECS[name].row_bytes(130)
        data = torch.zeros(2, width + extra, dtype=torch.uint8)
        with pytest.raises(CodecError, match="expected length"):
            CODECS[name].check(data.numpy(), 130)
        with pytest.raises(CodecError, match="do not fit"):
            CODECS[name].decode(data, torch.zeros(2, 130))
        with pytest.raises(CodecError, match="do not fit"):
            CODECS[name].encode(torch.zeros(2, 130), data)

    def test_other_types_and_shapes_are_refused(self, name: str) -> None:
        width = CODECS[name].row_bytes(130)
        out, rows = torch.zeros(2, width, dtype=torch.uint8), torch.zeros(2, 130)
        for wrong in (rows.double(), rows.flatten(), rows[:1]):
            with pytest.raises(CodecError):
                CODECS[name].encode(wrong, out)
            with pytest.raises(CodecError):
                CODECS[name].decode(out, wrong)
        with pytest.raises(CodecError):
            CODECS[name].decode(out.to(torch.int8), rows)
        with pytest.raises(CodecError):
            CODECS[name].check(out.to(torch.int8).numpy(), 130)

    def test_views_that_are_not_contiguous_are_coded_alike(self, name: str) -> None:
        rows = gaussian(130, 6)
        assert torch.equal(encoded(name, rows.T), encoded(name, rows.T.contiguous()))

    def test_rows_may_lie_at_any_byte(self, name: str) -> None:
        rows = gaussian(3, 131)
        width = CODECS[name].row_bytes(131)
        buffer = torch.zeros(3 * width + 1, dtype=torch.uint8)
        CODECS[name].encode(rows, buffer[1:].view(3, width))
        assert torch.equal(buffer[1:].view(3, width), encoded(name, rows))
        assert torch.equal(
            read(name, buffer[1:].view(3, width), 131),
            read(name, encoded(name, rows), 131),
        )
