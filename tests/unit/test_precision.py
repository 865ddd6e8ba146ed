from __future__ import annotations

import pytest
import torch

from isthmus.errors import ConfigError
from isthmus.island import PRECISIONS, Precision, native_bf16
from isthmus.model import build_model, next_token_loss, preset
from isthmus.model.experts import Router

BATCH = torch.randint(0, 256, (2, 65), generator=torch.Generator().manual_seed(0))


def _loss_in(name: str, model: torch.nn.Module) -> torch.Tensor:
    return next_token_loss(Precision(name)(model, BATCH[:, :-1]), BATCH[:, 1:])


@pytest.mark.parametrize("name", ["bf16-autocast", "bf16-weights"])
def test_a_lower_precision_is_close_to_fp32_but_not_the_same(name: str) -> None:
    exact, model = build_model(preset("micro"), seed=0), build_model(preset("micro"), seed=0)
    wanted, got = _loss_in("fp32", exact), _loss_in(name, model)
    assert got.item() == pytest.approx(wanted.item(), rel=5e-3)
    assert got.item() != wanted.item()
    wanted.backward()
    got.backward()
    assert all(parameter.grad.dtype == parameter.dtype == torch.float32 for parameter in model.parameters())
    one, two = (torch.cat([p.grad.flatten() for p in which.parameters()]) for which in (exact, model))
    assert torch.cosine_similarity(one, two, dim=0) > 0.95


def test_bf16_weights_computes_what_a_model_of_rounded_weights_does() -> None:
    model, rounded = build_model(preset("micro"), seed=0), build_model(preset("micro"), seed=0)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    before = [parameter.clone() for parameter in model.parameters()]
    mine, theirs = _loss_in("bf16-weights", model), _loss_in("fp32", rounded)
    assert mine.equal(theirs)
    mine.backward()
    theirs.backward()
    for one, two, old in zip(model.parameters(), rounded.parameters(), before, strict=True):
        assert one.grad.equal(two.grad)
        assert one.equal(old)


@pytest.mark.parametrize("name", PRECISIONS)
def test_routers_balance_themselves_in_every_precision(name: str) -> None:
    model = build_model(preset("micro"), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    _loss_in(name, model).backward()
    optimizer.step()
    _loss_in(name, model)
    routers = [module for module in model.modules() if isinstance(module, Router)]
    assert all(router.bias.any() and router.load.sum() == 128 for router in routers)


def test_any_module_will_do() -> None:
    linear = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    assert Precision("fp32")(linear, x).equal(linear(x))
    assert Precision("bf16-autocast")(linear, x).dtype == torch.bfloat16
    assert Precision("bf16-weights")(linear, x).dtype == torch.float32


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fp32, bf16-autocast, bf16-weights"):
        Precision("fp8")


def test_native_bf16_is_a_plain_answer() -> None:
    assert native_bf16(torch.device("cpu")) in (True, False)
    assert native_bf16() in (True, False)
