"""What an engine's states hold: a checkpoint's format, and what lives beside it between two steps.

A restart goes on from a checkpoint: ``Engine.state_dict``. A virtual world that is stopped and goes on exactly needs
also what a restart may forget: who was heard, what was said when, what is under way. That is ``Live``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from isthmus.errors import CheckpointError
from isthmus.terms import EndPlan, Phase, Standing

FORMAT = 3
"""Version of a checkpoint's layout."""


class CompanyState(msgspec.Struct, kw_only=True):
    """See ``Company``."""

    heard: set[str]
    misfits: set[str]
    other_start: set[str]
    alive: set[str]
    hello_at_s: dict[str, float]


class EndingState(msgspec.Struct, kw_only=True):
    """See ``RunEnd``."""

    begun_s: float | None
    since_s: float
    said_at_s: float
    standings: dict[str, Standing]
    heard_at_s: dict[str, float]
    plan: EndPlan | None
    signature: bytes
    at: list[int]
    outcome: list[bytes]
    merged: bool
    over: bool
    num_plans: int = 0


class CoreState(msgspec.Struct, kw_only=True):
    """See ``Core``."""

    phase: Phase
    fresh: bool
    waiting_since_s: float | None
    saved_step: int
    withheld: set[int]
    ending: EndingState
    company: CompanyState


class JournalState(msgspec.Struct, kw_only=True):
    """See ``Journal``; ``departed_s`` are pairs of fragment and time."""

    started_s: float
    departed_s: list[tuple[int, float]]


class Live(msgspec.Struct, kw_only=True):
    """What lives in an engine beside its checkpoint."""

    core: CoreState
    journal: JournalState
    misfit: str | None
    under_way: set[tuple[str, int]]
    steps_s: list[float]
    stepped_at_s: float | None

    def encode(self) -> bytes:
        """As bytes; the same bytes for the same state, in any process."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Live:
        """What ``encode`` wrote."""
        return msgspec.msgpack.decode(data, type=cls)


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


def check_state(state: Mapping[str, Any], run: str) -> None:
    """Refuse a state of another run, or of a version that stored something else.

    Raises:
        CheckpointError: It is one.
    """
    if state.get("format") != FORMAT or state.get("run") != run:
        raise CheckpointError(
            "the checkpoint belongs to another run or version",
            got=f"run {str(state.get('run'))[:12]}, format {state.get('format')}",
            wanted=f"run {run[:12]}, format {FORMAT}",
            mend="Use the run files it was made with, or start the changed run in a new directory.",
        )
