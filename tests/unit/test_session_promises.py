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


@pytest.mark.parametrize("changed", ["fewer", "settings"])
def test_a_checkpoint_of_another_optimizer_is_an_error_that_says_so(changed: str):
    model = Toy()
    first, *rest = model.parameters()
    apart = [{"params": [first], "weight_decay": 0.5}, {"params": rest}]
    saved = Training(model, torch.optim.AdamW(apart), None).state_dict()
    other = torch.optim.AdamW(rest if changed == "fewer" else model.parameters())
    with pytest.raises(CheckpointError, match="does not fit this model or optimizer"):
        Training(model, other, None).load_state_dict(saved)


def test_an_optimizer_goes_on_in_other_groups_and_another_order():
    model = Toy()
    whole = torch.optim.AdamW(model.parameters(), lr=0.125)
    sum(p.square().sum() for p in model.parameters()).backward()
    whole.step()
    saved = Training(model, whole, None).state_dict()
    apart = torch.optim.AdamW([{"params": [p]} for p in reversed(list(model.parameters()))])
    Training(model, apart, None).load_state_dict(saved)
    assert {group["lr"] for group in apart.param_groups} == {0.125}
    for parameter in model.parameters():
        assert torch.equal(apart.state[parameter]["exp_avg"], whole.state[parameter]["exp_avg"])


def test_masters_go_by_their_parameters_names_and_named_groups_join():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).bfloat16()
    masters = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    apart = torch.optim.AdamW([{"params": [(name, master)]} for name, master in masters.items()], lr=0.1)
    for place, master in enumerate(masters.values()):
        master.grad = torch.full_like(master, 1.0 + place)
    apart.step()
    saved = Training(model, apart, None, masters=masters).state_dict()
    joined = torch.optim.AdamW(reversed(list(masters.items())))
    Training(model, joined, None, masters=masters).load_state_dict(saved)
    for master in masters.values():
        assert torch.equal(joined.state[master]["exp_avg"], apart.state[master]["exp_avg"])
    assert joined.param_groups[0]["param_names"] == list(reversed(masters))


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
