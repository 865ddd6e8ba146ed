"""Optimizers by name. Another one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from isthmus.errors import ConfigError
from isthmus.optim.adamw import build_adamw
from isthmus.optim.collectives import Collectives
from isthmus.optim.groups import OptimizerSettings, shampoo_groups
from isthmus.optim.muon import build_muon
from isthmus.optim.shampoo import Shampoo


def _build_shampoo(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    groups = shampoo_groups(model, settings.weight_decay)
    return Shampoo(
        groups, lr=settings.learning_rate, refresh_steps=settings.refresh_steps, collectives=settings.collectives
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, OptimizerSettings], torch.optim.Optimizer]] = {
    "shampoo": _build_shampoo,
    "adamw": build_adamw,
    "muon": build_muon,
}


def require_known(name: str) -> None:
    """Refuse a name that no optimizer has.

    Raises:
        ConfigError: It is one.
    """
    if name not in OPTIMIZERS:
        raise ConfigError("unknown optimizer", got=repr(name), wanted=f"one of {', '.join(OPTIMIZERS)}")


def build_optimizer(
    model: nn.Module,
    name: str,
    *,
    learning_rate: float,
    weight_decay: float = 0.1,
    refresh_steps: int = 10,
    collectives: Collectives | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer ``name`` over a model's trainable parameters, which are already on their device.

    Args:
        model: The model.
        name: One of ``OPTIMIZERS``.
        learning_rate: Base learning rate.
        weight_decay: Decoupled decay of matrices; norms, biases and embeddings never decay.
        refresh_steps: Steps between two refreshes of a preconditioner, where the optimizer has one.
        collectives: The ranks that train the model together, for an optimizer whose work they divide.

    Raises:
        ConfigError: There is no optimizer of that name, or a setting is out of its range.
    """
    require_known(name)
    settings = OptimizerSettings(
        learning_rate=learning_rate, weight_decay=weight_decay, refresh_steps=refresh_steps, collectives=collectives
    )
    return OPTIMIZERS[name](model, settings)
