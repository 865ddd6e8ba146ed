"""Bytes of the block codecs, and where entries lie in a payload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from isthmus.codec import (
    CODECS,
    Slice,
    check_part,
    codec_named,
    decode_parts,
    encode_parts,
    is_finite,
    payload_bytes,
    rows_at_once,
    slices,
)
from isthmus.errors import CodecError


@dataclass(frozen=True)
class Part:
    name: str
    rows: int
    row_length: int
    policy: str = "coded"


PARTS = (
    Part("embed.weight", 5, 130, "embedding"),
    Part("layers.0.norm.weight", 1, 7, "lossless"),
    Part("layers.0.mlp.weight", 3, 129),
)


def encoded(name: str, values: list[float]) -> str:
    out = torch.empty(1, CODECS[name].row_bytes(len(values)), dtype=torch.uint8)
    CODECS[name].encode(torch.tensor([values]), out)
    return out.numpy().tobytes().hex()


def test_int4_bytes_are_scales_then_nibbles_the_low_one_first() -> None:
    assert encoded("int4", [7.0, -7.0, 1.0, -1.0, 0.0]) == "803f" + "97" + "f1" + "00"


def test_int8_bytes_are_scales_then_codes() -> None:
    assert encoded("int8", [127.0, -127.0, 1.0]) == "803f" + "7f8101"


def test_bf16_and_fp32_bytes_are_little_endian() -> None:
    assert encoded("bf16", [1.0, -2.0]) == "803f00c0"
    assert encoded("fp32", [1.0, -2.0]) == "0000803f000000c0"


def test_scales_of_all_blocks_come_before_the_codes() -> None:
    hexed = encoded("int4", [7.0] * 128 + [14.0] * 2)
    assert hexed == "803f" + "0040" + "77" * 65


def test_int4_takes_4_125_bits_per_element() -> None:
    assert CODECS["int4"].row_bytes(1024) * 8 / 1024 == 4.125


@pytest.mark.parametrize("scale", ["c07f", "807f", "ff7f", "80ff", "0080bf"[2:], "0100", "807e"])
def test_a_scale_that_no_encoder_writes_is_refused(scale: str) -> None:
    data = np.frombuffer(bytes.fromhex(scale + "77"), np.uint8).reshape(1, 3)
    with pytest.raises(CodecError, match="impossible scale"):
        CODECS["int4"].check(data, 2)


@pytest.mark.parametrize("scale", ["0000", "800d", "ff7d"])
def test_the_smallest_and_the_largest_scale_and_zero_are_taken(scale: str) -> None:
    CODECS["int4"].check(np.frombuffer(bytes.fromhex(scale + "77"), np.uint8).reshape(1, 3), 2)


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(CodecError, match=r"int5.*fp32, bf16, int8, int4"):
        codec_named("int5")


def test_a_lossless_entry_is_fp32_and_the_embedding_follows_its_policy() -> None:
    assert [part.codec for part in slices(PARTS, "int4", "int8")] == ["int8", "fp32", "int4"]
    assert [part.codec for part in slices(PARTS, "int4")] == ["int4", "fp32", "int4"]


def test_a_publication_in_fp32_is_all_fp32() -> None:
    assert {part.codec for part in slices(PARTS, "fp32", "int4")} == {"fp32"}
    assert payload_bytes(PARTS, "fp32", "int4") == 4 * (5 * 130 + 7 + 3 * 129)


def test_slices_lie_end_to_end() -> None:
    parts = slices(PARTS, "int4")
    assert [part.offset for part in parts] == [0, 5 * (4 + 65), 5 * 69 + 28]
    assert payload_bytes(PARTS, "int4") == 5 * 69 + 28 + 3 * (4 + 65)


def test_a_publication_without_payload_has_no_bytes() -> None:
    assert slices(PARTS, "none") == ()
    assert payload_bytes(PARTS, "none") == 0


def decoded(payload: memoryview, *parts: Slice) -> torch.Tensor:
    return decode_parts(payload, parts, torch.empty(sum(part.rows for part in parts), parts[0].row_length))


def test_entries_come_back_from_a_read_only_payload() -> None:
    payload = bytearray(payload_bytes(PARTS, "int4", "int8"))
    tensors = [torch.randn(part.rows, part.row_length) for part in PARTS]
    for tensor, part in zip(tensors, slices(PARTS, "int4", "int8"), strict=True):
        encode_parts(tensor, [part], memoryview(payload))
    received = memoryview(bytes(payload))
    for tensor, part in zip(tensors, slices(PARTS, "int4", "int8"), strict=True):
        check_part(received, part)
        rows = decoded(received, part)
        tolerance = {"fp32": 0.0, "int8": 0.004, "int4": 0.073}[part.codec]
        assert rows.shape == tensor.shape
        assert (rows - tensor).abs().max() <= tolerance * tensor.abs().max()


def test_rows_of_several_entries_are_coded_at_once_to_the_bytes_of_each_alone() -> None:
    entries = [Part("a", 3, 130), Part("b", 2, 4, "lossless"), Part("c", 5, 130)]
    a, b, c = slices(entries, "int4")
    some = [a.part(1, 2), c.part(0, 4)]
    rows = torch.randn(8, 130)
    alone, together = (memoryview(bytearray(payload_bytes(entries, "int4"))) for _ in range(2))
    encode_parts(rows[:3], [a], alone)
    encode_parts(rows[3:], [c], alone)
    encode_parts(torch.ones(2, 4), [b], alone)
    for payload_part, own in (([a.part(0, 1)], rows[:1]), (some, rows[1:7]), ([c.part(4, 1)], rows[7:])):
        encode_parts(own, payload_part, together)
    encode_parts(torch.ones(8), [b.part(0, 2)], together)
    assert together == alone
    assert torch.equal(decoded(alone, *some), torch.cat([decoded(alone, a)[1:], decoded(alone, c)[:4]]))


def test_decoded_rows_outlive_their_payload() -> None:
    payload = bytearray(payload_bytes(PARTS[1:2], "int4"))
    (part,) = slices(PARTS[1:2], "int4")
    encode_parts(torch.ones(7), [part], memoryview(payload))
    rows = decoded(memoryview(payload), part)
    payload[:] = bytes(len(payload))
    assert rows.tolist() == [[1.0] * 7]


def test_parameters_of_any_shape_are_encoded_as_rows() -> None:
    (part,) = slices([Part("experts", 6, 4)], "fp32")
    payload = bytearray(part.num_bytes)
    experts = torch.nn.Parameter(torch.arange(24.0).reshape(2, 3, 4))
    encode_parts(experts, [part], memoryview(payload))
    assert decoded(memoryview(payload), part).flatten().tolist() == list(range(24))


def test_an_error_names_the_entry() -> None:
    (part,) = slices(PARTS[2:], "int4")
    payload = memoryview(bytearray(part.num_bytes))
    with pytest.raises(CodecError, match=r"layers\.0\.mlp\.weight.*not finite"):
        encode_parts(torch.full((3, 129), float("nan")), [part], payload)
    with pytest.raises(CodecError, match=r"layers\.0\.mlp\.weight.*128 elements"):
        encode_parts(torch.zeros(128), [part], payload)
    with pytest.raises(CodecError, match=r"layers\.0\.mlp\.weight.*impossible scale"):
        check_part(memoryview(b"\xff" * part.num_bytes), part)


def test_of_entries_that_are_coded_at_once_an_error_names_the_right_one() -> None:
    parts = slices([Part("good", 2, 3), Part("bad", 1, 3), Part("also good", 1, 3)], "int8")
    rows = torch.ones(4, 3)
    rows[2, 1] = float("inf")
    with pytest.raises(CodecError, match=r"'bad': rows hold a value that is not finite"):
        encode_parts(rows, parts, memoryview(bytearray(parts[-1].offset + parts[-1].num_bytes)))


def test_a_payload_that_is_too_short_is_refused() -> None:
    (part,) = slices(PARTS[2:], "int4")
    short = memoryview(bytearray(part.num_bytes - 1))
    for use in (decoded, check_part, lambda payload, part: encode_parts(torch.zeros(3, 129), [part], payload)):
        with pytest.raises(CodecError, match="ends before"):
            use(short, part)


def test_values_whose_sum_overflows_are_finite_all_the_same() -> None:
    largest = torch.finfo(torch.float32).max
    assert is_finite(torch.full((5,), largest))
    assert not is_finite(torch.tensor([largest, largest, float("inf")]))
    assert not is_finite(torch.tensor([float("inf"), -float("inf")]))
    assert not is_finite(torch.tensor([0.0, float("nan")]))


def test_as_many_rows_are_worked_on_at_once_as_the_caches_of_all_threads_hold() -> None:
    here, cpu = torch.get_num_threads(), torch.device("cpu")
    assert rows_at_once(10**9, cpu) == 1
    try:
        torch.set_num_threads(1)
        one = rows_at_once(64, cpu)
        torch.set_num_threads(2)
        assert rows_at_once(64, cpu) == 2 * one
    finally:
        torch.set_num_threads(here)
