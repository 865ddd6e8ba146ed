"""The process's random number generators as plain state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from isthmus.errors import CheckpointError


def rng_state() -> dict[str, Any]:
    """The global generators of Python, NumPy (legacy), torch, and the current accelerator if there is one."""
    numpy_state: Any = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**inner, "key": torch.from_numpy(inner["key"].copy())}},
        "torch": torch.get_rng_state(),
        "accelerator": None,
    }
    if accelerator_in_use():
        kind = _accelerator()
        state["accelerator"] = {"kind": kind, "state": torch.get_device_module(kind).get_rng_state()}
    return state


def set_rng_state(state: Mapping[str, Any]) -> bool:
    """Put every generator where ``rng_state`` found it.

    Returns:
        Whether the accelerator goes on from where it was too; False on another kind of accelerator, whose
        generator is left alone because it cannot continue another kind's sequence.

    Raises:
        CheckpointError: The state is not one that ``rng_state`` makes.
    """
    try:
        numpy_state = state["numpy"]
        key = numpy_state["state"]["key"].numpy()
        random.setstate(state["python"])
        np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})
        torch.set_rng_state(state["torch"])
        return _set_accelerator(state["accelerator"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError("not a state of the random number generators", got=repr(error)) from error


def _set_accelerator(saved: Mapping[str, Any] | None) -> bool:
    here = _accelerator() if torch.accelerator.is_available() else None
    if here != (saved["kind"] if saved else None):
        return False
    if saved:
        torch.get_device_module(here).set_rng_state(saved["state"])
    return True


def _accelerator() -> str:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    return device.type


def accelerator_in_use() -> bool:
    """Whether this process works on an accelerator already; asking for its generator or pinned memory would open it."""
    if not torch.accelerator.is_available():
        return False
    initialized = getattr(torch.get_device_module(_accelerator()), "is_initialized", None)
    return initialized is None or bool(initialized())
