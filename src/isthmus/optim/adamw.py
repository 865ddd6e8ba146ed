"""AdamW (Loshchilov & Hutter 2019) as torch has it."""

from __future__ import annotations

import torch
from torch import nn

from isthmus.optim.groups import OptimizerSettings, decay_groups


def build_adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """AdamW in torch's fused form, one pass over memory per tensor."""
    return torch.optim.AdamW(
        decay_groups(model, settings.weight_decay), lr=settings.learning_rate, betas=(0.9, 0.95), fused=True
    )
