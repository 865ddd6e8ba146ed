"""AdamW on parameters of any shape, with fp32 state, for what is no matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

LARGEST = 1e15
"""Gradients are scaled down to it, so that no square or sum of squares overflows."""


def adamw_shapes(parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """The tensors of a parameter's state, by name."""
    return {"step": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}


def adamw_state(parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter before its first step."""
    return {
        name: torch.zeros(shape, dtype=torch.float32, device=parameter.device)
        for name, shape in adamw_shapes(parameter).items()
    }


@torch.no_grad()
def adamw_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One step of parameters, in place.

    A parameter that is not fp32, or does not lie end to end in memory as torch's kernel wants it, takes its change from
    a matrix of zeros that took the step.
    """
    if not parameters:
        return
    gradients = [each.float().contiguous() for each in gradients]
    peaks = torch._foreach_norm(gradients, torch.inf)
    trained = [
        each.detach() if _is_plain(each) else torch.zeros_like(g) for each, g in zip(parameters, gradients, strict=True)
    ]
    adamw(
        trained,
        list(torch._foreach_mul(gradients, [(LARGEST / peak).clamp_(max=1.0) for peak in peaks])),
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
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
    for parameter, change in zip(parameters, trained, strict=True):
        if not _is_plain(parameter):
            wide = parameter.to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            parameter.copy_(wide.mul_(1 - lr * weight_decay).add_(change))


def _is_plain(parameter: Tensor) -> bool:
    return parameter.dtype == torch.float32 and parameter.is_contiguous()
