"""A run in one self-contained page: ``report.html``, built from its records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.clock import Clock, SystemClock
from isthmus.files import write_text_atomic
from isthmus.observe.charts import charts
from isthmus.observe.journal import RecordDecoder, read_records
from isthmus.observe.page import asset, render_page
from isthmus.observe.runfiles import recorded_paths, standard_paths
from isthmus.observe.series import IslandSeries, collect
from isthmus.observe.summary import summarise_tallies
from isthmus.units import format_duration

REPORT_NAME = "report.html"
_SILENT_S = 60.0
_MAX_EVENTS = 500


def write_report(run_dir: Path, clock: Clock | None = None) -> Path:
    """Write ``report.html`` into a run directory; the run may be over, killed, or still going on.

    Args:
        run_dir: The run's directory, with its baseline, if any, in ``standard`` below it.
        clock: Only its wall clock is read, to date the page and to tell a silent run from a living one.

    Raises:
        DataError: The run directory holds no records.
    """
    decoder = RecordDecoder()
    joint = [collect(name, read_records(path, decoder)) for name, path in recorded_paths(run_dir).items()]
    standard = [collect(name, read_records(path, decoder)) for name, path in standard_paths(run_dir).items()]
    joint.sort(key=lambda island: (island.tally.slot, island.name))
    page = render_report(joint, standard, decoder, (clock or SystemClock()).wall_s())
    return write_text_atomic(run_dir / REPORT_NAME, page)


def render_report(
    joint: Sequence[IslandSeries], standard: Sequence[IslandSeries], decoder: RecordDecoder, now_wall_s: float
) -> str:
    """The page itself.

    Args:
        joint: The run's islands, by slot.
        standard: The baseline's; may be empty.
        decoder: What read the records, for its counts of skipped lines.
        now_wall_s: When the page is made, Unix seconds.
    """
    summary = summarise_tallies(
        {island.name: island.tally for island in joint}, {island.name: island.tally for island in standard}
    )
    return render_page(
        "report.html.j2",
        style=asset("report.css"),
        script=asset("report.js"),
        data=charts(joint, standard),
        values={
            "summary": summary,
            "state": _state(joint, now_wall_s),
            "made_at": now_wall_s,
            "quiet": _quiet(joint, now_wall_s),
            "started_at": min((i.processes[0].start_s for i in joint if i.processes), default=None),
            "starts": _starts(joint, standard),
            "events": _events(joint, standard),
            "skipped": {"unknown": decoder.unknown, "broken": decoder.broken},
        },
    )


def _state(joint: Sequence[IslandSeries], now_wall_s: float) -> dict[str, str]:
    states = {island.tally.state for island in joint}
    alive = [island.tally for island in joint if island.tally.alive]
    silent_s = now_wall_s - max((island.tally.last_wall_s for island in joint), default=0.0)
    if states == {"done"}:
        return {"mark": "good", "text": "complete"}
    if alive and silent_s < _SILENT_S:
        return {"mark": "going", "text": "still going on"}
    if alive:
        return {"mark": "bad", "text": f"no word for {format_duration(silent_s)}: killed, or cut off"}
    if "failed" in states:
        return {"mark": "bad", "text": "failed"}
    return {"mark": "warn", "text": ", ".join(sorted(states))}


def _quiet(joint: Sequence[IslandSeries], now_wall_s: float) -> dict[str, float]:
    """When each island that never said that it ended was last heard, if that is long ago."""
    return {
        island.name: island.tally.last_wall_s
        for island in joint
        if island.tally.alive and now_wall_s - island.tally.last_wall_s >= _SILENT_S
    }


def _starts(joint: Sequence[IslandSeries], standard: Sequence[IslandSeries]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for island in (*joint, *standard):
        if island.tally.started is not None:
            result.append(
                {"island": island.name, "started": island.tally.started, "config": island.tally.started.config}
            )
    return result


def _events(joint: Sequence[IslandSeries], standard: Sequence[IslandSeries]) -> Mapping[str, Any]:
    """The newest events in order; late meetings are on the timeline and only counted here."""
    told = [event for island in (*joint, *standard) for event in island.events if event.sort != "late"]
    told.sort(key=lambda event: event.wall_s)
    return {"left_out": max(len(told) - _MAX_EVENTS, 0), "shown": told[-_MAX_EVENTS:]}
