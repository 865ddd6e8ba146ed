"""The only places where a session waits, each of them bounded or saying for whom it waits and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from isthmus.errors import ShapeError
from isthmus.observe import records
from isthmus.session.engine import Engine
from isthmus.terms import Phase

_POLL_S = 0.05
_SAY_EVERY_S = 10.0
_EXPLAIN_S = 5.0


class Waiter:
    """Pumps an engine until something has happened, and says what it waits for.

    All ranks of an island wait alike, by the time that they agreed on.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._said_at_s = float("-inf")

    def until_ready(self, stopped: Callable[[], bool], *, resumed: bool) -> None:
        """Wait until the island may train: HELLOs exchanged, the run's weights taken over if it is under way.

        Args:
            stopped: Whether to give up waiting.
            resumed: Whether the island goes on from a checkpoint.

        Raises:
            ShapeError: The island starts fresh and all that it hears of train another model; it names the first
                parameter that differs.
        """
        engine, started_s = self._engine, self._engine.now_s()
        waited_for: tuple[str, ...] = ()
        newcomer = False
        while True:
            engine.pump()
            told_s = engine.plan.join_wait_s + _EXPLAIN_S
            unexplained = not resumed and self._is_misfit() and self._engine.now_s() - started_s < told_s
            if stopped() or (engine.phase is not Phase.JOINING and not unexplained):
                break
            newcomer = newcomer or not engine.memory.complete
            waited_for = engine.core.waits_for or waited_for
            self._say("the run's weights" if newcomer else "their HELLO", since_s=started_s)
            engine.effects.link.wait(_POLL_S)
        waited_s = self._engine.now_s() - started_s
        joined = engine.journal.stamp()
        how: Literal["fresh", "checkpoint", "adopted"] = "checkpoint" if resumed else "fresh"
        how = "adopted" if newcomer else how
        engine.journal.write(records.Joined(**joined, how=how, waited_for=waited_for, waited_s=waited_s))

    def until(self, done: Callable[[], bool], reason: str, *, at_most_s: float | None = None) -> None:
        """Wait until ``done``, for at most ``at_most_s`` if that is given."""
        started_s = self._engine.now_s()
        while not done() and (at_most_s is None or self._engine.now_s() - started_s < at_most_s):
            self._say(reason, since_s=started_s, at_most_s=at_most_s)
            self._engine.effects.link.wait(_POLL_S)
            self._engine.pump()

    def _is_misfit(self) -> bool:
        """Whether all islands that were heard train another model; raises once one has said what differs."""
        company = self._engine.core.company
        if not company.misfits or company.heard:
            return False
        if self._engine.misfit is not None:
            mend = "Build the same model on every island: same code, same settings, same names."
            raise ShapeError("another island trains another model", got=self._engine.misfit, mend=mend)
        return True

    def _say(self, reason: str, *, since_s: float, at_most_s: float | None = None) -> None:
        now_s, engine = self._engine.now_s(), self._engine
        if now_s - self._said_at_s < _SAY_EVERY_S:
            return
        self._said_at_s = now_s
        peers = engine.core.waits_for
        stamp = engine.journal.stamp()
        engine.journal.write(records.Waiting(**stamp, peers=peers, reason=reason, at_most_s=at_most_s))
