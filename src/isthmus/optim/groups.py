"""What every optimizer here is told, and which parameters are what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isthmus.optim.collectives import Collectives


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Settings that optimizers share.

    Attributes:
        learning_rate: Base learning rate; a schedule may scale it.
        weight_decay: Decoupled decay of matrices, per step and unit of learning rate.
        refresh_steps: Steps between two refreshes of a preconditioner, where the optimizer has one.
        collectives: The ranks that train the model together, for an optimizer whose work they divide.
    """

    learning_rate: float
    weight_decay: float = 0.1
    refresh_steps: int = 10
    collectives: Collectives | None = None


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Torch's parameter groups: matrices, which decay; norms, biases and embeddings (tied heads too), which do not.

    Frozen parameters are left out, a shared parameter is listed once.
    """
    matrices, heads, rest = _sorted(model)
    groups = {"params": [*matrices, *heads], "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}
    return [part for group in _filled(*groups) for part in _by_mesh(group)]


def shampoo_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for ``Shampoo``: as for any optimizer, but that embeddings, heads and convolutions are no matrices to it.

    A head is a linear layer with as many outputs as the model's largest embedding has entries.
    """
    matrices, heads, rest = _sorted(model)
    return _filled(
        {"params": matrices, "weight_decay": weight_decay},
        {"params": heads, "weight_decay": weight_decay, "matrices": False},
        {"params": rest, "weight_decay": 0.0, "matrices": False},
    )


def _sorted(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Trained parameters: matrices; heads and convolutions; embeddings and what has one dimension or none."""
    modules = [*model.modules()]
    embeddings = [module for module in modules if isinstance(module, nn.Embedding)]
    entries = max((module.num_embeddings for module in embeddings), default=None)
    tables = {id(module.weight) for module in embeddings}
    heads = {id(each.weight) for each in modules if isinstance(each, nn.Linear) and each.out_features == entries}
    heads |= {id(each.weight) for each in modules if isinstance(each, nn.Conv1d | nn.Conv2d | nn.Conv3d)}
    kinds: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_rest = parameter.ndim < 2 or id(parameter) in tables
            kinds[2 if is_rest else 1 if id(parameter) in heads or parameter.ndim > 3 else 0].append(parameter)
    return kinds


def _filled(*groups: dict[str, Any]) -> list[dict[str, Any]]:
    """Groups without empty ones."""
    return [group for group in groups if group["params"]]


def _by_mesh(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group for each mesh over which parameters are sharded: torch's optimizers take no others together."""
    by_mesh: dict[object, list[Tensor]] = {}
    for parameter in group["params"]:
        by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{**group, "params": members} for members in by_mesh.values()]
