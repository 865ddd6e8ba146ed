"""What trains on an island and must survive with it: model, optimizer, data and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from isthmus.checkpoint import rng_state, set_rng_state
from isthmus.errors import CheckpointError
from isthmus.fragments import canonical_name


@runtime_checkable
class Stateful(Protocol):
    """Data that can say where it is and go there again."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Go there."""
        ...


class Training:
    """Model, optimizer, data and random number generators as one thing to save.

    Args:
        model: Its whole ``state_dict`` is saved, frozen parameters and all.
        optimizer: Any ``torch.optim.Optimizer``.
        data: What the loop reads from; saved if it has ``state_dict``. Its ``cursor``, an integer, goes into every
            signed header, and its ``seek(cursor)`` is called after a crash if tokens beyond the checkpoint live on
            at a partner.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: object | None) -> None:
        self._model, self._optimizer, self._data = model, optimizer, data

    @property
    def cursor(self) -> int:
        """The data cursor; 0 for data without one."""
        return int(getattr(self._data, "cursor", 0))

    @property
    def learning_rate(self) -> float:
        """That of the optimizer's first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def seek(self, cursor: int) -> None:
        """Move the data to ``cursor``, where it can be moved."""
        seek = getattr(self._data, "seek", None)
        if seek is not None:
            seek(cursor)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        data = self._data.state_dict() if isinstance(self._data, Stateful) else None
        return {
            "model": {canonical_name(name): tensor for name, tensor in self._model.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
            "data": data,
            "rng": rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave, model weights in place."""
        own = {canonical_name(name): name for name in self._model.state_dict()}
        try:
            self._model.load_state_dict({own.get(name, name): tensor for name, tensor in state["model"].items()})
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                "the checkpoint does not fit this model or optimizer",
                got=error,
                mend="Build both as they were when it was made, or start from an empty directory.",
            ) from error
        if isinstance(self._data, Stateful) and state["data"] is not None:
            self._data.load_state_dict(state["data"])
        set_rng_state(state["rng"])
