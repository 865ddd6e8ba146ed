"""Muon (Jordan et al. 2024) as torch has it, each matrix of a stack by itself; AdamW for everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.optim.groups import OptimizerSettings, shampoo_groups
from isthmus.optim.settings import require_whole, split


def build_muon(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Muon for a model, its steps scaled to AdamW's (Liu et al. 2025, arXiv:2502.16982)."""
    return Muon(shampoo_groups(model, settings.weight_decay), lr=settings.learning_rate)


_Inner = list[tuple[torch.optim.Optimizer, list[tuple[Tensor, list[Tensor]]]]]
"""A group's optimizers, each with the parameters whose matrices it trains apart."""


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` over the matrices of parameters (m, n) and (count, m, n), ``torch.optim.AdamW`` elsewhere.

    Args:
        params: As any optimizer's; a group with ``matrices=False`` takes AdamW.
        lr: Learning rate of both.
        weight_decay: Decoupled, of both.
    """

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1) -> None:
        self._inner: list[_Inner] = []
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "matrices": True})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer`` does."""
        super().add_param_group(param_group)
        self._inner.append(_build(self.param_groups[-1]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, inner in zip(self.param_groups, self._inner, strict=True):
            for optimizer, parts in inner:
                optimizer.param_groups[0].update(lr=group["lr"], weight_decay=group["weight_decay"])
                for parameter, matrices in parts:
                    _share_gradient(parameter, matrices)
                optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of the optimizers inside, beside the groups."""
        inner = [optimizer.state_dict() for group in self._inner for optimizer, _ in group]
        return {**super().state_dict(), "inner": inner}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave."""
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self._load(state_dict["inner"])

    def __getstate__(self) -> dict[str, Any]:
        inner = [optimizer.state_dict() for group in self._inner for optimizer, _ in group]
        return {**super().__getstate__(), "inner": inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "inner"})
        if "inner" in state:  # a copy, not a loaded state
            self._inner = [_build(group) for group in self.param_groups]
            self._load(state["inner"])

    def _load(self, states: Sequence[dict[str, Any]]) -> None:
        optimizers = [optimizer for group in self._inner for optimizer, _ in group]
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def _build(group: dict[str, Any]) -> _Inner:
    as_matrices, rest = split(group)
    require_whole(as_matrices, "Muon")
    inner: _Inner = []
    if as_matrices:
        parts = [(p, [*p.detach()] if p.ndim == 3 else [p.detach()]) for p in as_matrices]
        every = [matrix for _, matrices in parts for matrix in matrices]
        inner.append((torch.optim.Muon(every, lr=group["lr"], adjust_lr_fn="match_rms_adamw"), parts))
    if rest:
        inner.append((torch.optim.AdamW(rest, lr=group["lr"], betas=(0.9, 0.95)), []))
    return inner


def _share_gradient(parameter: Tensor, matrices: list[Tensor]) -> None:
    gradient = parameter.grad
    parts = [None] * len(matrices) if gradient is None else [*gradient] if gradient.ndim == 3 else [gradient]
    for matrix, part in zip(matrices, parts, strict=True):
        matrix.grad = part
