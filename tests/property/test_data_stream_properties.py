from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.documents import owner
from isthmus.data.stream import WindowStream

SHAPES = st.integers(1, 12).flatmap(lambda length: st.tuples(st.integers(length + 1, 90), st.just(length)))
SEEDS = st.integers(0, 2**63)


def stream(shape, seed, batch_size):
    num_tokens, length = shape
    tokens = np.arange(num_tokens, dtype=np.int32)
    return WindowStream(tokens, part="p", sequence_length=length, batch_size=batch_size, seed=seed, slot=1)


@settings(deadline=None, max_examples=50)
@given(SHAPES, SEEDS, st.integers(1, 4))
def test_no_token_comes_twice_in_an_epoch_and_none_is_lost_over_epochs(shape, seed, epochs):
    num_tokens, length = shape
    windows = stream(shape, seed, num_tokens // length)
    counted: Counter[int] = Counter()
    for _ in range(epochs):
        inputs = windows.next_batch()[:, :-1].flatten().tolist()
        assert len(set(inputs)) == len(inputs)
        counted.update(inputs)
    laid_end_to_end = range(epochs * (num_tokens // length) * length)
    assert counted == Counter(position % num_tokens for position in laid_end_to_end)


@settings(deadline=None, max_examples=50)
@given(SHAPES, SEEDS, st.lists(st.tuples(st.integers(0, 200), st.integers(1, 7)), min_size=1, max_size=5))
def test_the_sequence_at_a_cursor_is_the_same_after_any_seek_and_batch_size(shape, seed, visits):
    reference = stream(shape, seed, 210).next_batch()
    for cursor, batch_size in visits:
        windows = stream(shape, seed, batch_size)
        windows.next_batch()
        windows.seek(cursor)
        assert torch.equal(windows.next_batch(), reference[cursor : cursor + batch_size])


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(any))
def test_any_content_belongs_to_one_slot_that_has_a_share(digest, shares):
    assert shares[owner(digest, shares)] > 0
