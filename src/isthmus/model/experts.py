"""A sparse feed-forward: a sigmoid router that balances itself, and experts of which each token sees a few.

Routing is without loss: no token is dropped, no capacity, no auxiliary loss. Following Wang et al. 2024
(arXiv:2408.15664) a bias per expert is added to the scores for the choice alone; after each training step it moves a
fixed distance up for an expert that got fewer tokens than the mean, down for one that got more.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.model.config import ModelConfig
from isthmus.model.grouped import grouped_matmul
from isthmus.model.layers import SwiGLU, product_dtype, swiglu


class Router(nn.Module):
    """Scores every expert for every token, chooses ``top_k``, and keeps the choice balanced.

    The router tells by itself that a training step has passed: its weight differs from the one of the forward before.
    Then, and before it routes anything, it moves the bias by the loads counted since. So any training loop will do:
    micro-batches of one step meet one bias and add up to one move, and a forward repeated by activation checkpointing
    routes as the first did and doubles every count, which leaves the signs alone. Where several processes share a
    step, summing ``load`` over them between a backward and the next forward gives all of them the same move.

    Buffers:
        bias: (num_experts,) float32, added for the choice alone.
        load: (num_experts,) int64, tokens per expert since the bias last moved.
        seen: (num_experts, d_model) int32, the bits of the weight that ``load`` was counted under; not saved, so that
            a restored router holds its restored load for a whole step.
    """

    bias: Tensor
    load: Tensor
    seen: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.balance_rate = config.balance_rate
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.d_model))
        self.register_buffer("bias", torch.zeros(config.num_experts))
        self.register_buffer("load", torch.zeros(config.num_experts, dtype=torch.int64))
        seen = torch.full((config.num_experts, config.d_model), -1, dtype=torch.int32)
        self.register_buffer("seen", seen, persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for ``tokens`` (n, d_model).

        Returns:
            The chosen experts (n, top_k), int64, and their gates (n, top_k), float32: sigmoid scores without the bias.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            weight = self.weight.float()
            scores = torch.sigmoid(F.linear(tokens.float(), weight))
        with torch.no_grad():
            if self.training:
                self._move_bias(weight)
            biased = scores + self.bias
            chosen = biased.argmax(-1, keepdim=True) if self.top_k == 1 else biased.topk(self.top_k).indices
        return chosen, scores.gather(1, chosen)

    def count(self, load: Tensor) -> None:
        """Add the tokens that each expert was just given, (num_experts,)."""
        if self.training:
            self.load.add_(load)

    def _move_bias(self, weight: Tensor) -> None:
        """Move the bias if a step has passed, without asking the device."""
        bits = weight.view(torch.int32)
        stepped = (bits != self.seen).any()
        toward_mean = (self.load.sum() - self.load * len(self.load)).sign()
        self.bias.add_(toward_mean * stepped, alpha=self.balance_rate)
        self.load.mul_(~stepped)
        self.seen.copy_(bits)


class Experts(nn.Module):
    """SwiGLU experts as stacks of matrices, one per expert.

    ``gate_up`` is (experts, 2 * hidden, d_model) and ``down`` (experts, hidden, d_model), so every row is ``d_model``
    long.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape = (config.num_experts, 2 * config.expert_hidden, config.d_model)
        self.gate_up = nn.Parameter(torch.empty(shape))
        self.down = nn.Parameter(torch.empty(config.num_experts, config.expert_hidden, config.d_model))

    def forward(self, rows: Tensor, gates: Tensor, ends: Tensor) -> Tensor:
        """Apply each expert to its rows and scale by the gates.

        Args:
            rows: (n, d_model), sorted by expert.
            gates: (n, 1).
            ends: (experts,) int32: the row after each expert's last.

        Returns:
            (n, d_model), in the order of ``rows``.
        """
        dtype = product_dtype(rows)
        gate_up, down = self.gate_up.to(dtype), self.down.to(dtype)
        hidden = swiglu(grouped_matmul(rows.to(dtype), gate_up.mT, ends)) * gates.to(dtype)
        out: Tensor = grouped_matmul(hidden, down, ends).to(rows.dtype)
        return out


class SparseFeedForward(nn.Module):
    """Routed experts, plus a SwiGLU that sees every token where the config asks for one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared = SwiGLU(config.d_model, config.shared_hidden) if config.shared_hidden else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply to ``x`` (batch, seq_len, d_model); what a token gets depends on that token alone."""
        tokens = x.flatten(0, -2)
        chosen, gates = self.router(tokens)
        by_expert, order = chosen.flatten().sort(stable=True)
        experts = torch.arange(len(self.router.bias), device=x.device)
        ends = torch.searchsorted(by_expert, experts, right=True, out_int32=True)
        self.router.count(torch.diff(ends, prepend=ends.new_zeros(1)))

        back = order.argsort()
        rows = _permute(tokens.repeat_interleave(self.top_k, 0), order, back)
        outputs = self.experts(rows, gates.flatten()[order].unsqueeze(1), ends)
        routed = _permute(outputs, back, order).view(-1, self.top_k, x.shape[-1]).sum(1).view_as(x)
        return routed if self.shared is None else routed + self.shared(x)


def _permute(rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """``rows[order]``, where ``back`` is the inverse of ``order``."""
    permuted: Tensor = _Permute.apply(rows, order, back)  # type: ignore[no-untyped-call]
    return permuted


class _Permute(torch.autograd.Function):
    """Rows in another order; its gradient is the way back, where indexing's own is a slower, unordered sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad.index_select(0, back), None, None
