"""What a study's report draws: scores over tokens, and differences over what the study varies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from isthmus.lab.standings import Standings, case_of, in_order
from isthmus.lab.statistics import estimate
from isthmus.lab.table import RunRow, Scalar


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte of one arm over tokens of all islands: mean and standard error over seeds.

    ``seeds`` of ``runs`` runs ended and are in it.
    """

    arm: str
    seeds: int
    runs: int
    tokens: list[float]
    mean: list[float]
    standard_error: list[float | None]


class ScoreCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The arms' curves on one set in one case."""

    set_name: str
    case: dict[str, Scalar]
    curves: list[Curve]


class DifferenceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's difference to the control, at each value of what is varied; the ends of its 95 % interval beside it."""

    arm: str
    values: list[float]
    mean: list[float]
    low: list[float | None]
    high: list[float | None]


class DifferenceLines(msgspec.Struct, frozen=True, kw_only=True):
    """The arms' differences on one set over the one numeric key that the study varies."""

    set_name: str
    key: str
    lines: list[DifferenceLine]


def score_curves(rows: Iterable[RunRow], standings: Standings) -> list[ScoreCurves]:
    """Curves of the longest case, which is the last of those with the most tokens, by set."""
    compared = [row for row in in_order(rows) if row.stage == "compare"]
    if not compared:
        return []
    case = max(((row.tokens, index) for index, row in enumerate(compared)))[1]
    longest = [row for row in compared if case_of(row) == case_of(compared[case])]
    result: list[ScoreCurves] = []
    for set_name in standings.sets:
        drawn: list[Curve] = []
        for arm in standings.arms:
            runs = [row for row in longest if row.arm == arm]
            curve = _curve(arm, [_points(row, set_name) for row in runs if row.outcome == "done"], len(runs))
            drawn += [curve] if curve.tokens else []
        result.append(ScoreCurves(set_name=set_name, case=longest[0].case, curves=drawn))
    return result


def difference_lines(standings: Standings) -> list[DifferenceLines]:
    """Differences by set; none unless the study varies exactly one key, by numbers."""
    keys = {key for case in standings.cases for key in case}
    if len(keys) != 1 or len(standings.cases) < 2:
        return []
    (key,) = keys
    values = [case.get(key) for case in standings.cases]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return []
    return [
        DifferenceLines(
            set_name=name,
            key=key,
            lines=[line for arm in standings.arms if (line := _difference_line(standings, name, key, arm)).values],
        )
        for name in standings.sets
    ]


def _points(row: RunRow, set_name: str) -> dict[int, float]:
    """The run's scores by tokens; of equal tokens the last counts."""
    return {
        score.run_tokens: score.bits_per_byte
        for score in row.scores
        if score.set_name == set_name and score.subject == "joint" and score.bits_per_byte is not None
    }


def _curve(arm: str, by_seed: Sequence[dict[int, float]], runs: int) -> Curve:
    """Runs may be scored at slightly different tokens: they are read off at those of the run with the fewest scores."""
    scored = [points for points in by_seed if points]
    tokens: list[float] = []
    if scored:
        first, last = max(map(min, scored)), min(map(max, scored))
        tokens = sorted(
            {min(max(at, first), last) for at in min(scored, key=lambda points: (len(points), min(points)))}
        )
    means = [estimate([_read_off(points, at) for points in scored]) for at in tokens]
    return Curve(
        arm=arm,
        seeds=len(scored),
        runs=runs,
        tokens=tokens,
        mean=[each.mean for each in means if each.mean is not None],
        standard_error=[each.standard_error for each in means],
    )


def _read_off(points: dict[int, float], at: float) -> float:
    """The value of the straight line through the points around ``at``, which lies among them."""
    before = max(tokens for tokens in points if tokens <= at)
    after = min(tokens for tokens in points if tokens >= at)
    if before == after:
        return points[before]
    share = (at - before) / (after - before)
    return points[before] + share * (points[after] - points[before])


def _difference_line(standings: Standings, set_name: str, key: str, arm: str) -> DifferenceLine:
    line = DifferenceLine(arm=arm, values=[], mean=[], low=[], high=[])
    for entry in standings.entries:
        found = entry.difference
        if (
            (entry.set_name, entry.arm, entry.subject) != (set_name, arm, "joint")
            or found is None
            or found.mean is None
        ):
            continue
        line.values.append(float(entry.case[key]))
        line.mean.append(found.mean)
        line.low.append(found.low)
        line.high.append(found.high)
    return line
