from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus.data.stream import WindowStream
from isthmus.errors import DataError


def stream(num_tokens=103, batch_size=3, **changed):
    options = {"part": "digest", "sequence_length": 10, "batch_size": batch_size, "seed": 5, "slot": 0, **changed}
    return WindowStream(np.arange(num_tokens, dtype=np.int32), **options)


def test_a_batch_is_int64_with_every_target_one_behind_its_input():
    batch = stream().next_batch()
    assert batch.shape == (3, 11)
    assert batch.dtype == torch.int64
    assert torch.equal(batch[:, 1:], (batch[:, :-1] + 1) % 103)


def test_the_tail_of_an_epoch_opens_the_next_one():
    whole = stream(batch_size=10)
    first, second = whole.next_batch()[:, :-1], whole.next_batch()[:, :-1]
    assert sorted(first.flatten().tolist()) == list(range(100))
    assert sorted(second.flatten().tolist()) == sorted([100, 101, 102, *range(97)])


def test_the_order_depends_on_seed_epoch_and_slot():
    changes = ({}, {"seed": 6}, {"slot": 1})
    orders = [stream(num_tokens=101, batch_size=10, **each).next_batch()[:, 0] for each in changes]
    later = stream(num_tokens=101, batch_size=10)
    later.seek(10)
    orders.append((later.next_batch()[:, 0] - 100) % 101)
    assert all(sorted(order.tolist()) == list(range(0, 100, 10)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_a_state_goes_on_in_a_new_stream_with_another_batch_size():
    straight = stream(batch_size=1)
    reference = torch.cat([straight.next_batch() for _ in range(14)])
    before = stream(batch_size=3)
    before.next_batch()
    after = stream(batch_size=11)
    after.load_state_dict(before.state_dict())
    assert after.cursor == 3
    assert torch.equal(after.next_batch(), reference[3:])
    assert after.cursor == 14


@pytest.mark.parametrize("changed", [{"part": "other"}, {"sequence_length": 9}, {"seed": 6}, {"slot": 1}])
def test_a_state_of_other_data_is_refused(changed):
    with pytest.raises(DataError, match="of other data"):
        stream().load_state_dict(stream(**changed).state_dict())


def test_text_that_is_no_longer_than_a_sequence_is_refused():
    with pytest.raises(DataError, match=r"got 10 tokens; wanted more than 10"):
        stream(num_tokens=10)
    assert stream(num_tokens=11).next_batch().shape == (3, 11)


def test_a_negative_cursor_is_refused():
    with pytest.raises(DataError, match="negative"):
        stream().seek(-1)


def test_tokens_mapped_from_a_file_are_read_alike(tmp_path):
    np.arange(103, dtype=np.int32).tofile(tmp_path / "t.bin")
    mapped = WindowStream(
        np.memmap(tmp_path / "t.bin", np.int32, mode="r"),
        part="digest",
        sequence_length=10,
        batch_size=3,
        seed=5,
        slot=0,
    )
    assert torch.equal(mapped.next_batch(), stream().next_batch())
