"""The random number generators go on from where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from isthmus.checkpoint import MemoryStorage, load_latest, rng_state, save, set_rng_state
from isthmus.errors import CheckpointError


@pytest.fixture(autouse=True)
def _as_found():
    before = rng_state()
    yield
    set_rng_state(before)


def draws() -> tuple:
    gauss = random.gauss(0, 1), float(np.random.normal())
    return *gauss, random.random(), float(np.random.rand()), torch.randn(3).tolist()


def test_a_saved_state_repeats_the_draws_that_followed_it():
    draws()
    storage = MemoryStorage()
    save(storage, 1, {"rng": rng_state()})
    first = draws()
    assert draws() != first
    loaded = load_latest(storage)
    assert loaded is not None
    assert set_rng_state(loaded[0]["rng"]) is True
    assert draws() == first


def test_a_taken_state_does_not_move_with_the_generators():
    state = rng_state()
    first = draws()
    for _ in range(700):
        draws()
    set_rng_state(state)
    assert draws() == first


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a machine with no accelerator")
def test_the_state_of_an_accelerator_that_is_not_here_is_left_out_and_said():
    state = rng_state()
    assert state["accelerator"] is None
    state["accelerator"] = {"kind": "other", "state": torch.zeros(16, dtype=torch.uint8)}
    assert set_rng_state(state) is False


@pytest.mark.parametrize("part", ["python", "numpy", "torch", "accelerator"])
@pytest.mark.parametrize("value", [7, {}, (3, (1, 2), None)])
def test_another_kind_of_state_is_refused(part, value):
    if part == "accelerator" and value == {}:
        value = 5
    with pytest.raises(CheckpointError, match="not a state of the random number generators"):
        set_rng_state({**rng_state(), part: value})
    with pytest.raises(CheckpointError):
        set_rng_state({})
