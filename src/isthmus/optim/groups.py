"""What every optimizer here is told, and which parameters decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Settings that optimizers share.

    Attributes:
        learning_rate: Base learning rate; a schedule may scale it.
        weight_decay: Decoupled decay of matrices, per step and unit of learning rate.
        betas: Decay of the running mean and mean square of gradients.
        eps: Added to the root of the mean square.
    """

    learning_rate: float
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Torch's parameter groups: matrices, which decay; norms, biases and embeddings (tied heads too), which do not.

    Frozen parameters are left out, a shared parameter is listed once.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = {id(parameter) for parameter in trained if parameter.ndim >= 2 and id(parameter) not in tables}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) in decays], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decays], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
