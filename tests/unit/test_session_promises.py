"""Promises of a session that a careless loop would break without noticing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from isthmus.errors import CheckpointError, ConfigError, ShapeError
from isthmus.session import Training, cut_model
from isthmus.session.island import _whole_tokens
from isthmus.train import pick_device
from worlds import Batches, SmallWorld, Toy


def test_a_model_that_is_rebound_after_joining_is_refused_at_the_next_step():
    world = SmallWorld("a").start()
    world.run_to_step("a", 2)
    weight = world["a"].model.layers[0].weight
    weight.data = weight.data.clone()
    with pytest.raises(ShapeError, match="moved or rebound"):
        world["a"].engine.trained(tokens=8, cursor=3)


@pytest.mark.parametrize("tokens", [5, np.int64(5), torch.tensor(5)])
def test_tokens_may_be_any_kind_of_integer(tokens):
    assert _whole_tokens(tokens) == 5
    assert type(_whole_tokens(tokens)) is int


@pytest.mark.parametrize("tokens", [5.0, -1, "5", None])
def test_tokens_that_do_not_count_are_refused(tokens):
    with pytest.raises(ConfigError, match="whole number"):
        _whole_tokens(tokens)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_checkpoint_fits_the_model_whether_it_is_compiled_or_not():
    plain, compiled = Toy(0), torch.compile(Toy(1))
    saved = Training(plain, torch.optim.AdamW(plain.parameters()), Batches(0)).state_dict()
    Training(compiled, torch.optim.AdamW(compiled.parameters()), Batches(0)).load_state_dict(saved)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(compiled.state_dict()[f"_orig_mod.{name}"], tensor)


def test_a_checkpoint_of_another_optimizer_is_an_error_that_says_so():
    model = Toy()
    saved = Training(model, torch.optim.AdamW(model.parameters()), None).state_dict()
    halves = [{"params": [p]} for p in model.parameters()]
    with pytest.raises(CheckpointError, match="does not fit this model or optimizer"):
        Training(model, torch.optim.AdamW(halves), None).load_state_dict(saved)


def test_going_back_to_an_earlier_state_brings_the_earlier_references_back():
    model = nn.Linear(3, 3)
    cut = cut_model(model, num_fragments=1, peers=("b",), embedding_codec="int4")
    before, hashed = cut.slow.state_dict(), cut.slow.reference_hash("b", 0)
    cut.slow.clear("b", 0)
    assert cut.slow.reference_hash("b", 0) != hashed
    cut.slow.load_state_dict(before)
    assert cut.slow.reference_hash("b", 0) == hashed


@pytest.mark.parametrize("name", ["gpu", "cuda:17"])
def test_a_device_that_is_not_there_is_a_mistake_in_the_config(name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"island\.device"):
        pick_device(name)
