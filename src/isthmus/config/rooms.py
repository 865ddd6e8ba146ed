"""What a run's files say of models, codecs and optimizers, checked against the rooms that make them.

They load torch, so they are imported only when a run's files are checked.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.config.problems import Problem, nearest, raise_problems, shown
from isthmus.config.run import OWN_MODEL, ModelTable, RunConfig
from isthmus.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.model import ModelConfig


def resolve_model(table: ModelTable) -> ModelConfig:
    """The preset with the table's own values in it.

    Raises:
        ConfigError: There is no such preset or field, a value does not fit, or the model is the loop's own.
    """
    if table.preset == OWN_MODEL:
        what = "this run's model is brought by its own training loop"
        raise ConfigError(what, got=f'model.preset = "{OWN_MODEL}"', mend="Run that loop, or choose a preset.")
    problems: list[Problem] = []
    model = _model(Path("run.toml"), table, problems)
    raise_problems(problems)
    assert model is not None
    return model


def room_problems(path: Path, run: RunConfig) -> list[Problem]:
    """What is wrong with the model, the codecs and the optimizer of the run file at ``path``."""
    problems = _codec_problems(path, run) + optimizer_problems(path, "train.optimizer", run.train.optimizer)
    if run.model.preset == OWN_MODEL:
        for key in run.model.overrides:
            problems.append(Problem(path, f"model.{key}", f'the preset "{OWN_MODEL}" has no fields'))
        return problems
    model = _model(path, run.model, problems)
    if model is not None and run.train.sequence_length > model.max_seq_len:
        what = f"got {run.train.sequence_length}; wanted at most the model's max_seq_len, {model.max_seq_len}"
        problems.append(Problem(path, "train.sequence_length", what))
    return problems


def optimizer_problems(path: Path, key: str, name: str | None) -> list[Problem]:
    """What is wrong with the optimizer called ``name`` at ``key`` of the file at ``path``; None is always right."""
    from isthmus.optim import OPTIMIZERS

    if name is None or name in OPTIMIZERS:
        return []
    return [Problem(path, key, f"there is no optimizer {shown(name)}", nearest(name, OPTIMIZERS))]


def _model(path: Path, table: ModelTable, problems: list[Problem]) -> ModelConfig | None:
    from isthmus.model import PRESETS

    if table.preset not in PRESETS:
        what = f"there is no preset {shown(table.preset)}"
        problems.append(Problem(path, "model.preset", what, nearest(table.preset, [*PRESETS, OWN_MODEL])))
        return None
    preset = PRESETS[table.preset]
    known = len(problems)
    values = {name: _override(path, preset, name, value, problems) for name, value in table.overrides.items()}
    if len(problems) > known:
        return None
    try:
        return dataclasses.replace(preset, **values)
    except ConfigError as error:
        problems.append(Problem(path, "model", str(error)))
        return None


def _override(path: Path, preset: ModelConfig, name: str, value: Any, problems: list[Problem]) -> Any:
    fields = [field.name for field in dataclasses.fields(preset)]
    if name not in fields:
        problems.append(Problem(path, f"model.{name}", "the key is unknown", nearest(name, ["preset", *fields])))
        return None
    kind = type(getattr(preset, name))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        problems.append(Problem(path, f"model.{name}", f"got {shown(value)}; wanted a value of type {kind.__name__}"))
    return value


def _codec_problems(path: Path, run: RunConfig) -> list[Problem]:
    from isthmus.codec import CODECS, FOLLOW_CODEC

    wanted = {"codec": [*CODECS], "embedding_codec": [*CODECS, FOLLOW_CODEC]}
    return [
        Problem(path, f"mixing.{key}", f"there is no codec {shown(name)}", nearest(name, known))
        for key, known in wanted.items()
        if (name := getattr(run.mixing, key)) not in known
    ]
