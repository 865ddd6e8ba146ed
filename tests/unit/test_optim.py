from __future__ import annotations

import copy

import pytest
import torch

from isthmus.errors import ConfigError
from isthmus.model import Decoder, build_model, loss, preset
from isthmus.optim import OPTIMIZERS, Shampoo, build_optimizer, state_bytes
from isthmus.optim.muon import Muon


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_matrices_decay_and_embeddings_do_not(name: str) -> None:
    model = build_model(preset("micro"), seed=0)
    optimizer = build_optimizer(model, name, learning_rate=1e-3, weight_decay=0.2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, still = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert decaying | still == set(names.values())
    assert still == {name for name in names.values() if "norm" in name or name == "embedding.weight"}


def test_settings_reach_the_optimizers() -> None:
    model = torch.nn.Linear(2, 2)
    adamw = build_optimizer(model, "adamw", learning_rate=3e-4, weight_decay=0.0)
    assert isinstance(adamw, torch.optim.AdamW)
    assert [(group["lr"], group["betas"]) for group in adamw.param_groups] == [(3e-4, (0.9, 0.95))] * 2
    shampoo = build_optimizer(model, "shampoo", learning_rate=3e-4, refresh_steps=7)
    assert isinstance(shampoo, Shampoo) and shampoo.refresh_steps == 7
    with pytest.raises(ConfigError, match="refresh_steps"):
        build_optimizer(model, "shampoo", learning_rate=3e-4, refresh_steps=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_are_left_out(name: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    optimizer = build_optimizer(model, name, learning_rate=1e-3)
    assert [parameter for group in optimizer.param_groups for parameter in group["params"]] == [model.bias]


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    for make in (lambda: build_optimizer(torch.nn.Linear(2, 2), "adamwx", learning_rate=1e-3),
                 lambda: state_bytes(torch.nn.Linear(2, 2), "adamwx")):  # fmt: skip
        with pytest.raises(ConfigError, match="wanted one of shampoo, adamw, muon"):
            make()


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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_takes_the_bytes_that_a_plan_says(name: str) -> None:
    model = build_model(preset("micro"), seed=0)
    optimizer = build_optimizer(model, name, learning_rate=1e-2)
    loss(model, torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(0))).backward()
    optimizer.step()
    inner = [each for pairs in optimizer._inner for each, _ in pairs] if isinstance(optimizer, Muon) else [optimizer]
    states = [state for each in inner for state in each.state.values()]
    held = sum(tensor.nbytes for state in states for key, tensor in state.items() if key not in ("step", "rotated"))
    with torch.device("meta"):
        assert state_bytes(Decoder(preset("micro")), name) == held


def test_muon_moves_every_expert_as_a_matrix_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.nn.Parameter(torch.randn(3, 6, 4, generator=generator))
    alone = [torch.nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    together = Muon([stack], lr=0.1)
    apart = torch.optim.Muon(alone, lr=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        stack.grad = torch.randn(3, 6, 4, generator=generator)
        for matrix, gradient in zip(alone, stack.grad, strict=True):
            matrix.grad = gradient.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(stack.detach(), torch.stack([matrix.detach() for matrix in alone]))
