"""Publications on their way out: each is given to the link once, spread over the time it has."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable

from isthmus import schedule
from isthmus.session.memory import Plan
from isthmus.session.payloads import Payloads
from isthmus.terms import Header
from isthmus.transport.link import Link

RECENT_STEPS = 15
"""The median of so many steps is a step's time; one that an evaluation delayed does not change it."""


class Outgoing:
    """Hands publications to the link.

    Args:
        plan: The settings.
        payloads: Where they are kept.
        link: Sends them.
        reaches: Whether a peer can be reached; what is for another one, its HELLO will ask for when it is back.
    """

    def __init__(self, plan: Plan, payloads: Payloads, link: Link, reaches: Callable[[str], bool]) -> None:
        self._plan, self._payloads, self._link, self._reaches = plan, payloads, link, reaches
        self._landing: list[Header] = []
        self.under_way: set[tuple[str, int]] = set()
        self.steps_s: deque[float] = deque(maxlen=RECENT_STEPS)
        self.stepped_at_s: float | None = None

    def stepped(self, now_s: float) -> None:
        """A training step has ended."""
        if self.stepped_at_s is not None:
            self.steps_s.append(now_s - self.stepped_at_s)
        self.stepped_at_s = now_s

    def add(self, headers: Iterable[Header]) -> None:
        """Hand these over by the next ``hand_over_landed``: once an accelerator has had time to copy them."""
        self._landing.extend(headers)

    def hand_over_landed(self, *, hurry: bool) -> None:
        """Hand over what was added and is kept still."""
        landing, self._landing = self._landing, []
        for header in landing:
            if self._payloads.has(header):
                self.hand_over(header, hurry=hurry)

    def hand_over(self, header: Header, *, hurry: bool) -> None:
        """Give a publication to the link, unless it is on its way already.

        Args:
            header: Its header.
            hurry: Whether an island waits for it; else it is spread over a slot's time.
        """
        key = (header.receiver, header.publication)
        if key in self.under_way or not self._reaches(header.receiver):
            return
        self.under_way.add(key)
        spread_s = 0.0
        if not hurry:
            spread_s = schedule.slot_s(
                statistics.median(self.steps_s or (0.0,)),
                window_steps=self._plan.window_steps,
                num_fragments=len(self._plan.initial),
                meetings=self._plan.meetings,
            )
        self._link.publish(header.receiver, header, self._payloads.get(header), spread_s=spread_s)

    @property
    def is_empty(self) -> bool:
        """Whether all that was handed over has been sent, and nothing waits to be."""
        return not self.under_way and not self._landing

    def sent(self, peer: str, publication: int) -> None:
        """The link has sent it."""
        self.under_way.discard((peer, publication))

    def link_changed(self, peer: str) -> None:
        """The link to a peer was made or lost: nothing is on its way there."""
        self.under_way = {key for key in self.under_way if key[0] != peer}
