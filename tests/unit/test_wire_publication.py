"""A publication as frames: out, in, and everything that can be wrong on the way."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import IdentityError, ProtocolError
from isthmus.identity import create_identity
from isthmus.terms import Header
from isthmus.wire import (
    CHUNK_BYTES,
    Assembly,
    Begin,
    Dispatch,
    End,
    FrameParser,
    HashTree,
    Kind,
    check_header,
    chunk_bounds,
    decode_body,
    num_chunks,
    payload_root,
    sign_header,
    signing_bytes,
    verify_signed,
)
from isthmus.wire.frames import BULK_BOUNDS, CHUNK_HEAD_BYTES

ASIA = create_identity("asia")
EAST = create_identity("us-east")


def header(num_bytes: int, /, **changes: object) -> Header:
    made = Header(
        run="r",
        sender="asia",
        receiver="us-east",
        fragment=0,
        epoch=0,
        version=1,
        sender_incarnation=1,
        receiver_incarnation=1,
        publication=77,
        step=5,
        tokens=10,
        weight_tokens=5,
        run_tokens=20,
        cursor=0,
        reference=b"",
        codec="int4",
        num_bytes=num_bytes,
    )
    return msgspec.structs.replace(made, **changes)


def payload_of(num_bytes: int) -> bytes:
    return hashlib.shake_128(b"payload").digest(num_bytes)


def frames_of(dispatch: Dispatch) -> list:
    stream = [dispatch.begin()]
    for _, head, data in dispatch.chunks():
        stream += [head, bytes(data)]
    stream.append(dispatch.end(sign_header(ASIA, dispatch.header, dispatch.root())))
    return FrameParser(BULK_BOUNDS).feed(b"".join(stream))


def assembled(head: Header, frames: list) -> bytes:
    sink = bytearray(head.num_bytes)
    assembly = Assembly(head, memoryview(sink))
    for frame in frames[1:-1]:
        assembly.add(frame.body, frame.flags)
    assembly.finish(decode_body(frames[-1].body, End).signed, ASIA.certificate_pem)
    return bytes(sink)


@pytest.mark.parametrize("num_bytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
@pytest.mark.parametrize("compressible", [False, True])
def test_a_publication_survives_its_frames(num_bytes, compressible):
    payload = bytes(num_bytes) if compressible else payload_of(num_bytes)
    frames = frames_of(Dispatch(header(num_bytes), memoryview(payload)))
    assert [frame.kind for frame in frames] == [Kind.BEGIN, *[Kind.CHUNK] * num_chunks(num_bytes), Kind.END]
    assert assembled(header(num_bytes), frames) == payload


def test_after_a_break_only_what_is_missing_is_sent():
    payload = payload_of(3 * CHUNK_BYTES + 9)
    first = frames_of(Dispatch(header(len(payload)), memoryview(payload)))
    sink = bytearray(len(payload))
    assembly = Assembly(header(len(payload)), memoryview(sink))
    for frame in first[1:3]:
        assembly.add(frame.body, frame.flags)
    assert assembly.holding().chunks == 2
    again = header(len(payload), sender_incarnation=2)
    dispatch = Dispatch(again, memoryview(payload), first_chunk=2)
    assert dispatch.remaining_bytes == CHUNK_BYTES + 9
    rest = frames_of(dispatch)
    assert assembly.resume(decode_body(rest[0].body, Begin))
    assert len(rest) == 4
    for frame in rest[1:-1]:
        assembly.add(frame.body, frame.flags)
    assembly.finish(decode_body(rest[-1].body, End).signed, ASIA.certificate_pem)
    assert sink == payload


@pytest.mark.parametrize(("changes", "first_chunk"), [({"publication": 78}, 0), ({"num_bytes": 8}, 0), ({}, 1)])
def test_another_publication_is_not_taken_for_the_rest_of_a_held_one(changes, first_chunk):
    assembly = Assembly(header(9), memoryview(bytearray(9)))
    assert not assembly.resume(Begin(header(9, **changes), first_chunk))


def test_a_flipped_bit_is_refused_wherever_it_is():
    payload = payload_of(CHUNK_BYTES + 100)
    for which in (0, 1):
        frames = frames_of(Dispatch(header(len(payload)), memoryview(payload)))
        frames[1 + which].body[CHUNK_HEAD_BYTES + 50] ^= 1
        with pytest.raises(ProtocolError, match="root"):
            assembled(header(len(payload)), frames)


@pytest.mark.parametrize("change", ["swap", "lack", "repeat", "truncate", "lengthen", "other", "headless"])
def test_chunks_that_are_not_the_next_of_this_publication_are_refused(change):
    payload = payload_of(2 * CHUNK_BYTES + 1)
    frames = frames_of(Dispatch(header(len(payload)), memoryview(payload)))
    begin, one, two, three, end = frames
    if change == "swap":
        frames = [begin, two, one, three, end]
    elif change == "lack":
        frames = [begin, one, two, end]
    elif change == "repeat":
        frames = [begin, one, two, three, three, end]
    elif change == "truncate":
        frames = [begin, one._replace(body=one.body[:-1]), two, three, end]
    elif change == "lengthen":
        frames = [begin, one, two, three._replace(body=memoryview(bytes(three.body) + b"x")), end]
    elif change == "other":
        other = frames_of(Dispatch(header(len(payload), publication=78), memoryview(payload)))
        frames = [begin, other[1], two, three, end]
    else:
        frames = [begin, one._replace(body=one.body[:5]), two, three, end]
    with pytest.raises(ProtocolError):
        assembled(header(len(payload)), frames)


def test_a_header_that_changed_under_way_is_refused():
    payload = payload_of(100)
    frames = frames_of(Dispatch(header(100), memoryview(payload)))
    with pytest.raises(ProtocolError, match="another header"):
        assembled(header(100, weight_tokens=10**9), frames)


def test_another_islands_signature_is_refused():
    signed = sign_header(EAST, header(0), payload_root(b""))
    with pytest.raises(IdentityError):
        Assembly(header(0), memoryview(b"")).finish(signed, ASIA.certificate_pem)


@pytest.mark.parametrize("field", ["root", "signature"])
@pytest.mark.parametrize("value", [b"", bytes(31), bytes(65)])
def test_malformed_roots_and_signatures_are_refused(field, value):
    signed = sign_header(ASIA, header(0), payload_root(b""))
    with pytest.raises(IdentityError, match="malformed"):
        verify_signed(ASIA.certificate_pem, msgspec.structs.replace(signed, **{field: value}))


@pytest.mark.parametrize(
    "changes",
    [{"run": "s"}, {"sender": "mars"}, {"receiver": "mars"}, {"num_bytes": 101}, {"num_bytes": -1}],
)
def test_a_header_that_does_not_fit_its_connection_is_refused(changes):
    check_header(header(100), run="r", sender="asia", receiver="us-east", max_bytes=100)
    with pytest.raises(ProtocolError):
        check_header(header(100, **changes), run="r", sender="asia", receiver="us-east", max_bytes=100)


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=40))
def test_the_tree_is_that_of_rfc_6962(leaves):
    tree = HashTree()
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root() == naive_root(leaves)


@given(st.integers(0, 10 * CHUNK_BYTES))
def test_chunks_cover_a_payload_without_gap_or_overlap(num_bytes):
    position = 0
    for index in range(num_chunks(num_bytes)):
        start, end = chunk_bounds(num_bytes, index)
        assert start == position
        assert 0 < end - start <= CHUNK_BYTES
        position = end
    assert position == num_bytes


def test_no_two_headers_are_signed_alike():
    root = payload_root(b"")
    values = {
        signing_bytes(header(5, **change), root) for change in ({}, {"final": True}, {"cursor": 1}, {"codec": "x"})
    }
    assert len(values) == 4
