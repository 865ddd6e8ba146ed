"""A run in one JSON object: ``summary.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.files import write_text_atomic
from isthmus.observe.journal import read_records
from isthmus.observe.records import SCHEMA_VERSION, Evaluation, Record
from isthmus.observe.runfiles import recorded_paths, standard_paths
from isthmus.observe.tally import Tally

SUMMARY_NAME = "summary.json"


def summarise(
    records: Mapping[str, Iterable[Record]], standard: Mapping[str, Iterable[Record]] | None = None
) -> dict[str, Any]:
    """Add up a run's records.

    Args:
        records: Per island name, its records in the order written, over all its processes.
        standard: The same of the baseline, if there is one.

    Returns:
        Plain JSON values; units are in the names. What the records do not tell is ``None``.
    """
    return summarise_tallies(tallies(records), tallies(standard or {}))


def write_summary(run_dir: Path) -> Path:
    """Write ``summary.json`` into a run directory, from its records alone.

    Raises:
        DataError: The run directory holds no records.
    """
    records = {name: read_records(path) for name, path in recorded_paths(run_dir).items()}
    standard = {name: read_records(path) for name, path in standard_paths(run_dir).items()}
    text = json.dumps(summarise(records, standard), indent=2, ensure_ascii=False, allow_nan=False)
    return write_text_atomic(run_dir / SUMMARY_NAME, text + "\n")


def tallies(records: Mapping[str, Iterable[Record]]) -> dict[str, Tally]:
    """One tally per island, over all its records."""
    result: dict[str, Tally] = {}
    for name, stream in records.items():
        tally = result[name] = Tally(name)
        for record in stream:
            tally.add(record)
    return result


def summarise_tallies(joint: Mapping[str, Tally], standard: Mapping[str, Tally]) -> dict[str, Any]:
    """``summarise``, from tallies."""
    starts = [tally.started for tally in joint.values() if tally.started is not None]
    started = starts[0] if starts else None
    met = {
        frozenset(((tally.name, own), (peer, theirs))): late
        for tally in joint.values()
        for (peer, own, theirs), late in tally.meetings.met.items()
    }
    return {
        "schema": SCHEMA_VERSION,
        "run": started.run if started else None,
        "run_name": started.run_name if started else None,
        "complete": bool(joint) and all(tally.state == "done" for tally in joint.values()),
        "num_parameters": started.num_parameters if started else None,
        "token_budget": started.token_budget if started else None,
        "tokens": sum(tally.tokens for tally in joint.values()),
        "seconds": _seconds(joint),
        "bits_per_byte": scores(joint, standard),
        "sent_bytes": sum(tally.traffic.sent_bytes for tally in joint.values()),
        "meetings": {
            "completed": len(met),
            "late": sum(met.values()),
            "open": sum(tally.meetings.open for tally in joint.values()),
        },
        "islands": {name: _summarise_island(tally) for name, tally in joint.items()},
        "standard": {name: _summarise_island(tally) for name, tally in standard.items()},
        "joint_digests": sorted({tally.finished.joint_digest for tally in joint.values() if tally.finished} - {""}),
        "manifest_digests": sorted({start.manifest_digest for start in starts}),
    }


def scores(joint: Mapping[str, Tally], standard: Mapping[str, Tally]) -> dict[str, Any]:
    """Bits per byte per held-out set: joint, standard, their ratio, and the yardstick.

    The ratio's standard error takes the two scores as independent; both come from the same bytes, so it is an
    upper bound.
    """
    joint_scores, standard_scores = _newest_scores(joint), _newest_scores(standard)
    result: dict[str, Any] = {}
    for name in sorted(joint_scores.keys() | standard_scores.keys()):
        ours, theirs = joint_scores.get(name), standard_scores.get(name)
        known = ours or theirs
        assert known is not None
        result[name] = {
            "joint": _score(ours),
            "standard": _score(theirs),
            "ratio": _ratio(ours, theirs) if ours and theirs else None,
            "xz_bits_per_byte": known.xz_bits_per_byte,
            "num_bytes": known.num_bytes,
        }
    return result


def _newest_scores(run: Mapping[str, Tally]) -> dict[str, Evaluation]:
    """Of all islands' newest evaluations of a set, the final one, else that of the most tokens."""
    newest: dict[str, Evaluation] = {}
    for tally in run.values():
        for name, found in tally.evaluations.items():
            known = newest.get(name)
            if known is None or (found.final, found.run_tokens) > (known.final, known.run_tokens):
                newest[name] = found
    return newest


def _score(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {
        "bits_per_byte": evaluation.bits_per_byte,
        "standard_error": evaluation.standard_error,
        "run_tokens": evaluation.run_tokens,
        "final": evaluation.final,
        "manifest_digest": evaluation.manifest_digest,
    }


def _ratio(ours: Evaluation, theirs: Evaluation) -> dict[str, Any] | None:
    if not ours.bits_per_byte or not theirs.bits_per_byte:
        return None
    value = ours.bits_per_byte / theirs.bits_per_byte
    known = ours.standard_error is not None and theirs.standard_error is not None
    shares = [(each.standard_error or 0.0) / each.bits_per_byte for each in (ours, theirs) if each.bits_per_byte]
    return {
        "value": value,
        "standard_error": value * math.hypot(*shares) if known else None,
        "same_bytes": ours.manifest_digest == theirs.manifest_digest,
    }


def _seconds(run: Mapping[str, Tally]) -> float | None:
    begun = [tally for tally in run.values() if tally.processes]
    if not begun:
        return None
    return max(tally.last_wall_s for tally in begun) - min(tally.first_wall_s for tally in begun)


def _summarise_island(tally: Tally) -> dict[str, Any]:
    traffic, started = tally.traffic, tally.started
    return {
        "state": tally.state,
        "slot": started.slot if started else None,
        "batch_sequences": started.batch_sequences if started else None,
        "batch_tokens": started.batch_tokens if started else None,
        "precision": started.precision if started else None,
        "steps": tally.step,
        "tokens": tally.tokens,
        "trained_tokens": tally.trained_tokens,
        "lost_tokens": tally.lost_tokens,
        "rounds": tally.rounds,
        "restarts": max(tally.processes - 1, 0),
        "alarms": tally.alarms,
        "training_seconds": tally.step_s,
        "sync_seconds": tally.sync_s,
        "blocked_seconds": tally.blocked_s,
        "tokens_per_second": _share(tally.trained_tokens, tally.step_s),
        "sync_share": _share(tally.sync_s, tally.step_s),
        "blocked_share": _share(tally.blocked_s, tally.step_s),
        "meetings": {
            "completed": tally.meetings.completed,
            "late": tally.meetings.late,
            "open": tally.meetings.open,
        },
        "sent_bytes": traffic.sent_bytes,
        "received_bytes": traffic.received_bytes,
        "publication_wire_bytes": tally.publication_bytes,
        "final_wire_bytes": tally.final_bytes,
        "bytes_per_parameter_and_round": _share(
            max(traffic.sent_bytes - tally.final_bytes, 0), tally.published_parameters
        ),
        "publication_bytes_per_parameter_and_round": _share(tally.publication_bytes, tally.published_parameters),
        "link": {
            "window_seconds": traffic.window_s or None,
            "limit_bytes_per_second": started.rate_limit_bytes_per_s if started else None,
            "peak_sent_bytes_per_second": traffic.peak_sent_bytes_per_s,
            "peak_received_bytes_per_second": traffic.peak_received_bytes_per_s,
            "mean_sent_bytes_per_second": _share(traffic.sent_bytes, traffic.open_s),
            "mean_received_bytes_per_second": _share(traffic.received_bytes, traffic.open_s),
        },
        "versions": {
            "isthmus": started.isthmus_version if started else None,
            "torch": started.torch_version if started else None,
            "python": started.python_version if started else None,
        },
        "manifest_digest": started.manifest_digest if started else None,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
