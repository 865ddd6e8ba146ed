"""Values, file descriptors and shared memory between an island and its link process."""

from __future__ import annotations

import os
import socket

import pytest

from isthmus.transport.buffers import SharedBuffer, share, shared_buffer_of
from isthmus.transport.ipc import Close, SendMessage, Taken, island_end, link_end


def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return island_end(ours), link_end(theirs)


def test_a_backlog_larger_than_the_socket_arrives_whole_and_in_order():
    island, link = ends()
    sent = [SendMessage("asia", bytes([index]) * 100_000) for index in range(50)]
    for value in sent:
        island.push(value)
    received = []
    island.flush()
    assert island.has_unsent
    while len(received) < len(sent):
        received += [value for value, _ in link.receive()]
        island.flush()
    assert received == sent
    assert not island.has_unsent
    island.close()
    link.close()


def test_file_descriptors_arrive_with_their_own_values():
    island, link = ends()
    buffers = [SharedBuffer.create(size) for size in (10, 20, 30)]
    for index, buffer in enumerate(buffers):
        buffer[0] = 65 + index
        island.push(Taken(str(index)), buffer.fd)
        island.push(Close(float(index)))
    received = []
    while len(received) < 6:
        island.flush()
        received += link.receive()
    for index, (value, fd) in enumerate(received[::2]):
        assert value == Taken(str(index))
        assert fd is not None
        assert bytes(memoryview(SharedBuffer.received(fd, len(buffers[index])))[:1]) == bytes([65 + index])
    assert [fd for _, fd in received[1::2]] == [None, None, None]
    island.close()
    link.close()


def test_the_end_of_the_other_side_is_noticed():
    island, link = ends()
    island.push(Close(1.0))
    island.flush()
    island.close()
    assert [value for value, _ in link.receive()] == [Close(1.0)]
    with pytest.raises(EOFError):
        link.receive()
    link.push(Taken("x"))
    with pytest.raises(OSError):
        link.flush()
    link.close()


@pytest.mark.parametrize("memfd", [True, False])
def test_a_shared_buffer_is_zeroed_shared_and_freed(memfd, monkeypatch):
    if not memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    buffer = SharedBuffer.create(5000)
    assert bytes(buffer) == bytes(5000)
    view = memoryview(SharedBuffer.received(os.dup(buffer.fd), 5000))
    buffer[10:13] = b"abc"
    assert bytes(view[10:13]) == b"abc"
    assert view.readonly
    fd = buffer.fd
    del buffer
    with pytest.raises(OSError):
        os.fstat(fd)


def test_only_a_whole_shared_buffer_is_passed_on_without_a_copy():
    buffer = SharedBuffer.create(100)
    whole = memoryview(buffer)
    assert share(whole) is buffer
    assert shared_buffer_of(whole[:50]) is None
    copy = share(memoryview(b"other"))
    assert bytes(copy) == b"other"
