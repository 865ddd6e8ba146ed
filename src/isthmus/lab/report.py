"""A study in one self-contained page, with the same as Markdown and as JSON beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from isthmus.clock import Clock, SystemClock
from isthmus.files import write_text_atomic
from isthmus.lab import wording
from isthmus.lab.findings import ArmInfo, Findings, StudyInfo, Tuning, find
from isthmus.lab.markdown import FIRST, markdown
from isthmus.lab.standings import Standing
from isthmus.lab.statistics import Difference
from isthmus.lab.table import RunRow
from isthmus.observe.page import asset, render_page

__all__ = ["ArmInfo", "StudyInfo", "Tuning", "render_study", "write_study_report"]

PAGE_NAME = "report.html"
TEXT_NAME = "report.md"
JSON_NAME = "report.json"

_PACKAGE = "isthmus.lab"
_BAR_WIDTH = 160.0
_MARGINS_SHOWN = (2.0, 6.0)


def write_study_report(
    out_dir: Path, study_info: StudyInfo, rows: Iterable[RunRow], clock: Clock | None = None
) -> Path:
    """Write ``report.html``, and beside it ``report.md`` with its tables and ``report.json`` with all figures.

    Args:
        out_dir: A directory; made if it is not there.
        study_info: What the study is.
        rows: Its table in any order, perhaps not all of it yet.
        clock: Only its wall clock is read, to date the page.

    Returns:
        Where the page is.

    Raises:
        DataError: Two rows are of the same run, or a score is not positive.
        IsthmusError: The package scipy is missing.
    """
    findings = find(study_info, rows)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out_dir / JSON_NAME, msgspec.json.format(msgspec.json.encode(findings), indent=1).decode() + "\n")
    write_text_atomic(out_dir / TEXT_NAME, markdown(findings))
    return write_text_atomic(out_dir / PAGE_NAME, render_study(findings, (clock or SystemClock()).wall_s()))


def render_study(findings: Findings, now_wall_s: float) -> str:
    """The page itself.

    Args:
        findings: What it says.
        now_wall_s: When it is made, Unix seconds.
    """
    colours = _colours(findings)
    return render_page(
        "study.html.j2",
        style=asset("report.css") + asset("study.css", _PACKAGE),
        script=asset("study.js", _PACKAGE),
        data=_drawn(findings, colours),
        values={
            "found": findings,
            "study": findings.study,
            "standings": findings.standings,
            "colours": colours,
            "first": FIRST,
            "reach": {name: _reach(findings, name) for name in findings.standings.sets},
            "made_at": now_wall_s,
        },
        filters={
            "bar": _bar,
            "bits": wording.bits_text,
            "chance": wording.chance_text,
            "interval": lambda found: wording.interval_text(found.low, found.high),
            "mark": _mark,
            "margin": wording.margin_text,
            "percent": wording.percent_text,
            "runs": wording.runs_text,
            "settings": wording.settings_text,
            "share": wording.share_text,
            "value": wording.value_text,
        },
        package=_PACKAGE,
    )


def _colours(findings: Findings) -> dict[str, str]:
    """A style sheet's colour for every arm; the control is grey."""
    control = findings.study.control
    others = [arm for arm in findings.standings.arms if arm != control]
    return {arm: f"s{index % 6}" for index, arm in enumerate(others)} | {control: "base"}


def _drawn(findings: Findings, colours: dict[str, str]) -> dict[str, Any]:
    arms = findings.standings.arms
    return {
        "control": findings.study.control,
        "margin": findings.study.margin,
        "arms": {arm: {"colour": colours[arm], "again": arms.index(arm) >= 6} for arm in arms},
        "sets": [
            {
                "name": name,
                "curves": next((each.curves for each in findings.curves if each.set_name == name), []),
                "case": wording.settings_text(findings.curves[0].case) if findings.curves else "",
                "differences": next((each for each in findings.differences if each.set_name == name), None),
            }
            for name in findings.standings.sets
        ],
    }


def _reach(findings: Findings, set_name: str) -> float:
    """How large a difference the bars of a set's table show to either side; beyond it they end in an arrow."""
    entries = [entry for entry in findings.standings.entries if entry.set_name == set_name]
    found = [entry.difference for entry in entries if entry.difference is not None]
    ends = [abs(end) for each in found for end in (each.low, each.mean, each.high) if end is not None]
    least, most = (margins * findings.study.margin for margins in _MARGINS_SHOWN)
    return min(max([*ends, least]), most)


def _bar(found: Difference, reach: float, margin: float) -> dict[str, float | bool | None]:
    """Where an interval's parts lie on a bar, from its left end."""

    def place(share: float | None) -> float | None:
        return None if share is None else round(_BAR_WIDTH / 2 * (1 + max(-1.0, min(1.0, share / reach))), 1)

    return {
        "mean": place(found.mean),
        "low": place(found.low),
        "high": place(found.high),
        "margin_low": place(-margin),
        "margin_high": place(margin),
        "beyond_left": min(found.mean or 0.0, found.low or 0.0) < -reach,
        "beyond_right": max(found.mean or 0.0, found.high or 0.0) > reach,
        "outside": abs(found.mean or 0.0) > reach,
    }


def _mark(entry: Standing) -> str:
    """How a claim is coloured."""
    if entry.difference is None or entry.difference.mean is None:
        return "warn"
    for word, mark in (("better", "good"), ("worse", "bad"), ("equivalent", "going")):
        if entry.difference.claim.startswith(word):
            return mark
    return "open"
