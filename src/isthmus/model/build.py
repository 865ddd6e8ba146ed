"""Models from a config and a seed, and their sizes without their memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.model.config import ModelConfig
from isthmus.model.decoder import Decoder
from isthmus.model.experts import Experts
from isthmus.model.layers import RMSNorm


@dataclass(frozen=True)
class Counts:
    """Parameters of a model: all, those that a token meets, and those of routed experts, all and active."""

    total: int
    active: int
    expert_total: int
    expert_active: int


def build_model(config: ModelConfig, seed: int) -> Decoder:
    """A fresh model on the CPU; the same weights, bit for bit, on any machine. The global RNG is left alone.

    Weights are uniform with standard deviation ``1 / sqrt(fan_in)``; the projections that end in the residual stream
    are smaller by ``1 / sqrt(2 * num_layers)``, so that its variance does not grow with depth (GPT-2).
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = Decoder(config)
    residual_scale = 1 / math.sqrt(2 * config.num_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            owner, _, kind = name.rpartition(".")
            if kind == "weight" and isinstance(model.get_submodule(owner), RMSNorm):
                continue
            writes_residual = name.endswith(("attention.out.weight", "down.weight", "experts.down"))
            std = (residual_scale if writes_residual else 1.0) / math.sqrt(_fan_in(name, parameter))
            _fill_uniform(parameter, std, generator)
    return model


def num_parameters(config: ModelConfig) -> Counts:
    """Count a model's parameters on the meta device: nothing is allocated, whatever the size."""
    with torch.device("meta"):
        model = Decoder(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    stacks = [module for module in model.modules() if isinstance(module, Experts)]
    expert_total = sum(parameter.numel() for stack in stacks for parameter in stack.parameters())
    expert_active = expert_total * config.top_k // max(config.num_experts, 1)
    return Counts(total, total - expert_total + expert_active, expert_total, expert_active)


def _fan_in(name: str, parameter: Tensor) -> int:
    """Inputs that one output sums over. A stack of down projections is stored input by output."""
    return parameter.shape[-2] if name.endswith("experts.down") else parameter.shape[-1]


def _fill_uniform(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Uniform values from 24 random bits each: unlike normal ones, they do not depend on the CPU's vector maths."""
    parameter.copy_(torch.rand(parameter.shape, generator=generator)).sub_(0.5).mul_(std * math.sqrt(12))
