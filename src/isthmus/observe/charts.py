"""The series of a whole run as plain JSON values, in the shape that the report's script draws.

Times are seconds since the run began (the baseline's since its own beginning), rates are Mbit/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.observe.records import Evaluation, Meeting
from isthmus.observe.series import MAX_POINTS, IslandSeries, busiest, smoothed, thinned

_MAX_BARS = 2 * MAX_POINTS
_MBIT_PER_BYTE = 8e-6
_WINDOW_S = 0.1


def charts(joint: Sequence[IslandSeries], standard: Sequence[IslandSeries]) -> dict[str, Any]:
    """Everything the page draws.

    Args:
        joint: The run's islands, by slot.
        standard: The baseline's.
    """
    origin_s, standard_origin_s = _origin_s(joint), _origin_s(standard)
    timed = [(island, origin_s) for island in joint] + [(island, standard_origin_s) for island in standard]
    baseline = [False] * len(joint) + [True] * len(standard)
    return {
        "islands": [
            {"name": island.name, "baseline": is_baseline}
            for (island, _), is_baseline in zip(timed, baseline, strict=True)
        ],
        "loss_by_tokens": [_loss_by_tokens(island) for island, _ in timed],
        "loss_by_time": [_loss_by_time(island, start_s) for island, start_s in timed],
        "evaluations": _evaluations(timed),
        "link": [_link(island, origin_s) for island in joint if island.windows and island.processes],
        "timeline": _timeline(joint, origin_s),
        "fragments": max((island.tally.started.num_fragments for island in joint if island.tally.started), default=1),
    }


def _origin_s(islands: Sequence[IslandSeries]) -> float:
    return min((island.processes[0].start_s for island in islands if island.processes), default=0.0)


def _loss_by_tokens(island: IslandSeries) -> dict[str, Any]:
    points = island.lineage()
    return _line([point.progress_tokens for point in points], [point.loss_nats for point in points])


def _loss_by_time(island: IslandSeries, origin_s: float) -> dict[str, Any]:
    xs = [point.wall_s - origin_s for point in island.losses]
    return _line(xs, [point.loss_nats for point in island.losses])


def _line(xs: Sequence[float], ys: Sequence[float | None]) -> dict[str, Any]:
    thin_xs, thin_ys = thinned(xs, ys)
    return {
        "x": [round(x, 2) for x in thin_xs],
        "y": _rounded(thin_ys, 4),
        "smooth": _rounded(smoothed(thin_ys), 4),
    }


def _rounded(values: Sequence[float | None], digits: int) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]


def _evaluations(timed: Sequence[tuple[IslandSeries, float]]) -> list[dict[str, Any]]:
    by_set: dict[str, list[Evaluation]] = {}
    for island, _ in timed:
        for evaluation in island.evaluations:
            by_set.setdefault(evaluation.set_name, []).append(evaluation)
    return [
        {
            "set": name,
            "xz": next((e.xz_bits_per_byte for e in found if e.xz_bits_per_byte is not None), None),
            "by_tokens": [_scores(island, name, start_s)[0] for island, start_s in timed],
            "by_time": [_scores(island, name, start_s)[1] for island, start_s in timed],
        }
        for name, found in sorted(by_set.items())
    ]


def _scores(island: IslandSeries, name: str, origin_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The island's scores on one set by run tokens and by time; of equal tokens the newest counts."""
    found = [evaluation for evaluation in island.evaluations if evaluation.set_name == name]
    newest = {evaluation.run_tokens: evaluation.bits_per_byte for evaluation in found}
    tokens = sorted(newest)
    by_time = _line([e.wall_s - origin_s for e in found], [e.bits_per_byte for e in found])
    return _line(tokens, [newest[count] for count in tokens]), by_time


def _link(island: IslandSeries, origin_s: float) -> dict[str, Any]:
    sent = [(at_s, sent) for at_s, sent, _ in island.windows]
    received = [(at_s, received) for at_s, _, received in island.windows]
    starts_s, sent_rates, bin_s = busiest(sent, island.processes, _WINDOW_S)
    _, received_rates, _ = busiest(received, island.processes, _WINDOW_S)
    limit = island.tally.started.rate_limit_bytes_per_s if island.tally.started else None
    stride = max(len(island.published) // MAX_POINTS, 1)
    return {
        "island": island.name,
        "bin_s": bin_s,
        "limit": None if limit is None else limit * _MBIT_PER_BYTE,
        "x": [round(start_s - origin_s, 3) for start_s in starts_s],
        "sent": _rounded([None if r is None else r * _MBIT_PER_BYTE for r in sent_rates], 5),
        "received": _rounded([None if r is None else r * _MBIT_PER_BYTE for r in received_rates], 5),
        "publications": [
            {
                "start": round(p.wall_s - p.seconds - origin_s, 3),
                "end": round(p.wall_s - origin_s, 3),
                "fragment": p.fragment,
                "final": p.final,
            }
            for p in island.published[::stride]
        ],
    }


def _timeline(joint: Sequence[IslandSeries], origin_s: float) -> dict[str, Any]:
    """One lane per edge and fragment, split in two: above the lower slot's end, below the other's."""
    order = {island.name: index for index, island in enumerate(joint)}
    keys = sorted({_lane_key(island.name, m, order) for island in joint for m in island.meetings})
    lanes = {key: index for index, key in enumerate(keys)}
    total = sum(len(island.meetings) for island in joint)
    stride = max(-(-total // _MAX_BARS), 1)
    bars = [
        _bar(island, meeting, lanes[_lane_key(island.name, meeting, order)], order, origin_s)
        for island in joint
        for index, meeting in enumerate(island.meetings)
        if index % stride == 0
    ]
    return {
        "lanes": [{"edge": [key[1], key[2]], "fragment": key[3]} for key in keys],
        "bars": bars,
        "one_in": stride,
        "down": _down(joint, lanes, order, origin_s),
    }


_LaneKey = tuple[tuple[int, int], str, str, int]


def _lane_key(name: str, meeting: Meeting, order: Mapping[str, int]) -> _LaneKey:
    places = {end: order.get(end, len(order)) for end in (name, meeting.peer)}
    first, second = sorted((name, meeting.peer), key=lambda end: (places[end], end))
    return (places[first], places[second]), first, second, meeting.fragment


def _bar(
    island: IslandSeries, meeting: Meeting, lane: int, order: Mapping[str, int], origin_s: float
) -> dict[str, Any]:
    lower = order.get(meeting.peer, len(order)) < order[island.name]
    return {
        "lane": lane,
        "half": int(lower),
        "start": round(meeting.wall_s - meeting.age_s - origin_s, 3),
        "end": round(meeting.wall_s - origin_s, 3),
        "fragment": meeting.fragment,
        "late": meeting.late,
        "final": meeting.final,
        "adopted": meeting.adopted,
        "island": island.name,
        "peer": meeting.peer,
        "version": meeting.version,
        "steps": meeting.arrived_step - meeting.departed_step,
        "weight": round(meeting.weight, 4),
    }


def _down(
    joint: Sequence[IslandSeries], lanes: Mapping[_LaneKey, int], order: Mapping[str, int], origin_s: float
) -> list[dict[str, Any]]:
    """Where one end of an edge could not reach the other: shaded over that end's half of the edge's lanes."""
    result: list[dict[str, Any]] = []
    for island in joint:
        for peer, span in island.lost_peers():
            lower = int(order.get(peer, len(order)) < order[island.name])
            result += [
                {
                    "lane": lane,
                    "half": lower,
                    "start": round(span.start_s - origin_s, 3),
                    "end": round(span.end_s - origin_s, 3),
                }
                for key, lane in lanes.items()
                if {key[1], key[2]} == {island.name, peer}
            ]
    return result
