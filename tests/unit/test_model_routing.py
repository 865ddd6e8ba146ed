from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from isthmus.model import Decoder, ModelConfig, build_model, loss
from isthmus.model.experts import Experts, Router, SparseFeedForward
from isthmus.model.grouped import grouped_matmul, has_fused_kernel, split_matmul

CONFIG = ModelConfig(
    d_model=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=8,
    top_k=2,
    expert_hidden=8,
    shared_hidden=8,
    max_seq_len=32,
)


def _sparse(config: ModelConfig = CONFIG) -> SparseFeedForward:
    block = build_model(config, seed=1).layers[0]
    assert isinstance(block.feed_forward, SparseFeedForward)
    return block.feed_forward


def _routers(model: Decoder) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


def _tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


def _rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_are_chosen_by_biased_score_and_gated_without_the_bias(top_k: int) -> None:
    router = _sparse(dataclasses.replace(CONFIG, top_k=top_k)).router.eval()
    router.bias[3] = 10.0
    tokens = _rows(50, 16)
    chosen, gates = router(tokens)
    scores = torch.sigmoid(tokens @ router.weight.T)
    assert chosen.sort().values.equal((scores + router.bias).topk(top_k).indices.sort().values)
    assert (chosen == 3).any(1).all()
    torch.testing.assert_close(gates, scores.gather(1, chosen))
    assert gates.max() < 1


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("shared_hidden", [0, 8])
def test_sorted_batches_equal_a_loop_over_tokens(top_k: int, shared_hidden: int) -> None:
    layer = _sparse(dataclasses.replace(CONFIG, top_k=top_k, shared_hidden=shared_hidden))
    x = _rows(3, 7, 16).requires_grad_()
    chosen, gates = layer.router(x.flatten(0, 1))
    expected = []
    for token, experts, weights in zip(x.flatten(0, 1), chosen, gates, strict=True):
        out = token.new_zeros(16) if layer.shared is None else layer.shared(token)
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            gate, up = (layer.experts.gate_up[expert] @ token).chunk(2)
            out = out + weight * ((F.silu(gate) * up) @ layer.experts.down[expert])
        expected.append(out)
    wanted = torch.stack(expected).view_as(x)
    got = layer(x)
    torch.testing.assert_close(got, wanted)
    inputs = (x, *layer.parameters())
    upstream = _rows(3, 7, 16, seed=1)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(wanted, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_product_equals_one_product_per_expert_also_for_experts_without_tokens(dtype: torch.dtype) -> None:
    assert has_fused_kernel("cpu", dtype) == hasattr(F, "grouped_mm")
    rows = _rows(20, 16).to(dtype).requires_grad_()
    weights = _rows(4, 16, 8).to(dtype).requires_grad_()
    ends = torch.tensor([7, 7, 19, 20], dtype=torch.int32)
    fused, split = grouped_matmul(rows, weights, ends), split_matmul(rows, weights, ends)
    torch.testing.assert_close(fused, split)
    upstream = _rows(20, 8).to(dtype)
    for mine, theirs in zip(
        torch.autograd.grad(fused, (rows, weights), upstream),
        torch.autograd.grad(split, (rows, weights), upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_the_fused_product_is_found_while_evaluating_too() -> None:
    has_fused_kernel.cache_clear()
    with torch.inference_mode():
        assert has_fused_kernel("cpu", torch.float32) == hasattr(F, "grouped_mm")


def test_odd_widths_that_the_fused_product_refuses_are_multiplied_all_the_same() -> None:
    rows, weights = _rows(6, 5), _rows(2, 5, 3)
    got = grouped_matmul(rows, weights, torch.tensor([2, 6], dtype=torch.int32))
    torch.testing.assert_close(got, torch.cat([rows[:2] @ weights[0], rows[2:] @ weights[1]]))


def test_what_a_token_gets_does_not_depend_on_the_order_of_the_others() -> None:
    layer = _sparse().eval()
    x = _rows(1, 40, 16)
    shuffled = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(layer(x[:, shuffled]), layer(x)[:, shuffled])


def test_the_same_batch_gives_the_same_bits_twice() -> None:
    batch = _tokens(2, 17)
    losses, gradients = [], []
    for _ in range(2):
        model = build_model(CONFIG, seed=4)
        value = loss(model, batch)
        value.backward()
        losses.append(value)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert losses[0].equal(losses[1])
    assert all(one.equal(two) for one, two in zip(*gradients, strict=True))


def _step(model: Decoder, *batches: torch.Tensor) -> None:
    """One training step of a loop that has never heard of routers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        (loss(model, batch) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_bias_moves_one_notch_toward_balance_once_a_step_has_passed() -> None:
    model = build_model(CONFIG, seed=0)
    _step(model, _tokens(2, 17))
    loads = [router.load.clone() for router in _routers(model)]
    assert all(router.bias.eq(0).all() for router in _routers(model))
    assert all(int(load.sum()) == 2 * 16 * CONFIG.top_k for load in loads)
    loss(model, _tokens(2, 17, seed=1))
    for router, load in zip(_routers(model), loads, strict=True):
        mean = load.sum() / len(load)
        assert router.bias.equal(CONFIG.balance_rate * torch.sign(mean - load))


def test_the_bias_evens_out_a_lopsided_router() -> None:
    config = dataclasses.replace(CONFIG, top_k=1, balance_rate=0.02)
    layer = _sparse(config)
    tokens = _rows(1, 256, 16) + 1.0
    with torch.no_grad():
        layer.router.weight[0] += 0.1
        shares = []
        for _ in range(100):
            layer(tokens)
            shares.append(float(layer.router.load.max() / layer.router.load.sum()))
            layer.router.weight.mul_(1 + 1e-6)
    assert shares[0] > 0.4
    assert shares[-1] < 0.25


def test_micro_batches_of_one_step_move_the_bias_as_one_batch_does() -> None:
    batch = _tokens(4, 17)
    whole, pieces = build_model(CONFIG, seed=0), build_model(CONFIG, seed=0)
    _step(whole, batch)
    _step(pieces, batch[:1], batch[1:2], batch[2:])
    for model in (whole, pieces):
        loss(model, batch)
    for one, other in zip(_routers(whole), _routers(pieces), strict=True):
        assert one.bias.any()
        assert one.bias.equal(other.bias)


def test_a_forward_repeated_by_activation_checkpointing_moves_the_bias_as_one_does() -> None:
    plain, repeated = build_model(CONFIG, seed=0), build_model(CONFIG, seed=0)
    for block in repeated.layers:
        inner = block.forward
        block.forward = lambda *args, inner=inner: checkpoint(inner, *args, use_reentrant=False)
    for seed in range(3):
        for model in (plain, repeated):
            _step(model, _tokens(2, 17, seed=seed))
    for one, other in zip(_routers(plain), _routers(repeated), strict=True):
        assert other.load.equal(2 * one.load)
        assert one.bias.any()
        assert one.bias.equal(other.bias)


def test_evaluation_neither_counts_nor_moves() -> None:
    model = build_model(CONFIG, seed=0)
    _step(model, _tokens(2, 17))
    before = copy.deepcopy(dict(model.named_buffers()))
    model.eval()(_tokens(2, 16))
    assert all(buffer.equal(before[name]) for name, buffer in model.named_buffers())


def test_a_restored_model_moves_its_biases_as_the_one_that_never_stopped() -> None:
    model = build_model(CONFIG, seed=0)
    _step(model, _tokens(2, 17))
    restored = build_model(CONFIG, seed=9)
    restored.load_state_dict(model.state_dict())
    for going in (model, restored):
        _step(going, _tokens(2, 17, seed=1))
        loss(going, _tokens(2, 17, seed=2))
    for one, other in zip(_routers(model), _routers(restored), strict=True):
        assert one.bias.any()
        assert one.bias.equal(other.bias)
        assert one.load.equal(other.load)


def test_routing_stays_in_fp32_under_autocast() -> None:
    layer = _sparse().eval()
    tokens = _rows(30, 16)
    chosen, gates = layer.router(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_chosen, cast_gates = layer.router(tokens)
    assert cast_chosen.equal(chosen)
    assert cast_gates.equal(gates)


def test_expert_weights_are_stacks_of_one_matrix_per_expert() -> None:
    experts = Experts(CONFIG)
    assert experts.gate_up.shape == (8, 16, 16)
    assert experts.down.shape == (8, 8, 16)
