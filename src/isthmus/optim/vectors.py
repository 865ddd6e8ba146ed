"""AdamW on parameters of any shape, with fp32 state, for what is no matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

_LARGEST_SQUARE = 1e38


def adamw_state(parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter before its first step."""
    return {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros(parameter.shape, device=parameter.device),
        "exp_avg_sq": torch.zeros(parameter.shape, device=parameter.device),
    }


@torch.no_grad()
def adamw_step(
    parameters: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One step of parameters that have gradients, in place.

    A mean square that overflows is brought back, so that later gradients still count.
    """
    if not parameters:
        return
    masters = [parameter.detach().float() for parameter in parameters]
    exp_avg_sqs = [state["exp_avg_sq"] for state in states]
    adamw(
        masters,
        [parameter.grad.float() for parameter in parameters if parameter.grad is not None],
        [state["exp_avg"] for state in states],
        exp_avg_sqs,
        [],
        [state["step"] for state in states],
        fused=True,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )
    torch._foreach_clamp_max_(exp_avg_sqs, _LARGEST_SQUARE)
    for parameter, master in zip(parameters, masters, strict=True):
        if parameter.dtype != torch.float32:
            parameter.copy_(master)
