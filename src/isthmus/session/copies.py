"""Copies between an accelerator and host memory, on a stream of their own, so that training goes on beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from isthmus.session.memories import HOST, host_room


class Landing(Protocol):
    """Bytes on their way to host memory."""

    def finish(self) -> None:
        """Wait until they are there; the second time there is nothing to wait for."""
        ...


class Landed:
    """Bytes that are there."""

    def finish(self) -> None:
        """Nothing to wait for."""


class Coming:
    """A tensor on its way to an accelerator."""

    def __init__(self, near: Tensor, event: Any, side: SideStream) -> None:
        self._near, self._event, self._side = near, event, side

    def take(self) -> Tensor:
        """The tensor, for work that is queued from now on; the host does not wait."""
        self._side.let_training_wait(self._event)
        self._side.used_by_training(self._near)
        return self._near


class SideStream:
    """A stream of an accelerator that only copies. What training has queued before a copy begins, comes before it.

    On a host without accelerators everything is done at once, through the same calls.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream()

    def room(self, num_bytes: int) -> Tensor:
        """Bytes on the accelerator, without values."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def down(self, source: Tensor, out: memoryview) -> Landing:
        """Copy bytes, uint8, to the host; they are in ``out`` once that was waited for."""
        room = host_room(source.shape, torch.uint8)
        self._begin()
        with self._module.stream(self._stream):
            room.copy_(source, non_blocking=True)
        self._used_here(source)
        return _Staged(self._mark(), room, out)

    def up(self, data: memoryview) -> Coming:
        """Bring bytes from the host, as a tensor of uint8; they may be changed once this returns."""
        room = host_room((data.nbytes,), torch.uint8)
        room.numpy()[:] = np.frombuffer(data, np.uint8)
        return self._up(room)

    def up_rows(self, rows: Tensor) -> Tensor:
        """Bring a tensor from the host, for work that is queued from now on."""
        return self._up(host_room(rows.shape, rows.dtype).copy_(rows)).take()

    def fetch(self, tensors: Sequence[Tensor], rooms: Sequence[Tensor]) -> Landing:
        """Copy tensors into pinned host memory; they are there once that was waited for."""
        self._begin()
        with self._module.stream(self._stream):
            torch._foreach_copy_(list(rooms), list(tensors), non_blocking=True)
        return _Event(self._mark())

    def bring_back(self, rooms: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Copy pinned host memory, which does not change any more, into tensors; ``join`` before these are used."""
        with self._module.stream(self._stream):
            torch._foreach_copy_(list(tensors), list(rooms), non_blocking=True)

    def join(self) -> None:
        """Let what is queued from now on wait for all copies so far; the host does not."""
        self._module.current_stream().wait_stream(self._stream)

    def let_training_wait(self, event: Any) -> None:
        """Let what is queued from now on wait for a copy."""
        self._module.current_stream().wait_event(event)

    def used_by_training(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor made here until training has used it."""
        if tensor.device != HOST:
            tensor.record_stream(self._module.current_stream())

    def _up(self, room: Tensor) -> Coming:
        with self._module.stream(self._stream):
            near = room.to(self._device, non_blocking=True)
        return Coming(near, self._mark(), self)

    def _begin(self) -> None:
        self._stream.wait_stream(self._module.current_stream())

    def _mark(self) -> Any:
        event = self._module.Event()
        event.record(self._stream)
        return event

    def _used_here(self, tensor: Tensor) -> None:
        if tensor.device != HOST:
            tensor.record_stream(self._stream)


@dataclass(frozen=True)
class Place:
    """Where slow state lies.

    Attributes:
        on_host: In host memory, pinned where there is an accelerator, and not beside the weights.
        side: What copies between the host and the accelerator that the weights are on; opened where it is needed.
    """

    on_host: bool = False
    side: SideStream | None = None


BESIDE = Place()
"""Where the weights are."""


def open_side_stream(tensors: Iterable[Tensor]) -> SideStream | None:
    """For the first accelerator that any of these tensors lies on; None where none does."""
    devices = (tensor.device for tensor in tensors)
    return next((SideStream(device) for device in devices if device.type != "cpu"), None)


class _Event:
    def __init__(self, event: Any) -> None:
        self._event = event

    def finish(self) -> None:
        self._event.synchronize()


class _Staged:
    """Bytes on their way to pinned memory, and from there to where they are wanted."""

    def __init__(self, event: Any, room: Tensor, out: memoryview) -> None:
        self._event, self._out = event, out
        self._room: Tensor | None = room

    def finish(self) -> None:
        if self._room is not None:
            self._event.synchronize()
            self._out[:] = self._room.numpy().data
            self._room = None
