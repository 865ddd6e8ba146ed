"""The parts of a decoder layer that every token passes: norm, rotary attention, SwiGLU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.model.config import ModelConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension with a gain, computed in fp32 (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` of shape (..., width); the result has its dtype."""
        weight = self.weight.float()
        if x.device.type == "cpu":
            normed: Tensor = _HostRMSNorm.apply(x.float(), weight, self.eps)  # type: ignore[no-untyped-call]
        else:
            normed = F.rms_norm(x.float(), weight.shape, weight, self.eps)
        return normed.to(x.dtype)


class _HostRMSNorm(torch.autograd.Function):
    """RMSNorm for the CPU, where autograd's own decomposition costs twice as much, forward and backward together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        out: Tensor = normed * weight
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        product = grad * normed
        weight_grad = product.flatten(0, -2).sum(0)
        along = torch.mv(product.flatten(0, -2), weight).view(scale.shape).div_(-normed.shape[-1])
        return (grad * weight).addcmul_(normed, along).mul_(scale), weight_grad, None


def rotary_turns(seq_len: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Unit complex numbers of shape (seq_len, 1, head_dim / 2) by which positions turn pairs (RoPE, Su et al. 2021)."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), theta**-exponents)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each adjacent pair of fp32 ``x`` (batch, seq_len, heads, head_dim) by its position's ``turns``."""
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and normed queries and keys (QK-norm, Henry et al. 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        query_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.is_grouped = config.num_kv_heads != config.num_heads
        self.query = nn.Linear(config.d_model, query_width, bias=False)
        self.key = nn.Linear(config.d_model, kv_width, bias=False)
        self.value = nn.Linear(config.d_model, kv_width, bias=False)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.out = nn.Linear(query_width, config.d_model, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Mix ``x`` (batch, seq_len, d_model) over positions up to each one's own."""
        split = (*x.shape[:-1], -1, self.head_dim)
        query = rotate(self.query_norm(self.query(x).float().view(split)), turns)
        key = rotate(self.key_norm(self.key(x).float().view(split)), turns)
        value = self.value(x).view(split)
        dtype = product_dtype(value)
        with torch.autocast(x.device.type, enabled=False):
            mixed = F.scaled_dot_product_attention(
                query.to(dtype).transpose(1, 2),
                key.to(dtype).transpose(1, 2),
                value.to(dtype).transpose(1, 2),
                is_causal=True,
                enable_gqa=self.is_grouped,
            )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2).to(value.dtype))
        return out


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype for attention and expert products of ``x``.

    On the CPU it is fp32, under autocast too: torch's kernels for a bf16 attention backward, and for products of ever
    new heights, take several times as long as fp32 there, whatever the hardware multiplies.
    """
    device_type = x.device.type
    if device_type == "cpu":
        return torch.float32
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of the two halves of the last dimension (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class SwiGLU(nn.Module):
    """A gated feed-forward of ``hidden`` units; gate and up are the two halves of one matrix."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to ``x`` of shape (..., d_model)."""
        out: Tensor = self.down(swiglu(self.gate_up(x)))
        return out
