"""Frames, messages, packing: bounded and strict."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import LinkError, ProtocolError
from isthmus.terms import EdgeReport, Goodbye, Hello, Layout, Phase, Pulse
from isthmus.wire import (
    CHUNK_BYTES,
    FrameParser,
    Kind,
    decode_message,
    encode_frame,
    encode_message,
    pack_chunk,
    unpack_chunk,
)
from isthmus.wire.frames import (
    BULK_BOUNDS,
    COMPRESSED,
    CONTROL_BOUNDS,
    HANDSHAKE_BOUNDS,
    MAX_MESSAGE_BYTES,
    frame_header,
)
from isthmus.wire.packing import zstd

MESSAGES = [
    Goodbye("bye"),
    Layout(("a (2, 3) float32 lossless", "b (4,) bfloat16 int4")),
    Pulse(tokens={"asia": 12, "us-east": 2**40}, phase=Phase.TRAINING, step=7),
    Hello(
        run="r",
        sender="asia",
        incarnation=3,
        peer_incarnation=1,
        tokens=5,
        rounds=2,
        complete=True,
        layout=b"\x02" * 32,
        edges=(
            EdgeReport(epoch=1, version=2, reference=b"c", last=(5, 6)),
            EdgeReport(epoch=0, version=0, reference=b""),
        ),
    ),
]


@given(bodies=st.lists(st.binary(max_size=300), max_size=6), cuts=st.lists(st.integers(1, 40), max_size=200))
def test_frames_survive_any_cutting_of_the_stream(bodies, cuts):
    stream = b"".join(encode_frame(Kind.MESSAGE, body) for body in bodies)
    parser, frames, position = FrameParser(CONTROL_BOUNDS), [], 0
    for cut in [*cuts, len(stream)]:
        frames += parser.feed(stream[position : position + cut])
        position += cut
    assert [bytes(frame.body) for frame in frames] == bodies
    assert parser.between_frames


def test_a_stream_that_ends_inside_a_frame_is_known_to():
    parser = FrameParser(CONTROL_BOUNDS)
    for end in (3, 8, 10):
        parser = FrameParser(CONTROL_BOUNDS)
        assert parser.feed(encode_frame(Kind.MESSAGE, b"four")[:end]) == []
        assert not parser.between_frames


@pytest.mark.parametrize(
    ("bounds", "header"),
    [
        (CONTROL_BOUNDS, frame_header(Kind.MESSAGE, MAX_MESSAGE_BYTES + 1)),
        (CONTROL_BOUNDS, frame_header(Kind.PING, 1)),
        (CONTROL_BOUNDS, frame_header(Kind.CHUNK, 100)),
        (BULK_BOUNDS, frame_header(Kind.CHUNK, 2**32 - 1)),
        (BULK_BOUNDS, frame_header(Kind.END, 1 << 20)),
        (BULK_BOUNDS, frame_header(Kind.BEGIN, 10, flags=COMPRESSED)),
        (BULK_BOUNDS, frame_header(Kind.CHUNK, 10, flags=2)),
        (HANDSHAKE_BOUNDS, frame_header(Kind.HELLO, 1 << 16)),
        (HANDSHAKE_BOUNDS, frame_header(Kind.MESSAGE, 1)),
        (HANDSHAKE_BOUNDS, b"GET / HT"),
        (HANDSHAKE_BOUNDS, b"IS\xff\x00\x00\x00\x00\x00"),
    ],
)
def test_a_header_out_of_bounds_is_refused_before_memory_is_taken(bounds, header):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            FrameParser(bounds).feed(header)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message):
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode_message(MESSAGES[0])[:-1],
        encode_message(MESSAGES[0]) + b"\x00",
        msgspec.msgpack.encode({"type": "goodbye", "reason": "x", "extra": 1}),
        msgspec.msgpack.encode({"type": "goodbye", "reason": 5}),
        msgspec.msgpack.encode({"type": "shutdown"}),
        msgspec.msgpack.encode({"type": "goodbye"}),
        b"\x82\xa4type\xa7goodbye\xa6reason\xa2\xff\xfe",
    ],
)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(ProtocolError):
        decode_message(body)


@given(st.binary(max_size=200))
def test_no_bytes_make_decoding_fail_in_another_way(body):
    try:
        decode_message(body)
    except ProtocolError:
        return


def test_a_message_too_large_is_refused_at_both_ends():
    with pytest.raises(LinkError, match="too large"):
        encode_message(Goodbye("x" * MAX_MESSAGE_BYTES))
    with pytest.raises(ProtocolError, match="too large"):
        decode_message(bytes(MAX_MESSAGE_BYTES + 1))


@given(st.binary(max_size=2000))
def test_chunks_survive_packing(data):
    body, compressed = pack_chunk(memoryview(data))
    assert bytes(unpack_chunk(body, len(data), compressed=compressed)) == data
    assert len(body) <= len(data)


def test_a_chunk_is_compressed_where_that_shrinks_it():
    body, compressed = pack_chunk(memoryview(bytes(CHUNK_BYTES)))
    assert compressed
    assert len(body) < 1000
    body, compressed = pack_chunk(memoryview(bytes(range(256))))
    assert (bytes(body), compressed) == (bytes(range(256)), False)


def test_a_bomb_takes_no_more_memory_than_its_chunk_may_have():
    bomb = zstd.compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack_chunk(bomb, 1000, compressed=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        (b"short", False),
        (bytes(1001), False),
        (b"no zstd", True),
        (zstd.compress(bytes(999)), True),
        (zstd.compress(bytes(1001)), True),
        (zstd.compress(bytes(1000))[:-1], True),
        (zstd.compress(bytes(1000)) + b"x", True),
        (zstd.compress(bytes(500)) + zstd.compress(bytes(500)), True),
    ],
)
def test_a_chunk_of_another_length_is_refused(body, compressed):
    with pytest.raises(ProtocolError):
        unpack_chunk(body, 1000, compressed=compressed)


def test_a_chunk_that_wants_a_large_window_is_refused():
    wide = zstd.compress(bytes(1000), options={zstd.CompressionParameter.window_log: 27})
    unsized = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    stream = unsized.compress(bytes(1000)) + unsized.flush()
    assert unpack_chunk(wide, 1000, compressed=True) == bytes(1000)
    with pytest.raises(ProtocolError, match="decompress"):
        unpack_chunk(stream, 1000, compressed=True)
