"""Where this process finds itself among others, as torchrun tells it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # its package does not say so
from torch.distributed.rendezvous import rendezvous

from isthmus.errors import ConfigError, RankError

_WORD = "word-of-rank-0"
_A_MONTH = timedelta(days=30)


@contextmanager
def start_ranks(device: str) -> Iterator[None]:
    """Join torch's default process group for the duration if torchrun started several ranks, each with its device.

    Args:
        device: What the island's file says: ``"auto"``, or the name of a kind of device.

    Raises:
        ConfigError: The ranks of this machine cannot have a device each.
        RankError: Another rank was lost meanwhile.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = _take_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    own, rank, size = _meet()
    dist.init_process_group(backend, store=own, rank=rank, world_size=size)
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


def is_first_rank() -> bool:
    """Whether this process is the first of its island, also before its ranks are joined."""
    return int(os.environ.get("RANK", "0")) == 0


def word_of_rank_0(say: Callable[[], str]) -> str:
    """What rank 0 has to say, at every rank of this start; before they are joined, and however long it takes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return say()
    store, rank, _ = _meet()
    if rank == 0:
        store.set(_WORD, say())
    store.wait([_WORD], _A_MONTH)
    return str(store.get(_WORD).decode())


@cache
def _meet() -> tuple[Store, int, int]:
    """The store that the ranks of this start share, this rank, and how many there are."""
    store, rank, size = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what ranks of earlier ones left there, is no more
    return PrefixStore(f"attempt-{attempt}", store), rank, size


def _take_device(device: str, local_rank: int) -> str | None:
    """Take the device that is this rank's; the backend to use, or None for that of the accelerator."""
    kind, _, index = device.partition(":")
    if index:
        what = "island.device names one device for several ranks"
        raise ConfigError(what, got=repr(device), mend=f'Set it to "auto" or {kind!r}: each rank then has its own.')
    if kind == "cpu" or not torch.accelerator.is_available():
        return "gloo"
    if local_rank >= torch.accelerator.device_count():
        raise ConfigError(
            "there are more ranks on this machine than devices",
            got=f"local rank {local_rank} and {torch.accelerator.device_count()} devices",
            mend="Start as many ranks as there are devices (torchrun --nproc-per-node).",
        )
    torch.accelerator.set_device_index(local_rank)
    return None
