"""``faults.toml``: what goes wrong in a run, and when.

A key's description is what it means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from isthmus.config.problems import Problem, nearest, read_table, shown
from isthmus.config.tables import Relation, Table, refuse_relations
from isthmus.roster import IslandName

FaultKind = Literal["crash", "restart", "hang", "resume", "cut", "heal"]

_ENDED_BY: dict[FaultKind, FaultKind] = {"crash": "restart", "hang": "resume", "cut": "heal"}
_OF_PAIRS = ("cut", "heal")
_CHANGES: dict[FaultKind, tuple[tuple[str, ...], str]] = {
    "crash": (("running", "hanging"), "down"),
    "restart": (("down",), "running"),
    "hang": (("running",), "hanging"),
    "resume": (("hanging",), "running"),
    "cut": (("whole",), "cut"),
    "heal": (("cut",), "whole"),
}
"""In which states of an island or a pair a fault can happen, and the state after it."""


class FaultEvent(NamedTuple):
    """Something that happens to an island, or to a pair of them in the order of their names."""

    at_s: float
    kind: FaultKind
    islands: tuple[str, ...]


class Fault(Table):
    """``[[fault]]``: one fault, and its end if that is known."""

    at_s: float = Field(ge=0, description="When, in seconds since the start of the run.")
    kind: FaultKind = Field(
        description='"crash" ends an island\'s process without a word, "restart" starts it again; "hang" stops it, '
        '"resume" lets it go on; "cut" lets nothing through between two islands, "heal" ends that.'
    )
    island: IslandName | None = Field(
        default=None, description="Whom a crash, restart, hang or resume is about.", examples=["b"]
    )
    between: tuple[IslandName, IslandName] | None = Field(
        default=None, description="Which two a cut or heal is between.", examples=[("a", "b")]
    )
    for_s: float | None = Field(
        default=None,
        gt=0,
        description="After so many seconds a crash restarts, a hang resumes, a cut heals; if absent, "
        "it lasts until another fault of this file ends it, or for good.",
        examples=[60.0],
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        wanted, other = ("between", "island") if self.kind in _OF_PAIRS else ("island", "between")
        broken: list[Relation] = []
        if getattr(self, wanted) is None:
            what = "two islands" if wanted == "between" else "an island"
            broken.append((wanted, "none", f"{what}, for a {self.kind}"))
        if getattr(self, other) is not None:
            broken.append((other, shown(getattr(self, other)), f"none, for a {self.kind}"))
        if self.between is not None and self.between[0] == self.between[1]:
            broken.append(("between", list(self.between), "two different islands"))
        if self.for_s is not None and self.kind not in _ENDED_BY:
            broken.append(("for_s", f"{self.for_s:g}", f"none: a {self.kind} has no end"))
        refuse_relations(broken)
        return self

    @property
    def islands(self) -> tuple[str, ...]:
        """Whom it is about."""
        return (self.island,) if self.island is not None else tuple(sorted(self.between or ()))

    def events(self) -> Iterator[tuple[str, FaultEvent]]:
        """The fault and its end, with the keys that say so."""
        yield "kind", FaultEvent(self.at_s, self.kind, self.islands)
        if self.for_s is not None:
            yield "for_s", FaultEvent(self.at_s + self.for_s, _ENDED_BY[self.kind], self.islands)


class FaultScript(Table):
    """All of ``faults.toml``: faults in any order, none of which contradicts another."""

    fault: tuple[Fault, ...] = Field(default=(), description="What goes wrong, one table a fault.")

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        states: dict[tuple[str, ...], str] = {}
        for place, (at_s, kind, islands) in self._timeline():
            allowed, after = _CHANGES[kind]
            state = states.get(islands, "whole" if kind in _OF_PAIRS else "running")
            if state in allowed:
                states[islands] = after
            else:
                names = " - ".join(islands)
                broken.append((place, f"{kind} at {at_s:g} s, when {names} is {state}", f"it {' or '.join(allowed)}"))
        refuse_relations(broken)
        return self

    def events(self) -> tuple[FaultEvent, ...]:
        """Everything that happens, in time; at one instant what ends by itself comes first."""
        return tuple(event for _, event in self._timeline())

    def unknown_islands(self, path: Path, known: Collection[str], *, whose: str = "the run") -> list[Problem]:
        """A problem for every island of this script that ``whose`` has not.

        Args:
            path: The file of this script.
            known: The islands that there are.
            whose: Who has them, for the message.
        """
        problems = []
        for index, fault in enumerate(self.fault):
            for name in fault.islands:
                if name not in known:
                    key = f"fault[{index}].{'island' if fault.island is not None else 'between'}"
                    problems.append(Problem(path, key, f"{whose} has no island {name!r}", nearest(name, known)))
        return problems

    def _timeline(self) -> list[tuple[str, FaultEvent]]:
        events = [
            (f"fault[{index}].{key}", event) for index, fault in enumerate(self.fault) for key, event in fault.events()
        ]
        return sorted(events, key=lambda placed: (placed[1].at_s, not placed[0].endswith("for_s")))


def read_faults(path: Path, problems: list[Problem], *, mend: str = "") -> FaultScript | None:
    """The script at ``path``; None if it has mistakes, which are added to ``problems``.

    Args:
        path: The file.
        problems: Where mistakes are added.
        mend: What to do if the file is missing.
    """
    return read_table(path, FaultScript, problems, mend=mend)
