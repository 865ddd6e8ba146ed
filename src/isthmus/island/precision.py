"""The numeric precisions in which an island computes its forward and backward. Parameters stay fp32 in all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isthmus.errors import ConfigError

PRECISIONS = ("fp32", "bf16-autocast", "bf16-weights")
"""``fp32``; ``bf16-autocast``, torch's mixed precision; ``bf16-weights``, fp32 products of weights rounded to bf16."""

_CPU_BF16 = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")
"""Instructions that multiply bf16, as torch names them; the last is ARM's."""


class Precision:
    """One of ``PRECISIONS``, applied to any module: ``logits = precision(model, tokens)``.

    Raises:
        ConfigError: There is no precision of that name.
    """

    def __init__(self, name: str) -> None:
        if name not in PRECISIONS:
            raise ConfigError("unknown precision", got=repr(name), wanted=f"one of {', '.join(PRECISIONS)}")
        self.name = name

    def __call__(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """What ``model(*inputs)`` returns, in this precision; gradients reach the fp32 parameters."""
        if self.name == "bf16-autocast":
            with torch.autocast(_device_type(model), dtype=torch.bfloat16):
                out: Tensor = model(*inputs)
        elif self.name == "bf16-weights":
            rounded = {name: _rounded(parameter) for name, parameter in model.named_parameters()}
            out = functional_call(model, rounded, inputs)
        else:
            out = model(*inputs)
        return out


def native_bf16(device: torch.device | None = None) -> bool:
    """Whether a device multiplies bf16 in hardware.

    Args:
        device: Which; by default the accelerator, or the CPU where there is none. An accelerator that torch cannot
            ask counts as one that does not.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    chosen = device or accelerator or torch.device("cpu")
    if chosen.type == "cpu":
        return _cpu_multiplies_bf16()
    supported = getattr(torch.get_device_module(chosen), "is_bf16_supported", None)
    return supported is not None and bool(supported(including_emulation=False))


def _cpu_multiplies_bf16() -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in _CPU_BF16)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _device_type(model: nn.Module) -> str:
    return next(model.parameters()).device.type


def _rounded(parameter: Tensor) -> Tensor:
    """A matrix at the precision of bf16; vectors (norms, biases) as they are."""
    if parameter.ndim < 2 or not parameter.is_floating_point():
        return parameter
    out: Tensor = _RoundToBF16.apply(parameter)  # type: ignore[no-untyped-call]
    return out


class _RoundToBF16(torch.autograd.Function):
    """Rounds forward, passes the gradient through unrounded."""

    @staticmethod
    def forward(ctx: Any, master: Tensor) -> Tensor:
        return master.bfloat16().to(master.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
