from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from isthmus.errors import ShapeError
from isthmus.model import ModelConfig, build_model, loss, next_token_loss, num_parameters, preset
from isthmus.model.layers import RMSNorm, rotary_turns, rotate

CONFIG = ModelConfig(
    d_model=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=4,
    expert_hidden=8,
    max_seq_len=32,
    tie_embeddings=False,
)
BOTH_KINDS = pytest.mark.parametrize("config", [CONFIG, CONFIG.dense_twin()], ids=["sparse", "dense"])


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))


@BOTH_KINDS
def test_the_future_does_not_change_the_past(config: ModelConfig) -> None:
    model = build_model(config, seed=0).eval()
    tokens = _tokens(2, 20)
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :12], before[:, :12])
    assert not torch.allclose(after[:, 12:], before[:, 12:])


@BOTH_KINDS
def test_every_parameter_gets_a_gradient(config: ModelConfig) -> None:
    model = build_model(config, seed=0)
    loss(model, _tokens(4, 33)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@BOTH_KINDS
def test_a_few_steps_on_one_batch_learn_it(config: ModelConfig) -> None:
    model = build_model(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = _tokens(2, 17)
    first = loss(model, batch).item()
    for _ in range(20):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
    assert value.item() < first / 2


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, same, other = (build_model(CONFIG, seed=seed).state_dict() for seed in (7, 7, 8))
    assert torch.rand(3).equal(expected)
    assert all(value.equal(same[name]) for name, value in one.items())
    assert not one["head.weight"].equal(other["head.weight"])


def test_a_fresh_model_knows_next_to_nothing() -> None:
    batch = _tokens(4, 65)
    for name in ("micro", "nano", "dense"):
        assert loss(build_model(preset(name), seed=0), batch).item() == pytest.approx(math.log(256), abs=0.7)


def test_tied_embeddings_are_one_parameter() -> None:
    model = build_model(preset("micro"), seed=0)
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters(preset("micro")).total


def test_a_sequence_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ShapeError, match="got 33"):
        build_model(CONFIG, seed=0)(_tokens(1, 33))


def test_the_loss_is_the_mean_cross_entropy_in_nats() -> None:
    assert next_token_loss(torch.zeros(2, 3, 256), _tokens(2, 3)).item() == pytest.approx(math.log(256))


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 4, 16)])
def test_the_host_norm_equals_torchs_own(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(16, 1e-6)
    x, upstream = (torch.randn(shape, generator=generator) for _ in range(2))
    with torch.no_grad():
        norm.weight.copy_(torch.randn(16, generator=generator))
    x.requires_grad_()
    mine, theirs = norm(x), F.rms_norm(x, (16,), norm.weight, 1e-6)
    torch.testing.assert_close(mine, theirs)
    inputs = (x, norm.weight)
    for got, wanted in zip(
        torch.autograd.grad(mine, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_rotary_scores_depend_on_distance_alone() -> None:
    turns = rotary_turns(10, 8, 10_000.0, torch.device("cpu"))
    query, key = (torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    queries, keys = (rotate(vector.expand(1, 10, 1, 8), turns)[0, :, 0] for vector in (query, key))
    scores = queries @ keys.T
    for distance in range(-9, 10):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    torch.testing.assert_close(scores[0, 0], query @ key)
    assert not torch.allclose(scores[0, 0], scores[0, 5])
