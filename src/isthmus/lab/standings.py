"""Where every arm of a study stands: by case and held-out set, over seeds, and against the control."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from isthmus.errors import DataError
from isthmus.lab.statistics import Difference, Estimate, estimate, holm, paired_difference, undecided
from isthmus.lab.table import RunRow, Scalar, Subject

Case = tuple[tuple[str, Scalar], ...]
"""A case as a key: its dotted keys in order, and their values."""

_SAME = 1e-9


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """How the runs of one arm and case ended.

    Attributes:
        done: Ended with a finite score.
        diverged: A loss or the score at the end was not finite.
        failed: Ended otherwise.
        missing: Not there yet, of the seeds that the study's runs have.
    """

    done: int
    diverged: int
    failed: int
    missing: int

    @property
    def whole(self) -> bool:
        """Whether a mean over those that are done is one over all that were run."""
        return not self.diverged and not self.failed

    def lost(self) -> str:
        """How many of how many did not end, in words."""
        of = self.done + self.diverged + self.failed
        ends = ((self.diverged, "diverged"), (self.failed, "failed"))
        return ", ".join(f"{count} of {of} {word}" for count, word in ends if count)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one case on one held-out set.

    Attributes:
        set_name: The set.
        case: What the study varies, by dotted key.
        arm: The arm's name.
        subject: Whose weights were scored.
        runs: How its runs ended.
        bits_per_byte: Over seeds; no mean unless all runs ended.
        by_seed: Bits per byte of the runs that ended.
        difference: To the control in the same case; None for the control itself.
    """

    set_name: str
    case: dict[str, Scalar]
    arm: str
    subject: Subject
    runs: Runs
    bits_per_byte: Estimate
    by_seed: dict[int, float]
    difference: Difference | None


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """All of a study's.

    Attributes:
        sets: Held-out sets, in the order in which the runs score them.
        cases: In ascending order of what is varied.
        arms: The arms' names.
        comparisons: How many p-values Holm's adjustment takes together.
        entries: By set, case and arm; the lowest slot's own weights follow the joint ones where they differ.
    """

    sets: tuple[str, ...]
    cases: tuple[dict[str, Scalar], ...]
    arms: tuple[str, ...]
    comparisons: int
    entries: tuple[Standing, ...]

    def of(self, set_name: str, case: Mapping[str, Scalar]) -> list[Standing]:
        """The arms' standings on one set in one case."""
        return [entry for entry in self.entries if entry.set_name == set_name and entry.case == case]


def case_of(row: RunRow) -> Case:
    """The row's case as a key."""
    return tuple(sorted(row.case.items()))


def order_of_values(values: Case) -> tuple[tuple[str, bool, Scalar], ...]:
    """Sorts cases, and values tried: numbers before words."""
    return tuple((key, isinstance(value, str), value) for key, value in values)


def in_order(rows: Iterable[RunRow]) -> list[RunRow]:
    """Rows by stage, case, arm, values and seed, whatever their order in the table."""
    return sorted(
        rows,
        key=lambda row: (
            row.stage,
            order_of_values(case_of(row)),
            row.arm,
            order_of_values(tuple(sorted(row.values.items()))),
            row.seed,
        ),
    )


def stand(rows: Iterable[RunRow], *, arms: Sequence[str], control: str, margin: float) -> Standings:
    """Compare all arms with the control.

    Args:
        rows: The table; tuning runs in it are left out.
        arms: The order of the arms; others come after them by name.
        control: The arm that the others are compared with.
        margin: Largest relative difference that counts as none.

    Raises:
        DataError: Two rows are of the same run, or a score is not positive.
        IsthmusError: The package scipy is missing.
    """
    compared = [row for row in in_order(rows) if row.stage == "compare"]
    cells = _cells(compared)
    seeds = sorted({seed for _, _, seed in cells})
    cases = list(dict.fromkeys(map(case_of, compared)))
    named = tuple(dict.fromkeys([*arms, *sorted({row.arm for row in compared})]))
    sets = tuple(dict.fromkeys(score.set_name for row in compared for score in row.scores))
    entries: list[Standing] = []
    for set_name in sets:
        for case in cases:
            by_arm = {arm: [cells.get((arm, case, seed)) for seed in seeds] for arm in named}
            entries += _entries(set_name, case, by_arm, control, margin)
    return _adjusted(
        Standings(sets=sets, cases=tuple(map(dict, cases)), arms=named, comparisons=0, entries=tuple(entries))
    )


def final_scores(rows: Iterable[RunRow | None], set_name: str, subject: Subject) -> dict[int, float]:
    """Bits per byte at the end by seed, of the runs that ended with a finite one.

    Raises:
        DataError: A score is not positive.
    """
    found: dict[int, float] = {}
    for row in rows:
        value = row.final_scores(subject).get(set_name) if row is not None and row.outcome == "done" else None
        if row is None or value is None or not math.isfinite(value):
            continue
        if value <= 0:
            raise DataError(f"a score of {row.arm}, seed {row.seed}, is impossible", got=value, wanted="above 0")
        found[row.seed] = value
    return found


def count_runs(rows: Sequence[RunRow | None], set_name: str) -> Runs:
    """How runs ended, judged by their score on one set; None stands for a run that is not there."""
    done = len(final_scores(rows, set_name, "joint"))
    there = [row for row in rows if row is not None]
    failed = sum(row.outcome == "failed" for row in there)
    diverged = sum(row.outcome == "diverged" or _ended_in_nothing(row, set_name) for row in there)
    return Runs(done=done, diverged=diverged, failed=failed, missing=len(rows) - done - diverged - failed)


def _ended_in_nothing(row: RunRow, set_name: str) -> bool:
    return row.outcome == "done" and any(
        score.final
        and score.subject == "joint"
        and score.set_name == set_name
        and not math.isfinite(math.nan if score.bits_per_byte is None else score.bits_per_byte)
        for score in row.scores
    )


def _cells(rows: Iterable[RunRow]) -> dict[tuple[str, Case, int], RunRow]:
    cells: dict[tuple[str, Case, int], RunRow] = {}
    for row in rows:
        key = (row.arm, case_of(row), row.seed)
        if key in cells:
            raise DataError(
                "two rows of the table are of the same run",
                got=f"{row.arm}, seed {row.seed}, {row.case}",
                mend="Run the study again: it writes its table anew.",
            )
        cells[key] = row
    return cells


def _entries(
    set_name: str, case: Case, by_arm: Mapping[str, Sequence[RunRow | None]], control: str, margin: float
) -> list[Standing]:
    runs = {arm: count_runs(rows, set_name) for arm, rows in by_arm.items()}
    joint = {arm: final_scores(rows, set_name, "joint") for arm, rows in by_arm.items()}
    first = {arm: final_scores(rows, set_name, "first") or joint[arm] for arm, rows in by_arm.items()}
    entries: list[Standing] = []
    for arm in by_arm:
        apart = any(abs(value - first[arm].get(seed, value)) > _SAME for seed, value in joint[arm].items())
        scores_by_subject: dict[Subject, dict[str, dict[int, float]]] = {"joint": joint}
        if apart:
            scores_by_subject["first"] = first
        for subject, scores in scores_by_subject.items():
            entries.append(
                Standing(
                    set_name=set_name,
                    case=dict(case),
                    arm=arm,
                    subject=subject,
                    runs=runs[arm],
                    bits_per_byte=estimate(list(scores[arm].values()))
                    if runs[arm].whole
                    else Estimate(n=runs[arm].done),
                    by_seed=scores[arm],
                    difference=None if arm == control else _difference(scores, runs, arm, control, margin),
                )
            )
    return entries


def _difference(
    scores: Mapping[str, Mapping[int, float]], runs: Mapping[str, Runs], arm: str, control: str, margin: float
) -> Difference:
    common = len(scores[arm].keys() & scores.get(control, {}).keys())
    if not runs[arm].whole:
        return Difference(n=common, claim=undecided(runs[arm].lost()))
    if control in runs and not runs[control].whole:
        return Difference(n=common, claim=undecided(f"control: {runs[control].lost()}"))
    return paired_difference(scores[arm], scores.get(control, {}), margin)


def _adjusted(standings: Standings) -> Standings:
    """With Holm's p beside the raw one; only joint weights count as comparisons."""
    tested = {
        index: entry.difference.p
        for index, entry in enumerate(standings.entries)
        if entry.subject == "joint" and entry.difference is not None and entry.difference.p is not None
    }
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    entries = [
        msgspec.structs.replace(entry, difference=msgspec.structs.replace(entry.difference, p_holm=adjusted[index]))
        if index in adjusted and entry.difference is not None
        else entry
        for index, entry in enumerate(standings.entries)
    ]
    return msgspec.structs.replace(standings, comparisons=len(tested), entries=tuple(entries))
