"""Fair controls: what training in one place comes to, with values chosen as carefully as the study's own.

``standard``
    Plain training in one place: one island, an outer step of 1 without momentum. Its batch and its learning rate are
    chosen over x 0.5, 1 and 2 of what the study has: the sum of the batches of the first arm with several islands (of
    the first arm, if none has), and the base's learning rate.
``one-outer``
    One place with the base's outer step, so that what the outer step gains by itself is not put down to the islands.
    It has that sum as its batch; its learning rate is chosen for itself over the same factors.

Both are made in the case in which values are chosen. An arm of that name takes a control's place; ``controls = false``
adds neither.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from isthmus.config.run import TrainTable
from isthmus.lab.keys import flat_shared
from isthmus.lab.setup import setup_of
from isthmus.lab.study_file import Arm, Study

STANDARD = "standard"
ONE_OUTER = "one-outer"

_FACTORS = (0.5, 1.0, 2.0)
_NOTES = {
    STANDARD: "added control: plain training in one place; batch and learning rate chosen for it",
    ONE_OUTER: "added control: one place with the outer step; learning rate chosen for it",
}


def missing_controls(study: Study) -> tuple[str, ...]:
    """The names of the controls that are to be added."""
    return tuple(name for name in _NOTES if study.study.controls and study.find(name) is None)


def with_controls(study: Study) -> Study:
    """A valid study, with its missing controls."""
    missing = missing_controls(study)
    added = tuple(_control(study, name) for name in missing)
    return dataclasses.replace(study, arms=(*study.arms, *added)) if added else study


def _control(study: Study, name: str) -> Arm:
    batch = _whole_batch(study)
    island: dict[str, Any] = {"island": {"batch_size": batch}}
    if "island.data.shares" in flat_shared(study.base):
        island["data"] = {"shares": (1.0,)}
    tune: dict[str, Any] = _rates(study)
    table: dict[str, Any] = {"name": name, "note": _NOTES[name], "islands": 1, "island": island, "tune": tune}
    if name == STANDARD:
        table["run"] = {"mixing": {"outer_lr": 1.0, "outer_momentum": 0.0}}
        tune["island.island.batch_size"] = tuple(sorted({max(1, round(factor * batch)) for factor in _FACTORS}))
    return Arm.model_validate(table)


def _whole_batch(study: Study) -> int:
    """Sequences of one step of all islands together."""
    model = next((arm for arm in study.arms if len(arm.islands) > 1), study.arms[0])
    setup = setup_of(study, model, study.tune_case, study.combinations(model)[0], seed=0)
    return sum(place.tables["island"]["batch_size"] for place in setup.islands)


def _rates(study: Study) -> dict[str, tuple[float, ...]]:
    """Learning rates to choose from: the islands' own, if the base gives them one, else the run's."""
    settings: dict[str, Any] = {**flat_shared(study.base), **study.tune_case}
    key = "island.island.learning_rate"
    if key not in settings:
        key = "run.train.learning_rate"
    rate = settings.get(key, TrainTable().learning_rate)
    return {key: tuple(float(f"{rate * factor:.6g}") for factor in _FACTORS)}
