"""The tables of a study's file, and the study that they make together.

A key's description is what it means; ``isthmus.lab.study`` says how they fit.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from isthmus.config.faults import FaultScript
from isthmus.config.tables import Relation, Table, refuse_relations
from isthmus.lab.table import Scalar
from isthmus.roster import MAX_SLOT, IslandName

MAX_ISLANDS = MAX_SLOT + 1

Tables = dict[str, dict[str, Any]]
"""Values of a run's file by table and key; what is absent has its default."""

_Value = TypeVar("_Value", bound=Hashable)


def _scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("Input should be a number, a text, true or false")
    return value


def _distinct(values: tuple[_Value, ...]) -> tuple[_Value, ...]:
    if len(set(values)) < len(values):
        raise ValueError("Input should have nothing twice")
    return values


def _some(values: tuple[_Value, ...]) -> tuple[_Value, ...]:
    if not values:
        raise ValueError("Input should be at least one")
    return values


def dotted(value: Any) -> Any:
    """Keys of nested tables in one: both ``"run.train.learning_rate" = ...`` and the same without quotes are right."""
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat |= {f"{key}.{below}": values for below, values in dotted(inner).items()}
        else:
            flat[key] = inner
    return flat


def _ascending(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] >= span[1]:
        raise ValueError("Input should be two numbers, the lower first")
    return span


def _island_names(value: Any) -> Any:
    """``a``, ``b``, ..., ``z``, ``aa``, ... for a count."""
    if type(value) is int and 1 <= value <= MAX_ISLANDS:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return tuple(letters[index // 26 - 1] * (index >= 26) + letters[index % 26] for index in range(value))
    if isinstance(value, tuple) and 1 <= len(value) <= MAX_ISLANDS:
        named = [name for name in value if isinstance(name, str) and re.fullmatch("[a-z0-9-]{1,32}", name)]
        if len(set(named)) == len(value):
            return value
    raise ValueError(f"Input should be a count from 1 to {MAX_ISLANDS}, or as many different names of a-z, 0-9 and -")


_Scalar = Annotated[Scalar, PlainValidator(_scalar)]
_Choices = Annotated[tuple[_Scalar, ...], AfterValidator(_distinct), AfterValidator(_some)]
_Grid = Annotated[dict[str, _Choices], BeforeValidator(dotted)]
_Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], AfterValidator(_distinct)]
_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Span = Annotated[tuple[_Positive, _Positive], AfterValidator(_ascending)]
_Outage = Annotated[tuple[Annotated[float, Field(ge=0)], float], AfterValidator(_ascending)]


class StudyTable(Table):
    """``[study]``: what is compared with what, over which seeds."""

    name: IslandName = Field(description="What people call the study: a-z, 0-9 and -, at most 32.")
    note: str = Field(default="", description="What is asked, for the report.")
    control: str = Field(default="standard", description="The arm that all others are paired with.")
    controls: bool = Field(default=True, description="Whether fair controls are added where no arm has their names.")
    seeds: Annotated[_Seeds, AfterValidator(_some)] = Field(
        description="Every arm is run with each of them in every case."
    )
    tuning_seeds: _Seeds = Field(default=(), description="Values are chosen on these, which comparisons do not use.")
    margin: float | None = Field(
        default=None, gt=0, lt=1, description="The largest relative difference that counts as none.", examples=[0.005]
    )
    tune_case: Annotated[dict[str, _Scalar], BeforeValidator(dotted)] = Field(
        default={}, description="The case in which values are chosen; what is absent is the last of its list in [vary]."
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        if common := sorted({*self.seeds} & {*self.tuning_seeds}):
            broken.append(
                ("tuning_seeds", common, "none of study.seeds: a comparison must not see what it was tuned on")
            )
        refuse_relations(broken)
        return self


class LinkTable(Table):
    """``[base.link]``: how two islands reach each other, in either direction."""

    rtt_ms: float = Field(default=0.0, ge=0, description="There and back, in milliseconds; a direction takes half.")
    rate_mbit: float | None = Field(default=None, gt=0, description="Mbit/s; if absent, unlimited.")
    loss: _Share = Field(default=0.0, description="The share of what is sent that never arrives.")
    duplication: _Share = Field(default=0.0, description="The share that arrives twice.")
    reordering: _Share = Field(default=0.0, description="The share that arrives later than what was sent after it.")


class PairLink(LinkTable):
    """``[[arm.links]]``: one pair's own, or one direction's; what is absent is as elsewhere."""

    between: tuple[IslandName, IslandName] | None = Field(default=None, description="The two, for both directions.")
    sender: IslandName | None = Field(default=None, alias="from", description="The sender, for one direction.")
    receiver: IslandName | None = Field(default=None, alias="to", description="The receiver, for one direction.")
    outages: tuple[_Outage, ...] = Field(
        default=(), description="Virtual seconds, from and until, in which nothing passes between the two."
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        ends = {"between": self.between, "from": self.sender, "to": self.receiver}
        given = [key for key, end in ends.items() if end is not None]
        if given not in (["between"], ["from", "to"]):
            broken.append(("between", " and ".join(given) or "none", "between alone, or from and to"))
        elif self.ends[0] == self.ends[1]:
            broken.append(("between" if self.between else "to", self.ends[1], "another island than the first"))
        if self.outages and self.between is None:
            broken.append(("outages", "from and to", "between: an outage cuts both directions"))
        for earlier, later in itertools.pairwise(sorted(self.outages)):
            if later[0] < earlier[1]:
                broken.append(("outages", list(later), f"it after {list(earlier)}"))
        refuse_relations(broken)
        return self

    @property
    def ends(self) -> tuple[str, str]:
        """The two islands; of one direction the sender first."""
        return self.between or (self.sender or "", self.receiver or "")

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Senders and receivers that it is about."""
        return (self.ends, (self.ends[1], self.ends[0])) if self.between else (self.ends,)

    @property
    def own(self) -> dict[str, float | None]:
        """What is its own, by key of ``LinkTable``."""
        return self.model_dump(include={*LinkTable.model_fields}, exclude_unset=True)


class UnevenTable(Table):
    """``[arm.uneven]``: every pair draws its own from these spans, log-uniformly, by the run's seed."""

    rate_mbit: _Span | None = Field(default=None, description="Mbit/s, from and to.", examples=[(10.0, 1000.0)])
    rtt_ms: _Span | None = Field(default=None, description="Milliseconds, from and to.", examples=[(20.0, 250.0)])

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """What is drawn, by key of ``LinkTable``."""
        return {key: span for key, span in (("rate_mbit", self.rate_mbit), ("rtt_ms", self.rtt_ms)) if span}


class OwnTable(Table):
    """``[arm.own.NAME]``: one island's own, where it differs from the arm's."""

    step_s: float | None = Field(default=None, gt=0, description="Virtual seconds of one step.")
    island: Tables = Field(default={}, description="Tables of island.toml.")


class SharedTable(Table):
    """``[base]``: what all arms share; an arm has the same keys for what differs there."""

    run: Tables = Field(default={}, description="Tables of run.toml.")
    island: Tables = Field(default={}, description="Tables of island.toml, for all islands.")
    link: LinkTable = Field(default=LinkTable(), description="All links.")
    step_s: float = Field(default=1.0, gt=0, description="Virtual seconds of one step.")


class Arm(SharedTable):
    """``[[arm]]``: one way of training."""

    name: IslandName = Field(description="a-z, 0-9 and -, at most 32; each once.")
    note: str = Field(default="", description="What it is, for the report.")
    islands: Annotated[tuple[str, ...], PlainValidator(_island_names)] = Field(
        description="A count (a, b, c, ...) or a list of names."
    )
    tune: _Grid = Field(
        default={}, description="Values to choose from, by dotted key; the best over tuning_seeds wins."
    )
    tuned_like: str | None = Field(default=None, description="The arm whose chosen values are this one's as well.")
    faults: str | None = Field(default=None, description="The path of a faults.toml, from the study's directory.")
    own: dict[IslandName, OwnTable] = Field(default={}, description="What single islands have of their own.")
    links: tuple[PairLink, ...] = Field(default=(), description="What single pairs have of their own.")
    uneven: UnevenTable = Field(default=UnevenTable(), description="Links that are drawn for every pair.")

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        if self.tune and self.tuned_like is not None:
            broken.append(("tuned_like", repr(self.tuned_like), "either it or tune"))
        refuse_relations(broken)
        return self


class StudyFile(Table):
    """All of a study's file."""

    study: StudyTable
    vary: _Grid = Field(default={}, description="Values by dotted key; every arm is run in every combination.")
    base: SharedTable = SharedTable()
    arm: Annotated[tuple[Arm, ...], AfterValidator(_some)] = Field(description="The ways of training.")

    @model_validator(mode="after")
    def _relations(self) -> Self:
        names = [arm.name for arm in self.arm]
        broken: list[Relation] = [
            (f"arm[{index}].name", repr(name), "a name that no other arm has")
            for index, name in enumerate(names)
            if name in names[:index]
        ]
        refuse_relations(broken)
        return self


@dataclass(frozen=True, eq=False)
class Study:
    """A study, checked whole.

    Attributes:
        path: Its file; paths in it count from the file's directory.
        study: The table ``[study]``.
        vary: Values by dotted key; every arm is run in every combination of them.
        base: What all arms share.
        arms: The ways of training, controls that were added last.
        scripts: Faults by arm, of those that have any.
    """

    path: Path
    study: StudyTable
    vary: Mapping[str, tuple[Scalar, ...]]
    base: SharedTable
    arms: tuple[Arm, ...]
    scripts: Mapping[str, FaultScript]

    @property
    def root(self) -> Path:
        """The directory that paths in the study count from."""
        return self.path.parent.resolve()

    @property
    def cases(self) -> tuple[dict[str, Scalar], ...]:
        """All combinations of what is varied."""
        return _combinations(self.vary)

    @property
    def tune_case(self) -> dict[str, Scalar]:
        """The case in which values are chosen."""
        return {key: self.study.tune_case.get(key, values[-1]) for key, values in self.vary.items()}

    def find(self, name: str | None) -> Arm | None:
        """The arm called ``name``, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def combinations(self, arm: Arm) -> tuple[dict[str, Scalar], ...]:
        """All values that ``arm`` may be run with; one empty combination if it is not tuned."""
        model = self.find(arm.tuned_like) or arm
        return _combinations(model.tune)


def _combinations(grid: Mapping[str, tuple[Scalar, ...]]) -> tuple[dict[str, Scalar], ...]:
    return tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
