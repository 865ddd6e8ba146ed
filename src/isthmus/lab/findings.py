"""All that a study's report says, as one value: what was compared, where it stands, what it cost, what to doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from isthmus.lab.curves import DifferenceLines, ScoreCurves, difference_lines, score_curves
from isthmus.lab.standings import (
    Runs,
    Standings,
    case_of,
    count_runs,
    final_scores,
    in_order,
    stand,
)
from isthmus.lab.statistics import Estimate, estimate
from isthmus.lab.table import RunRow, Scalar
from isthmus.lab.wording import settings_text, value_text


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm's values were chosen.

    Attributes:
        grid: Tried values by dotted key.
        chosen: The chosen ones.
        at_edge: Keys whose chosen value is the least or the greatest tried.
        case: The case that they were chosen in and hold for; empty if for all.
    """

    grid: dict[str, tuple[Scalar, ...]]
    chosen: dict[str, Scalar]
    at_edge: tuple[str, ...] = ()
    case: dict[str, Scalar] = {}


class ArmInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An arm as the report presents it.

    Attributes:
        name: The arm's name.
        note: What it is, in a sentence.
        tuned: How its values were chosen; empty if it was not tuned.
        values: Of an untuned arm: what it has where others were tuned, by dotted key.
    """

    name: str
    note: str = ""
    tuned: tuple[Tuning, ...] = ()
    values: dict[str, Scalar] = {}


class StudyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A study as its report presents it.

    Attributes:
        name: The study's name.
        control: The arm that the others are compared with.
        margin: Largest relative difference that counts as none, such as 0.005.
        arms: In the order of the report.
        expected_runs: How many rows a finished table has, tuning included.
        note: What is asked, in a sentence.
        commands: What repeats the study.
    """

    name: str
    control: str
    margin: float
    arms: tuple[ArmInfo, ...]
    expected_runs: int
    note: str = ""
    commands: tuple[str, ...] = ()


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What runs of one arm in one case took; means over those that ended, None where there is nothing to divide by.

    Attributes:
        arm: The arm's name.
        case: The case.
        islands: Number of islands.
        tokens: Tokens of all islands.
        runs: Runs that ended.
        cpu_s: Processor time of a run.
        train_share: The part of it inside training steps.
        virtual_s: Virtual seconds of a run.
        sent_bytes: Sent by all islands of a run.
        meetings: Completed meetings of a run, each counted at both ends.
        late_share: The part of them that came late.
    """

    arm: str
    case: dict[str, Scalar]
    islands: int
    tokens: float
    runs: int
    cpu_s: float
    train_share: float | None
    virtual_s: float
    sent_bytes: float
    meetings: float
    late_share: float | None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One set of values that tuning tried, with its scores by held-out set; no mean unless all its runs ended."""

    arm: str
    case: dict[str, Scalar]
    values: dict[str, Scalar]
    runs: Runs
    scores: dict[str, Estimate]
    chosen: bool


class Casualty(msgspec.Struct, frozen=True, kw_only=True):
    """A run that did not end."""

    stage: str
    arm: str
    case: dict[str, Scalar]
    values: dict[str, Scalar]
    seed: int
    outcome: str
    detail: str


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in the report; ``report.json`` is this."""

    study: StudyInfo
    runs: int
    missing: int
    compare_seeds: tuple[int, ...]
    tune_seeds: tuple[int, ...]
    warnings: tuple[str, ...]
    standings: Standings
    curves: list[ScoreCurves]
    differences: list[DifferenceLines]
    costs: list[Cost]
    trials: list[Trial]
    casualties: list[Casualty]
    versions: dict[str, tuple[str, ...]]

    def arm_islands(self, arm: str) -> tuple[int, ...]:
        """The numbers of islands that the arm's runs had."""
        return tuple(sorted({cost.islands for cost in self.costs if cost.arm == arm}))


def find(study: StudyInfo, table: Iterable[RunRow]) -> Findings:
    """Everything that a table tells of a study.

    Args:
        study: The study.
        table: Its rows in any order, perhaps not all of them yet.

    Raises:
        DataError: Two rows are of the same run, or a score is not positive.
        IsthmusError: The package scipy is missing.
    """
    rows = in_order(table)
    compared = [row for row in rows if row.stage == "compare"]
    tuning = [row for row in rows if row.stage == "tune"]
    arms = [arm.name for arm in study.arms]
    standings = stand(compared, arms=arms, control=study.control, margin=study.margin)
    tuned_sets = tuple(dict.fromkeys(score.set_name for row in tuning for score in row.scores))
    missing = max(0, study.expected_runs - len(rows))
    return Findings(
        study=study,
        runs=len(rows),
        missing=missing,
        compare_seeds=_seeds(compared),
        tune_seeds=_seeds(tuning),
        warnings=tuple(_warnings(study, compared, tuning, missing)),
        standings=standings,
        curves=score_curves(compared, standings),
        differences=difference_lines(standings),
        costs=_costs(compared, standings),
        trials=_trials(study, tuning, standings.sets or tuned_sets),
        casualties=[_casualty(row) for row in rows if row.outcome != "done"],
        versions=_versions(rows),
    )


def _seeds(rows: Sequence[RunRow]) -> tuple[int, ...]:
    return tuple(sorted({row.seed for row in rows}))


def _warnings(study: StudyInfo, compared: Sequence[RunRow], tuning: Sequence[RunRow], missing: int) -> Iterator[str]:
    if missing:
        yield f"Not finished: {missing} of {study.expected_runs} runs are missing; the figures leave them out."
    if not any(arm.tuned for arm in study.arms if arm.name == study.control):
        yield f"The control, {study.control}, was not tuned: an arm may look better only because its values suit it."
    for arm in study.arms:
        for each in arm.tuned:
            where = f" ({settings_text(each.case)})" if each.case else ""
            for key in each.at_edge:
                tried = ", ".join(map(value_text, each.grid.get(key, ())))
                yield (
                    f"{arm.name}{where}: the chosen {key} = {value_text(each.chosen[key])} lies at the edge of its grid"
                    f" ({tried}): a better value may lie beyond it."
                )
    overlap = sorted({row.seed for row in compared} & {row.seed for row in tuning})
    if overlap:
        named = ", ".join(map(str, overlap))
        yield f"Seeds {named} served both to tune and to compare: tuned arms look better than they are."
    if lost := [row for row in compared if row.outcome != "done"]:
        yield (
            f"{len(lost)} of {len(compared)} comparing runs did not end: their arms have no mean in those cases,"
            " for it would be one of the survivors only."
        )


def _costs(rows: Sequence[RunRow], standings: Standings) -> list[Cost]:
    costs: list[Cost] = []
    for arm in standings.arms:
        for case in standings.cases:
            runs = [row for row in rows if row.arm == arm and row.case == case and row.outcome == "done"]
            if runs:
                costs.append(_cost(arm, case, runs))
    return costs


def _cost(arm: str, case: dict[str, Scalar], runs: Sequence[RunRow]) -> Cost:
    n = len(runs)
    cpu_s, meetings = sum(row.cpu_s for row in runs), sum(row.meetings for row in runs)
    return Cost(
        arm=arm,
        case=case,
        islands=max(row.islands for row in runs),
        tokens=sum(row.tokens for row in runs) / n,
        runs=n,
        cpu_s=cpu_s / n,
        train_share=sum(row.train_cpu_s for row in runs) / cpu_s if cpu_s else None,
        virtual_s=sum(row.virtual_s for row in runs) / n,
        sent_bytes=sum(row.sent_bytes for row in runs) / n,
        meetings=meetings / n,
        late_share=sum(row.late for row in runs) / meetings if meetings else None,
    )


def _trials(study: StudyInfo, rows: Sequence[RunRow], sets: Sequence[str]) -> list[Trial]:
    tried: dict[tuple[object, ...], list[RunRow]] = {}
    for row in rows:
        tried.setdefault((row.arm, case_of(row), tuple(sorted(row.values.items()))), []).append(row)
    names = list(dict.fromkeys([*(arm.name for arm in study.arms), *(row.arm for row in rows)]))
    trials = [_trial(study, runs, sets) for runs in tried.values()]
    return sorted(trials, key=lambda trial: names.index(trial.arm))


def _trial(study: StudyInfo, runs: Sequence[RunRow], sets: Sequence[str]) -> Trial:
    row = runs[0]
    scores: dict[str, Estimate] = {}
    counts = {name: count_runs(runs, name) for name in sets or ("",)}
    for name in sets:
        found = final_scores(runs, name, "joint")
        scores[name] = estimate(list(found.values())) if counts[name].whole else Estimate(n=len(found))
    return Trial(
        arm=row.arm,
        case=row.case,
        values=row.values,
        runs=min(counts.values(), key=lambda count: count.done),
        scores=scores,
        chosen=any(
            _holds_for(each.case, row.case) and each.chosen.items() <= row.values.items()
            for arm in study.arms
            if arm.name == row.arm
            for each in arm.tuned
        ),
    )


def _holds_for(tuned: Mapping[str, Scalar], case: Mapping[str, Scalar]) -> bool:
    return all(case.get(key, value) == value for key, value in tuned.items())


def _casualty(row: RunRow) -> Casualty:
    return Casualty(
        stage=row.stage,
        arm=row.arm,
        case=row.case,
        values=row.values,
        seed=row.seed,
        outcome=row.outcome,
        detail=row.detail,
    )


def _versions(rows: Sequence[RunRow]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        for name, version in row.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: tuple(sorted(versions)) for name, versions in sorted(found.items())}
