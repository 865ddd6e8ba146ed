"""What an engine acts on: link, clock, storage and what trains; all of it handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from isthmus.checkpoint import Storage
from isthmus.clock import Clock
from isthmus.session.accord import Accord
from isthmus.session.journal import Sink
from isthmus.session.keeping import Keeper
from isthmus.terms import EndPlan, SignedHeader
from isthmus.transport.link import Link


class Trainee(Protocol):
    """What trains beside the slow state and is saved with it: model, optimizer, data, random numbers."""

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave."""
        ...

    def seek(self, cursor: int) -> None:
        """Move the data cursor to where the tokens that count have ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What an engine acts on; all of it handed in.

    ``check_held`` refuses a header that claims to be one's own but was not signed by this island; ``sign_plan`` signs
    plans for the end of the run, and ``check_plan`` refuses others' that their authors did not sign. ``accord`` is what
    the ranks of an island of several agree by. ``hear_roster`` says of a roster whether it is newer than the one in
    force, and ``roster_document`` is that; ``away`` says which islands are not there by their windows, alike at all
    ranks. ``keeper`` saves checkpoints; None saves them to ``storage`` at once.
    """

    link: Link
    clock: Clock
    storage: Storage
    sink: Sink
    codec: str
    keep_checkpoints: int = 2
    layout_lines: tuple[str, ...] = ()
    check_held: Callable[[SignedHeader], bool] = lambda signed: True
    sign_plan: Callable[[EndPlan], bytes] = lambda plan: b""
    check_plan: Callable[[EndPlan, bytes], bool] = lambda plan, signature: True
    hear_roster: Callable[[str], bool] = lambda document: False
    roster_document: Callable[[], str] = lambda: ""
    away: Callable[[], frozenset[str]] = frozenset
    accord: Accord | None = None
    keeper: Keeper | None = None
