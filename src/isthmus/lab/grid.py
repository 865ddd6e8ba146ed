"""The runs of a study: which there are, what each is made of, and which values tuning chose."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from isthmus.lab.setup import Setup, setup_of
from isthmus.lab.study_file import Arm, Study
from isthmus.lab.table import RunRow, Scalar, Stage

__all__ = ["Cell", "Choices", "Setup", "choose", "comparison_cells", "tuning_cells"]

_Items = tuple[tuple[str, Scalar], ...]

_NAME_LENGTH = 120


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        study: The study's name.
        stage: Whether it serves to choose values, or to compare.
        arm: The arm's name.
        case: What the study varies, by dotted key.
        seed: The run's.
        values: What is tuned, by dotted key.
        setup: All its settings.
    """

    study: str
    stage: Stage
    arm: str
    case: dict[str, Scalar]
    seed: int
    values: dict[str, Scalar]
    setup: Setup

    @functools.cached_property
    def name(self) -> str:
        """What it is in words, as a name of a directory; no other cell of its study has it."""
        settings = [f"{key.rpartition('.')[2]}={value}" for key, value in (self.case | self.values).items()]
        text = "-".join([self.stage, self.arm, f"s{self.seed}", *settings])
        return f"{re.sub('[^A-Za-z0-9._=+-]', '_', text)[:_NAME_LENGTH]}-{_digest(self._labels)[:8]}"

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 in hex of what it is called in the table and of everything that its result depends on."""
        return _digest({**self._labels, **self.setup.canonical()})

    @property
    def token_budget(self) -> int:
        """Tokens of all islands."""
        return int(self.setup.run["run"]["token_budget"])

    @property
    def _labels(self) -> dict[str, Any]:
        return {"stage": self.stage, "arm": self.arm, "case": self.case, "seed": self.seed, "values": self.values}


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What tuning has come to.

    Attributes:
        values: By arm, by dotted key; arms are absent while any of their tuning runs has not ended.
        edges: By tuned arm, the keys whose chosen value is the lowest or highest of those tried: a better one may lie
            beyond.
    """

    values: dict[str, dict[str, Scalar]]
    edges: dict[str, tuple[str, ...]]


def tuning_cells(study: Study) -> tuple[Cell, ...]:
    """The runs on which values are chosen: every combination of every tuned arm, on the tuning seeds."""
    return tuple(
        _cell(study, "tune", arm, study.tune_case, values, seed)
        for arm in study.arms
        if arm.tune
        for values in study.combinations(arm)
        for seed in study.study.tuning_seeds
    )


def comparison_cells(study: Study, chosen: Mapping[str, Mapping[str, Scalar]]) -> tuple[Cell, ...]:
    """The runs that are compared, of the arms whose values are known; all arms of a seed before the next seed.

    Args:
        study: The study.
        chosen: Values by arm, as ``choose`` gives them; arms that are not tuned need none.
    """
    return tuple(
        _cell(study, "compare", arm, case, chosen.get(arm.name, {}), seed)
        for seed, case, arm in itertools.product(study.study.seeds, study.cases, study.arms)
        if arm.name in chosen or not _is_tuned(arm)
    )


def choose(study: Study, rows: Iterable[RunRow]) -> Choices:
    """Each arm's values: those with the lowest mean over tuning seeds of the mean over sets of final joint scores.

    A run that diverged loses against all that did not; where all did, the first combination stands. One that failed
    is as one that has not ended.

    Args:
        study: The study.
        rows: Rows of any runs; those of the study's tuning cells count, by their digest.
    """
    ended = {row.digest: row for row in rows if row.outcome != "failed"}
    values: dict[str, dict[str, Scalar]] = {arm.name: {} for arm in study.arms if not _is_tuned(arm)}
    for arm in study.arms:
        best = _best(study, arm, ended) if arm.tune else None
        if best is not None:
            values[arm.name] = best
    edges = {arm.name: _edges(arm, values[arm.name]) for arm in study.arms if arm.tune and arm.name in values}
    values |= {arm.name: values[like] for arm in study.arms if (like := arm.tuned_like) is not None and like in values}
    return Choices(values={arm.name: values[arm.name] for arm in study.arms if arm.name in values}, edges=edges)


def _is_tuned(arm: Arm) -> bool:
    return bool(arm.tune) or arm.tuned_like is not None


def _cell(
    study: Study, stage: Stage, arm: Arm, case: Mapping[str, Scalar], values: Mapping[str, Scalar], seed: int
) -> Cell:
    return _cached_cell(study, stage, arm.name, tuple(case.items()), tuple(values.items()), seed)


@functools.cache
def _cached_cell(study: Study, stage: Stage, name: str, case: _Items, values: _Items, seed: int) -> Cell:
    """The grid is asked for again whenever a run ends, and a digest takes a millisecond."""
    arm = study.find(name)
    assert arm is not None
    setup = setup_of(study, arm, dict(case), dict(values), seed)
    return Cell(study.study.name, stage, name, dict(case), seed, dict(values), setup)


def _best(study: Study, arm: Arm, ended: Mapping[str, RunRow]) -> dict[str, Scalar] | None:
    """The combination with the lowest mean; None while a row of any is missing."""
    cells = [cell for cell in tuning_cells(study) if cell.arm == arm.name]
    if any(cell.digest not in ended for cell in cells):
        return None
    means = [
        statistics.fmean(_bits_per_byte(ended[cell.digest]) for cell in cells if cell.values == values)
        for values in study.combinations(arm)
    ]
    return dict(study.combinations(arm)[means.index(min(means))])


def _bits_per_byte(row: RunRow) -> float:
    """The mean over sets of a run's final joint scores; infinite if it diverged."""
    final = [score.bits_per_byte for score in row.scores if score.final and score.subject == "joint"]
    finite = [bits for bits in final if bits is not None and math.isfinite(bits)]
    return statistics.fmean(finite) if row.outcome == "done" and finite and finite == final else math.inf


def _edges(arm: Arm, chosen: Mapping[str, Scalar]) -> tuple[str, ...]:
    return tuple(
        key
        for key, tried in arm.tune.items()
        if len(tried) > 1
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in tried)
        and chosen[key] in (min(tried), max(tried))
    )


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
