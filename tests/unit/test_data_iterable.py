from __future__ import annotations

import pytest
import torch

from isthmus.data.iterable import IterableStream
from isthmus.errors import DataError


class Source:
    """Counts up through ``sizes`` pieces, then ends; resumes behind the last piece yielded."""

    def __init__(self, sizes=(3, 0, 8, 1, 5), dtype=torch.int32):
        self.pieces = list(torch.arange(sum(sizes)).to(dtype).split(list(sizes)))
        self.position = 0

    def __iter__(self):
        self.position %= len(self.pieces) or 1
        while self.position < len(self.pieces):
            self.position += 1
            yield self.pieces[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def stream(source=None, sequence_length=4, batch_size=2):
    return IterableStream(source or Source(), sequence_length=sequence_length, batch_size=batch_size)


def inputs(batches):
    return torch.cat([batch[:, :-1].flatten() for batch in batches]).tolist()


def test_windows_lie_end_to_end_and_go_on_through_the_end_of_the_source():
    windows = stream()
    batches = [windows.next_batch() for _ in range(5)]
    assert all(batch.shape == (2, 5) and batch.dtype == torch.int64 for batch in batches)
    assert inputs(batches) == [number % 17 for number in range(40)]
    assert torch.equal(batches[0][:, 1:], (batches[0][:, :-1] + 1) % 17)


@pytest.mark.parametrize("taken", range(6))
def test_a_saved_state_goes_on_in_a_new_stream_over_a_new_source(taken):
    straight = stream(batch_size=1)
    reference = [straight.next_batch() for _ in range(20)]
    before = stream()
    for _ in range(taken):
        before.next_batch()
    after = stream(batch_size=1)
    after.load_state_dict(before.state_dict())
    assert after.cursor == 2 * taken
    assert torch.equal(torch.cat([after.next_batch() for _ in range(8)]), torch.cat(reference[2 * taken :][:8]))


@pytest.mark.parametrize("cursor", [0, 1, 5, 13])
def test_seek_goes_forward_and_back_to_any_sequence(cursor):
    straight = stream(batch_size=1)
    reference = torch.cat([straight.next_batch() for _ in range(15)])
    moved = stream()
    for _ in range(3):
        moved.next_batch()
    moved.seek(cursor)
    assert moved.cursor == cursor
    assert torch.equal(moved.next_batch(), reference[cursor : cursor + 2])


def test_an_empty_source_is_refused():
    with pytest.raises(DataError, match="yields no tokens"):
        stream(Source(sizes=(0,))).next_batch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_tensors_that_are_not_integers_are_refused(dtype):
    with pytest.raises(DataError, match=f"integer tensors; got {dtype}"):
        stream(Source(dtype=dtype)).next_batch()


def test_a_state_of_another_sequence_length_is_refused():
    with pytest.raises(DataError, match="sequences of 5; wanted sequences of 4"):
        stream().load_state_dict(stream(sequence_length=5).state_dict())


def test_a_negative_cursor_is_refused():
    with pytest.raises(DataError, match="negative"):
        stream().seek(-1)
