"""What Shampoo's settings and parameters may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.errors import ConfigError, ShapeError
from isthmus.optim.blocks import VARIANTS


def split(group: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """A group's matrices and stacks of matrices, and what AdamW trains."""
    kinds: tuple[list[Tensor], list[Tensor]] = ([], [])
    for parameter in group["params"]:
        is_matrix = group.get("matrices", True) and parameter.ndim in (2, 3)
        kinds[0 if is_matrix else 1].append(parameter)
    return kinds


def check_settings(variant: str, *, refresh_steps: int, max_block: int) -> None:
    """Refuse settings of the whole optimizer that are out of their range.

    Raises:
        ConfigError: One is.
    """
    for name, value in (("refresh_steps", refresh_steps), ("max_block", max_block)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"Shampoo's {name} is out of range", got=repr(value), wanted="a whole number from 1 on")
    if variant not in VARIANTS:
        raise ConfigError("Shampoo's variant is unknown", got=repr(variant), wanted=f"one of {', '.join(VARIANTS)}")


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse a group of parameters whose settings or parameters will not do.

    Raises:
        ConfigError: A setting is out of its range.
        ShapeError: A parameter is empty or complex, or no matrix, stack or vector in a group of matrices.
    """
    for name in ("lr", "eps", "weight_decay"):
        value = group[name]
        if not (_is_number(value) and (value > 0 if name == "eps" else value >= 0)):
            wanted = "a finite number above 0" if name == "eps" else "a finite number from 0 on"
            raise ConfigError(f"Shampoo's {name} is out of range", got=value, wanted=wanted)
    betas = group["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 3 or not all(_is_number(b) and 0 <= b < 1 for b in betas):
        wanted = "three numbers from 0 on, below 1: for gradients, their squares, and factors"
        raise ConfigError("Shampoo's betas are out of range", got=betas, wanted=wanted)
    for parameter in group["params"]:
        _check_parameter(parameter, matrices=group["matrices"])


def check_gradients(parameters: Sequence[Tensor]) -> None:
    """Refuse gradients that are not dense.

    Raises:
        ShapeError: One is not.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ShapeError(
                "Shampoo takes dense gradients",
                got=f"a gradient of layout {parameter.grad.layout} for a parameter {tuple(parameter.shape)}",
                mend="Build the embedding with sparse=False, or give it to torch.optim.SparseAdam.",
            )


def require_whole(parameters: Iterable[Tensor], optimizer: str) -> None:
    """Refuse parameters that are sharded over ranks.

    Raises:
        ConfigError: One is.
    """
    for parameter in parameters:
        if hasattr(parameter, "device_mesh"):
            raise ConfigError(
                f"{optimizer} does not train parameters that are sharded over ranks",
                got=f"a parameter {tuple(parameter.shape)} on {parameter.device_mesh}",
                mend="Use Shampoo(..., collectives=isthmus.island.RankCollectives()), or AdamW.",
            )


def _is_number(value: Any) -> bool:
    """Also a tensor of one element, as a learning rate may be."""
    return isinstance(value, float | int | Tensor) and math.isfinite(value)


def _check_parameter(parameter: Tensor, *, matrices: bool) -> None:
    got = f"{tuple(parameter.shape)} {parameter.dtype}"
    if parameter.is_complex():
        mend = "Train its real and imaginary parts."
        raise ShapeError("Shampoo does not train complex parameters", got=got, mend=mend)
    if not parameter.is_floating_point() or parameter.layout != torch.strided:
        raise ShapeError("Shampoo trains dense parameters of a float type", got=f"{got} {parameter.layout}")
    if parameter.numel() == 0:
        raise ShapeError("a parameter is empty", got=got, mend="Leave it out of the optimizer.")
    if matrices and not 1 <= parameter.ndim <= 3:
        raise ShapeError(
            "Shampoo cannot tell what matrices are in a parameter",
            got=got,
            wanted="(m, n), (count, m, n), or a vector (n,)",
            mend="Put it into a group with matrices=False, which AdamW trains, or reshape it.",
        )
