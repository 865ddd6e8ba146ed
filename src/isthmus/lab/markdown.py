"""A study's findings as Markdown: the tables of its report, to be kept beside other results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from isthmus.lab.findings import ArmInfo, Findings, Tuning
from isthmus.lab.standings import Standing
from isthmus.lab.wording import (
    NONE,
    bits_text,
    estimate_text,
    interval_text,
    margin_text,
    p_text,
    percent_text,
    runs_text,
    settings_text,
    share_text,
    value_text,
)
from isthmus.units import format_bytes, format_count, format_duration

FIRST = "lowest slot's own"
"""Names the line of the lowest slot's own weights."""


def markdown(findings: Findings) -> str:
    """The whole text."""
    blocks = [*_head(findings), *_arms(findings), *_results(findings), *_rest(findings)]
    return "\n\n".join(blocks) + "\n"


def _head(findings: Findings) -> Iterator[str]:
    study = findings.study
    yield f"# {_plain(study.name)}"
    if study.note:
        yield _plain(study.note)
    for warning in findings.warnings:
        yield f"> **Note.** {_plain(warning)}"


def _arms(findings: Findings) -> Iterator[str]:
    control = findings.study.control
    yield "## Arms"
    yield _table(
        ("arm", "islands", "tuned", "values", "what it is"),
        (
            (
                f"{arm.name} (control)" if arm.name == control else arm.name,
                ", ".join(map(str, findings.arm_islands(arm.name))) or NONE,
                "tuned" if arm.tuned else "untuned",
                _values(arm) or NONE,
                arm.note,
            )
            for arm in findings.study.arms
        ),
    )
    seeds = ", ".join(map(str, findings.compare_seeds)) or "none yet"
    tuned_on = ", ".join(map(str, findings.tune_seeds))
    yield f"Compared on seeds {seeds}{f'; tuned on seeds {tuned_on}' if tuned_on else ''}."


def _values(arm: ArmInfo) -> str:
    return "; ".join(map(_chosen, arm.tuned)) or settings_text(arm.values)


def _chosen(tuning: Tuning) -> str:
    where = f"{settings_text(tuning.case)}: " if tuning.case else ""
    grid = [f"{key} = {value_text(value)}{_tried(tuning, key)}" for key, value in sorted(tuning.chosen.items())]
    return where + ", ".join(grid)


def _tried(tuning: Tuning, key: str) -> str:
    edge = ", at the edge" if key in tuning.at_edge else ""
    return f" (of {', '.join(map(value_text, tuning.grid.get(key, ())))}{edge})"


def _results(findings: Findings) -> Iterator[str]:
    yield "## Bits per byte"
    standings = findings.standings
    if not standings.entries:
        yield "No run has been compared yet."
        return
    yield (
        "Lower is better. Means over seeds ± standard error; differences to the control are paired over seeds, with the"
        f' 95 % t-interval. "Equivalent" means that the 90 % interval lies within {margin_text(findings.study.margin)}.'
        f" {standings.comparisons} comparisons were made; Holm's p allows for all of them."
    )
    for set_name in standings.sets:
        yield f"### {_plain(set_name)}"
        for case in standings.cases:
            if case:
                yield f"**{_plain(settings_text(case))}**"
            yield _table(
                (
                    "arm",
                    "seeds",
                    "bits per byte",
                    "difference",
                    "95 % interval",
                    "equivalent from",
                    "p",
                    "Holm's p",
                    "claim",
                ),
                map(_standing, standings.of(set_name, case)),
                numbers=range(2, 8),
            )


def _standing(entry: Standing) -> Sequence[str]:
    first = entry.subject == "first"
    found = entry.difference
    cells = (
        f"{entry.arm}, {FIRST}" if first else entry.arm,
        runs_text(entry.runs),
        estimate_text(entry.bits_per_byte),
    )
    if found is None:
        return (*cells, "", "", "", "", "", "control")
    return (
        *cells,
        percent_text(found.mean),
        interval_text(found.low, found.high) or NONE,
        NONE if found.smallest_margin is None else percent_text(found.smallest_margin).lstrip("+"),
        p_text(found.p),
        p_text(found.p_holm),
        "" if first else found.claim,
    )


def _rest(findings: Findings) -> Iterator[str]:
    if findings.costs:
        yield "## Costs"
        yield "Means over the runs that ended."
        yield _table(
            ("arm", "case", "tokens", "CPU a run", "in training steps", "sent", "meetings", "late"),
            (
                (
                    cost.arm,
                    settings_text(cost.case) or NONE,
                    format_count(cost.tokens),
                    format_duration(cost.cpu_s),
                    share_text(cost.train_share),
                    format_bytes(cost.sent_bytes),
                    f"{cost.meetings:,.0f}",
                    share_text(cost.late_share),
                )
                for cost in findings.costs
            ),
            numbers=range(2, 8),
        )
    if findings.trials:
        yield "## Tuning"
        yield "All values tried, with bits per byte on each set."
        yield _tuning(findings)
    if findings.casualties:
        yield "## Runs that did not end"
        yield _table(
            ("stage", "arm", "case", "values", "seed", "outcome", "why"),
            (
                (each.stage, each.arm, settings_text(each.case), settings_text(each.values), str(each.seed),
                 each.outcome, each.detail)
                for each in findings.casualties
            ),
        )  # fmt: skip
    yield from _repeat(findings)


def _tuning(findings: Findings) -> str:
    sets = list(findings.trials[0].scores)
    return _table(
        ("arm", "case", "values", "seeds", *sets, ""),
        (
            (
                trial.arm,
                settings_text(trial.case) or NONE,
                settings_text(trial.values),
                runs_text(trial.runs),
                *(bits_text(trial.scores[name].mean) for name in sets),
                "chosen" if trial.chosen else "",
            )
            for trial in findings.trials
        ),
        numbers=range(4, 4 + len(sets)),
    )


def _repeat(findings: Findings) -> Iterator[str]:
    if not findings.study.commands and not findings.versions:
        return
    yield "## Repeat it"
    if findings.study.commands:
        yield "\n".join(f"    {line}" for command in findings.study.commands for line in command.splitlines())
    if findings.versions:
        yield _plain("; ".join(f"{name} {', '.join(versions)}" for name, versions in findings.versions.items()))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    lines = [[*map(_plain, header)], rule, *([*map(_plain, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = re.sub(r"([\\|*`\[\]&]|<(?=[A-Za-z/!?]))", r"\\\1", text)
    return " ".join(text.split())
