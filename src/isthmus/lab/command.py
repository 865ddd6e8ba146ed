"""What ``isthmus lab`` does: run a study, list its runs, report it, or be the worker of one run."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from isthmus.errors import ConfigError
from isthmus.lab.findings import ArmInfo, StudyInfo, Tuning
from isthmus.lab.report import write_study_report
from isthmus.lab.runner import CACHE_NAME, Runner
from isthmus.lab.setup import merged
from isthmus.lab.statistics import require_scipy
from isthmus.lab.study import load_study
from isthmus.lab.study_file import Arm, Study
from isthmus.lab.worker import work

DEFAULT_MARGIN = 0.005
"""Relative; what counts as no difference where the study does not say."""


def run_study(path: Path, out: Path | None, *, jobs: int | None, only_report: bool) -> int:
    """Run what has not been run yet, and write table and report.

    Returns:
        The exit code: 1 if a run failed.
    """
    require_scipy()
    runner = _runner(path, out)
    console = Console()
    if not only_report:
        try:
            runner.run(jobs or len(os.sched_getaffinity(0)), console)
        finally:
            _report(runner, console)
    elif runner.rows:
        runner.write()
        _report(runner, console)
    else:
        mend = "Run it first, or name its directory with --out."
        raise ConfigError("no run of this study has ended", got=str(runner.out), mend=mend)
    return int(bool(runner.failed) or any(row.outcome == "failed" for row in runner.rows.values()))


def list_runs(path: Path, out: Path | None) -> int:
    """Print every run that is known by now, and what became of it."""
    runner, console = _runner(path, out), Console()
    lines = [f"{runner.outcome(cell):9} {cell.name}" for cell in runner.cells]
    waiting = runner.num_cells - len(lines)
    if waiting:
        lines.append(f"and {waiting} that compare, when values have been chosen")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 0


def work_on(path: Path, out: Path | None, name: str) -> int:
    """Be the worker of the run called ``name``."""
    runner = _runner(path, out)
    cell = next((cell for cell in runner.cells if cell.name == name), None)
    if cell is None:
        raise ConfigError("the study has no such run", got=name, mend="Was its file changed meanwhile? Start it again.")
    return work(cell, runner.folder(cell), runner.out / CACHE_NAME)


def study_info(study: Study, runner: Runner) -> StudyInfo:
    """A study as its report presents it."""
    return StudyInfo(
        name=study.study.name,
        control=study.study.control,
        margin=study.study.margin or DEFAULT_MARGIN,
        arms=tuple(_arm_info(study, arm, runner) for arm in study.arms),
        expected_runs=runner.num_cells,
        note=study.study.note,
        commands=(f"isthmus lab {study.path}",),
    )


def _arm_info(study: Study, arm: Arm, runner: Runner) -> ArmInfo:
    choices = runner.choices
    model = study.find(arm.tuned_like) or arm
    tuned: tuple[Tuning, ...] = ()
    if model.tune and arm.name in choices.values:
        tuning = Tuning(
            grid={key: tuple(values) for key, values in model.tune.items()},
            chosen=choices.values[arm.name],
            at_edge=choices.edges.get(model.name, ()),
        )
        tuned = (tuning,)
    elsewhere = {key for other in study.arms for key in other.tune}
    settings = merged(study, arm, study.tune_case, {})
    values = {} if model.tune else {key: settings[key] for key in sorted(elsewhere) if key in settings}
    return ArmInfo(name=arm.name, note=arm.note, tuned=tuned, values=values)


def _runner(path: Path, out: Path | None) -> Runner:
    study = load_study(path)
    return Runner(study, path, out or Path("runs/lab") / study.study.name)


def _report(runner: Runner, console: Console) -> None:
    if runner.rows:
        where = write_study_report(runner.out, study_info(runner.study, runner), list(runner.rows.values()))
        console.print(f"Report: {where}", highlight=False, markup=False, soft_wrap=True)
