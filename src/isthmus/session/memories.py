"""Where slow state lies: beside the weights, or in host memory that an accelerator can reach by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.checkpoint import accelerator_in_use

HOST = torch.device("cpu")


def new_rows(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A new fp32 tensor without values; on the host pinned, where an accelerator is worked on."""
    if device == HOST:
        return host_room(shape, torch.float32)
    return torch.empty(shape, dtype=torch.float32, device=device)


def host_room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new tensor on the host without values; pinned, where an accelerator is worked on."""
    return torch.empty(shape, dtype=dtype, pin_memory=accelerator_in_use())
