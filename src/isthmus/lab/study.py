"""A study: ways of training (*arms*), run in the same *cases* with the same seeds, and compared with one of them.

Its file is TOML::

    [study]
    name = "first"
    seeds = [101, 102, 103]                 # every arm is run with each of them in every case
    tuning_seeds = [1, 2]                   # values are chosen on these
    [vary]                                  # every combination is a case
    "run.run.token_budget" = [600_000, 1_200_000]
    [base.run.model]                        # tables of run.toml that all arms share
    preset = "micro"
    [base.island.island]                    # tables of island.toml that all islands share
    batch_size = 8
    [base.link]                             # all links
    rtt_ms = 180
    [[arm]]                                 # an arm has the same keys as [base] for what differs there
    name = "two"
    islands = 2
    tune."run.train.learning_rate" = [2e-3, 4e-3, 8e-3]
    [arm.own.b]                             # one island's own
    step_s = 3.0

``isthmus.lab.study_file`` describes every key; keys of [vary], tune and tune_case are ``run.TABLE.KEY``,
``island.TABLE.KEY`` (of all islands), ``link.KEY`` and ``step_s``. What is set later wins: [base], the case, the arm,
its tuned values, an island's own. Nothing is run if anything is wrong anywhere in the grid. ``isthmus.lab.controls``
says which arms are added.
"""

from __future__ import annotations

from pathlib import Path

from isthmus.config.faults import FaultScript, read_faults
from isthmus.config.problems import Problem, raise_problems, read_table
from isthmus.lab.checks import name_problems
from isthmus.lab.controls import missing_controls, with_controls
from isthmus.lab.malformed import malformed
from isthmus.lab.study_file import Arm, Study, StudyFile
from isthmus.lab.trials import trial_problems

__all__ = ["Arm", "Study", "load_study"]

_WHERE = "the files of the study"


def load_study(path: Path) -> Study:
    """Read a study with its fault scripts, check it whole, and add its controls.

    Raises:
        ConfigError: It lists everything that is wrong in any combination that would be run.
    """
    problems: list[Problem] = []
    file = read_table(path, StudyFile, problems, mend="A study is a TOML file; examples/study.toml is one.")
    if file is None:
        raise_problems(malformed(path, problems), where=_WHERE)
    assert file is not None
    scripts = _read_scripts(path, file, problems)
    study = Study(path, file.study, file.vary, file.base, file.arm, scripts)
    problems += [*name_problems(study), *trial_problems(study)]
    raise_problems(list(dict.fromkeys(problems)), where=_WHERE)
    whole = with_controls(study)
    raise_problems(_control_problems(study, whole), where=_WHERE)
    return whole


def _read_scripts(path: Path, file: StudyFile, problems: list[Problem]) -> dict[str, FaultScript]:
    scripts = {}
    for arm in file.arm:
        if arm.faults is not None:
            script_path = path.parent / arm.faults
            script = read_faults(script_path, problems, mend=f"The arm {arm.name} has it as its faults.")
            if script is not None:
                problems += script.unknown_islands(script_path, arm.islands, whose=f"the arm {arm.name}")
                scripts[arm.name] = script
    return scripts


def _control_problems(study: Study, whole: Study) -> list[Problem]:
    """What is wrong only with controls that were added, and with arms that are tuned like them."""
    names = ", ".join(missing_controls(study))
    mend = f"The lab has added {names}: write arms of these names, or controls = false."
    return [Problem(each.file, each.key, each.what, each.mend or mend) for each in trial_problems(whole)]
