"""Studies of a few lines, for tests that run nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.grid import Setup, comparison_cells
from isthmus.lab.study import Study, load_study

TOP = """
[study]
name = "small"
seeds = [11, 12]
tuning_seeds = [1, 2]
"""

PLAIN = """
[study]
name = "small"
control = "two"
controls = false
seeds = [11, 12]
tuning_seeds = [1, 2]
"""
"""Without added controls."""

VARY = """
[vary]
"run.run.token_budget" = [1000, 2000]
"""

BASE = """
[base]
step_s = 2.0
[base.run.model]
preset = "micro"
[base.run.mixing]
window_steps = 20
[base.island.island]
batch_size = 8
[base.link]
rtt_ms = 180
"""

TWO = """
[[arm]]
name = "two"
islands = 2
"""


def write(directory: Path, *parts: str) -> Path:
    path = directory / "study.toml"
    path.write_text("".join(parts), encoding="utf-8")
    return path


def study_of(directory: Path, *parts: str) -> Study:
    return load_study(write(directory, *parts))


def refusal(directory: Path, *parts: str) -> list[str]:
    """What is said of a study that is refused, without the path of its file."""
    path = write(directory, *parts)
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert caught.value.exit_code == 2
    head, *lines = str(caught.value).split("\n")
    assert head.endswith("in the files of the study:")
    assert head.split()[0] == str(len(lines))
    return [line.strip().removeprefix(f"{path}: ") for line in lines]


def setup_of(directory: Path, *parts: str, seed: int = 11) -> Setup:
    """The settings of the first arm in the first case."""
    study = study_of(directory, *parts)
    cells = comparison_cells(study, {arm.name: study.combinations(arm)[0] for arm in study.arms})
    return next(cell.setup for cell in cells if cell.seed == seed and cell.arm == study.arms[0].name)
