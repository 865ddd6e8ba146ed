"""Where this process finds itself among others, as torchrun tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def start_ranks() -> Iterator[None]:
    """Join torch's default process group for the duration if torchrun started several ranks, each with its device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    try:
        yield
    finally:
        dist.destroy_process_group()
