from __future__ import annotations

import copy

import pytest
import torch

from isthmus.errors import ConfigError
from isthmus.model import build_model, loss, preset
from isthmus.optim import OPTIMIZERS, build_optimizer


def test_only_matrices_decay_and_embeddings_do_not() -> None:
    model = build_model(preset("micro"), seed=0)
    optimizer = build_optimizer(model, "adamw", learning_rate=1e-3, weight_decay=0.2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, still = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert decaying | still == set(names.values())
    assert still == {name for name in names.values() if "norm" in name or name == "embedding.weight"}


def test_settings_reach_torchs_adamw() -> None:
    optimizer = build_optimizer(
        torch.nn.Linear(2, 2), "adamw", learning_rate=3e-4, weight_decay=0.0, betas=(0.8, 0.9), eps=1e-6
    )
    assert isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.9), 1e-6)


def test_frozen_parameters_are_left_out() -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    optimizer = build_optimizer(model, "adamw", learning_rate=1e-3)
    assert [parameter for group in optimizer.param_groups for parameter in group["params"]] == [model.bias]


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="wanted one of adamw"):
        build_optimizer(torch.nn.Linear(2, 2), "adamwx", learning_rate=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_optimizer_goes_on_as_if_never_stopped(name: str) -> None:
    model, twin = (build_model(preset("micro"), seed=0) for _ in range(2))
    batch = torch.randint(0, 256, (1, 33), generator=torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, name, learning_rate=1e-2)
    for resumed in (False, True):
        if resumed:
            twin.load_state_dict(model.state_dict())
            second = build_optimizer(twin, name, learning_rate=1e-2)
            second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            loss(twin, batch).backward()
            second.step()
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    assert all(one.equal(two) for one, two in zip(model.parameters(), twin.parameters(), strict=True))
