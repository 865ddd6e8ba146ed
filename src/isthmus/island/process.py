"""Where this process finds itself among others, as torchrun tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from isthmus.errors import RankError


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
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise RankError(
                "another rank of this island was lost, so this one ends, too",
                got=str(error).partition("This is typically")[0].strip(),
                mend="See what the other rank has said; torchrun --max-restarts starts all of them again.",
            ) from error
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()
