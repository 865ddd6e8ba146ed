"""Keeps an island's checkpoints: at once where it is one process, beside the training where it is several."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from isthmus.checkpoint import Draft, LocalStorage, SavedInfo, Storage, Team, commit, draft, prune, save
from isthmus.clock import Clock
from isthmus.errors import CheckpointError


@dataclass(frozen=True)
class Kept:
    """How a save ended.

    ``stored`` says the same at all ranks. ``info`` is None where it failed, or where another rank knows; an ``error``
    of what is stored is that old ones did not go.
    ``seconds`` is from its begin until it was durable, ``blocked_s`` what of that training has waited.
    """

    stored: bool
    info: SavedInfo | None
    error: Exception | None
    seconds: float
    blocked_s: float


class Keeper(Protocol):
    """Saves the states it is given, one after the other."""

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool) -> None:
        """Save a state, which does not change during the call; ``wait`` until it is durable."""
        ...

    def ended(self) -> list[Kept]:
        """The saves that have ended since this was asked last."""
        ...

    def close(self, timeout_s: float) -> None:
        """Wait for a save that is under way, but no longer than this."""
        ...


class PromptKeeper:
    """Saves during the call.

    Args:
        storage: Where to.
        keep: How many checkpoints stay.
        clock: Measures.
    """

    def __init__(self, storage: Storage, keep: int, clock: Clock) -> None:
        self._storage, self._keep, self._clock = storage, keep, clock
        self._ended: list[Kept] = []

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool) -> None:
        """See ``Keeper.save``."""
        started_s = self._clock.now_s()
        info, error = None, None
        try:
            info = save(self._storage, step, state)
            prune(self._storage, keep=self._keep)
        except (CheckpointError, OSError) as refused:
            error = refused
        seconds = self._clock.now_s() - started_s
        self._ended.append(Kept(info is not None, info, error, seconds, seconds))

    def ended(self) -> list[Kept]:
        """See ``Keeper.ended``."""
        ended, self._ended = self._ended, []
        return ended

    def close(self, timeout_s: float) -> None:
        """See ``Keeper.close``; there is none."""


class SharedKeeper:
    """Saves the state of several ranks: copies it during the call, and writes the copy in a thread.

    All ranks make every call of ``save``; one that comes while the last is being written waits for that.

    Args:
        storage: A folder that all ranks see.
        keep: How many checkpoints stay.
        clock: Measures.
        team: The ranks, for the calls.
        background: The same ranks through another group, for the threads.
    """

    def __init__(self, storage: LocalStorage, keep: int, clock: Clock, team: Team, background: Team) -> None:
        self._storage, self._keep, self._clock = storage, keep, clock
        self._team, self._background = team, background
        self._thread: threading.Thread | None = None
        self._ended: list[Kept] = []

    def save(self, step: int, state: Mapping[str, Any], *, wait: bool) -> None:
        """See ``Keeper.save``."""
        started_s = self._clock.now_s()
        self._join()
        try:
            drawn = draft(self._storage, step, state, self._team)
        except CheckpointError as error:  # that of all ranks
            self._ended.append(Kept(False, None, error, 0.0, self._clock.now_s() - started_s))
            return
        blocked_s = self._clock.now_s() - started_s
        self._thread = threading.Thread(
            target=self._write, args=(drawn, started_s, blocked_s), name="isthmus-checkpoint", daemon=True
        )
        self._thread.start()
        if wait:
            self._join()

    def ended(self) -> list[Kept]:
        """See ``Keeper.ended``."""
        ended = []
        while self._ended:
            ended.append(self._ended.pop(0))
        return ended

    def close(self, timeout_s: float) -> None:
        """See ``Keeper.close``."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, drawn: Draft, started_s: float, blocked_s: float) -> None:
        stored, info, error = False, None, None
        try:
            info = commit(self._storage, drawn, self._background)
            stored = True
            if info is not None:
                prune(self._storage, keep=self._keep)
        except Exception as refused:  # whatever it is, training goes on; what ends the island shows there, too
            error = refused
        self._ended.append(Kept(stored, info, error, self._clock.now_s() - started_s, blocked_s))
