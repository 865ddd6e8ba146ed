"""Optimizers by name. Another one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from isthmus.errors import ConfigError
from isthmus.optim.adamw import build_adamw
from isthmus.optim.groups import OptimizerSettings

OPTIMIZERS: dict[str, Callable[[nn.Module, OptimizerSettings], torch.optim.Optimizer]] = {
    "adamw": build_adamw,
}


def build_optimizer(
    model: nn.Module,
    name: str,
    *,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """Build the optimizer ``name`` over a model's trainable parameters.

    Args:
        model: The model; its parameters are already on their device.
        name: One of ``OPTIMIZERS``.
        learning_rate: Base learning rate.
        weight_decay: Decoupled decay of matrices; norms, biases and embeddings never decay.
        betas: Decay of the running mean and mean square of gradients.
        eps: Added to the root of the mean square.

    Raises:
        ConfigError: There is no optimizer of that name.
    """
    if name not in OPTIMIZERS:
        raise ConfigError("unknown optimizer", got=repr(name), wanted=f"one of {', '.join(OPTIMIZERS)}")
    settings = OptimizerSettings(learning_rate=learning_rate, weight_decay=weight_decay, betas=betas, eps=eps)
    return OPTIMIZERS[name](model, settings)
