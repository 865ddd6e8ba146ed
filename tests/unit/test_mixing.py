"""The pair rule's formulas, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from isthmus.codec import CODECS
from isthmus.errors import ProtocolError
from isthmus.mixing import (
    adopt,
    arrive,
    assign,
    counts_alone,
    depart,
    depart_buffer,
    difference,
    merge_reference,
    merge_weights,
    mesh_round,
    published,
)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape or (1000,), generator=torch.Generator().manual_seed(seed))


def test_a_departure_is_a_nesterov_step_on_own_progress() -> None:
    slow, fast, velocity = normal(0).double(), normal(1).double(), normal(2).double()
    a, theta, m = slow.numpy().copy(), fast.numpy().copy(), velocity.numpy().copy()
    depart(slow, fast, velocity, outer_lr=0.7, momentum=0.6)
    m = 0.6 * m + (a - theta)
    y = a - 0.7 * ((a - theta) + 0.6 * m)
    np.testing.assert_allclose(slow.numpy(), y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(velocity.numpy(), m, rtol=0, atol=1e-14)
    assert torch.equal(fast, slow)


def test_a_calm_departure_keeps_the_fast_weights_bit_for_bit() -> None:
    slow, fast, velocity = normal(0), normal(1), normal(2)
    before, progress = fast.clone(), slow - fast
    depart(slow, fast, velocity, outer_lr=1.0, momentum=0.0)
    assert torch.equal(fast, before)
    assert torch.equal(slow, before)
    assert torch.equal(velocity, progress)


def test_parameters_move_in_place_without_a_gradient() -> None:
    parameter = nn.Parameter(normal(1))
    where = parameter.data_ptr()
    slow, velocity = normal(0), torch.zeros(1000)
    depart(slow, parameter, velocity, outer_lr=0.7, momentum=0.6)
    assert parameter.data_ptr() == where
    assert parameter.grad_fn is None
    assert torch.equal(parameter, slow)


def test_a_buffer_departs_as_it_is() -> None:
    slow, fast = normal(0), normal(1)
    depart_buffer(slow, fast)
    assert torch.equal(slow, normal(1))
    assert torch.equal(fast, normal(1))


def test_a_correction_moves_the_slow_weights_and_is_told() -> None:
    slow, said, merged = (normal(seed).double() for seed in range(3))
    correction, expected = merged - said, slow + (merged - said)
    assert torch.equal(arrive(slow, published=said, merged=merged), correction)
    assert torch.equal(slow, expected)


def test_adoption_takes_everything_and_stops_the_velocity() -> None:
    slow, velocity, merged = (normal(seed) for seed in range(3))
    adopt(slow, velocity, merged=merged)
    assert torch.equal(slow, merged)
    assert not velocity.any()
    adopt(slow, None, merged=normal(5))
    assert torch.equal(slow, normal(5))


def test_the_end_assigns_the_slow_weights() -> None:
    slow = normal(0)
    assign(slow, merged=normal(1))
    assert torch.equal(slow, normal(1))


def test_without_a_reference_everything_is_said() -> None:
    slow, decoded = normal(0), normal(1)
    assert torch.equal(difference(slow, None), slow)
    assert torch.equal(published(None, decoded), decoded)
    assert difference(slow, None).data_ptr() != slow.data_ptr()
    assert published(None, decoded).data_ptr() != decoded.data_ptr()


def test_a_publication_says_the_reference_and_what_was_decoded() -> None:
    assert torch.equal(difference(normal(0), normal(1)), normal(0) - normal(1))
    assert torch.equal(published(normal(0), normal(1)), normal(0) + normal(1))


@pytest.mark.parametrize("reference", [None, normal(1)])
def test_what_is_coded_and_said_can_be_written_anywhere(reference: torch.Tensor | None) -> None:
    coded, said = torch.empty(1000), torch.empty(1000)
    assert difference(normal(0), reference, out=coded) is coded
    assert published(reference, normal(0), out=said) is said
    assert torch.equal(coded, difference(normal(0), reference))
    assert torch.equal(said, published(reference, normal(0)))


TOKENS = [(1, 2), (2, 1), (3, 7), (1, 1), (10**12, 7), (7, 10**15), (123_456, 654_321)]
OF_MANY = [(1, 1, 1), (3, 0, 7), (1, 10**15, 2), (5,) * 8, tuple(range(64)), (0, 0, 9, 0, 1)]


@pytest.mark.parametrize("tokens", TOKENS + OF_MANY)
def test_weights_are_fp32_shares_of_tokens_and_sum_to_one(tokens: tuple[int, ...]) -> None:
    weights = merge_weights(tokens, counts_if_none=0)
    assert sum(weights) == 1.0
    for weight, own in zip(weights, tokens, strict=True):
        assert float(np.float32(weight)) == weight
        assert abs(weight - own / sum(tokens)) <= 2.0**-23
        assert weight == 0.0 or own > 0


@pytest.mark.parametrize("tokens", TOKENS)
def test_of_two_ends_the_higher_one_has_what_the_lower_ones_fp32_share_leaves(tokens: tuple[int, int]) -> None:
    high = np.float32(1.0) - np.float32(tokens[0] / sum(tokens))
    low = float(np.float32(1.0) - high)
    assert merge_weights(tokens, counts_if_none=0) == (low, float(high))
    assert abs(low - tokens[0] / sum(tokens)) <= 2.0**-24


def test_an_end_that_did_not_train_has_no_weight() -> None:
    assert merge_weights((0, 5), counts_if_none=0) == (0.0, 1.0)
    assert merge_weights((5, 0), counts_if_none=1) == (1.0, 0.0)
    assert merge_weights((0, 0), counts_if_none=0) == (1.0, 0.0)
    assert merge_weights((0, 0), counts_if_none=1) == (0.0, 1.0)
    assert merge_weights((0, 0, 0), counts_if_none=1) == (0.0, 1.0, 0.0)


def test_negative_tokens_are_refused() -> None:
    with pytest.raises(ProtocolError, match="negative"):
        merge_weights((5, -1), counts_if_none=0)


@pytest.mark.parametrize(
    ("complete", "run_tokens", "place"),
    [
        ((True, False), (0, 9), 0),
        ((False, True), (9, 0), 1),
        ((True, True), (1, 2), 1),
        ((True, True), (2, 1), 0),
        ((False, False), (1, 2), 1),
        ((True, True), (2, 2), 0),
        ((False, True, True, True), (9, 3, 5, 5), 2),
    ],
)
def test_a_complete_then_the_most_experienced_then_the_lowest_end_counts(
    complete: tuple[bool, ...], run_tokens: tuple[int, ...], place: int
) -> None:
    assert counts_alone(complete, run_tokens) == place


@pytest.mark.parametrize("tokens", [(1, 2), (3, 1), (17, 10**9), (1, 0)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_merging_equals_numpy_bit_for_bit(tokens: tuple[int, int], scale: float) -> None:
    c, low, high = (normal(seed, 1_000_000) * scale for seed in range(3))
    w_low, w_high = merge_weights(tokens, counts_if_none=0)
    merged = merge_reference(c, (low.clone(), high.clone()), (w_low, w_high))
    terms = low.numpy() * np.float32(w_low)
    if w_high:
        terms = terms + high.numpy() * np.float32(w_high)
    assert merged.numpy().tobytes() == (c.numpy() + terms).tobytes()


def test_merging_decoded_int4_equals_numpy_bit_for_bit() -> None:
    codec = CODECS["int4"]
    decoded = []
    for seed in (0, 1):
        data = torch.empty(50, codec.row_bytes(300), dtype=torch.uint8)
        codec.encode(normal(seed, 50, 300), data)
        decoded.append(torch.empty(50, 300))
        codec.decode(data, decoded[-1])
    low, high = decoded
    expected = low.numpy() * np.float32(0.3125) + high.numpy() * np.float32(0.6875)
    merged = merge_reference(None, decoded, (0.3125, 0.6875))
    assert merged.numpy().tobytes() == expected.tobytes()


def test_merging_many_adds_them_in_order_of_slots_bit_for_bit() -> None:
    c, *said = (normal(seed) for seed in range(6))
    weights = merge_weights((3, 1, 0, 4, 1), counts_if_none=0)
    terms = [values.numpy() * np.float32(weight) for values, weight in zip(said, weights, strict=True) if weight]
    expected = c.numpy() + (((terms[0] + terms[1]) + terms[2]) + terms[3])
    assert merge_reference(c, said, weights).numpy().tobytes() == expected.tobytes()


def test_merging_leaves_the_reference_alone_unless_it_is_to_be_written_over() -> None:
    c, merged = normal(0), merge_reference(normal(0), (normal(1), normal(2)), (0.25, 0.75))
    assert torch.equal(merge_reference(c, (normal(1), normal(2)), (0.25, 0.75)), merged)
    assert torch.equal(c, normal(0))
    assert merge_reference(c, (normal(1), normal(2)), (0.25, 0.75), out=c) is c
    assert torch.equal(c, merged)


def test_without_a_reference_what_is_merged_can_be_written_anywhere() -> None:
    out = torch.empty(1000)
    assert merge_reference(None, (normal(1), None), (1.0, 0.0), out=out) is out
    assert torch.equal(out, normal(1))


def test_a_missing_publication_may_have_no_weight_only() -> None:
    assert torch.equal(merge_reference(None, (None, normal(1)), (0.0, 1.0)), normal(1))
    with pytest.raises(ProtocolError, match="without payload"):
        merge_reference(None, (None, normal(1)), (0.5, 0.5))
    with pytest.raises(ProtocolError, match="no publication"):
        merge_reference(None, (normal(0), normal(1)), (0.0, 0.0))


def test_a_mesh_round_is_one_nesterov_step_on_the_mean() -> None:
    anchor, velocity = normal(0).double(), normal(1).double()
    progress = [normal(seed).double() for seed in (2, 3, 4)]
    mean = 0.5 * progress[0] + 0.25 * progress[1] + 0.25 * progress[2]
    m = 0.6 * velocity + mean
    expected = anchor - 0.7 * (mean + 0.6 * m)
    mesh_round(anchor, velocity, progress, [0.5, 0.25, 0.25], outer_lr=0.7, momentum=0.6)
    torch.testing.assert_close(anchor, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(velocity, m, rtol=0, atol=1e-14)
