"""What a study's runs came to: one JSON line a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from isthmus.errors import DataError
from isthmus.files import write_file_atomic

SCHEMA = 1
TABLE_NAME = "table.jsonl"

Scalar = bool | int | float | str
"""A value that a study varies or tunes."""

Stage = Literal["tune", "compare"]
Outcome = Literal["done", "diverged", "failed"]
Subject = Literal["joint", "first"]
"""Whose weights were scored: the mean of all islands' slow weights by tokens, or the lowest slot's own."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte on one held-out set, after ``run_tokens`` tokens of all islands; None where it is not finite.

    ``disagreement`` is the root mean square of what islands' slow weights differ from the joint ones by, over that of
    these; None where it was not the joint ones that were scored.
    """

    set_name: str
    subject: Subject
    run_tokens: int
    bits_per_byte: float | None
    standard_error: float | None
    final: bool
    disagreement: float | None = None


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a study.

    Attributes:
        study: The study's name.
        stage: Whether it served to choose values, or to compare.
        arm: The arm's name.
        case: What the study varies, by dotted key.
        seed: The run's seed.
        values: What was tuned, by dotted key: tried values of a tuning run, chosen ones of a comparing run.
        digest: Of all settings of the run; a changed study runs again what changed.
        outcome: Whether it ended, diverged (a loss was not finite), or failed.
        detail: Why it did not end.
        islands: Number of islands.
        tokens: Tokens of all islands.
        steps: Steps by island.
        scores: Of the run, in the order of its tokens.
        cpu_s: Processor time of the run, without what came before its first step.
        train_cpu_s: The part of it inside training steps.
        score_cpu_s: The part of it inside evaluations.
        virtual_s: Virtual seconds that the run lasted.
        sent_bytes: Sent by all islands, as the memory link counts it.
        meetings: Completed meetings, each counted at both ends.
        late: Those that came later than a publication's slot and flight.
        versions: Of isthmus, torch and Python, and the digest of the data.
        schema: Version of this row.
    """

    study: str
    stage: Stage
    arm: str
    case: dict[str, Scalar]
    seed: int
    values: dict[str, Scalar]
    digest: str
    outcome: Outcome
    detail: str = ""
    islands: int
    tokens: int
    steps: dict[str, int]
    scores: tuple[Score, ...]
    cpu_s: float
    train_cpu_s: float
    virtual_s: float
    sent_bytes: int
    meetings: int
    late: int
    versions: dict[str, str]
    score_cpu_s: float = 0.0
    schema: int = SCHEMA

    def final_scores(self, subject: Subject) -> dict[str, float]:
        """Bits per byte at the end by held-out set; empty if the run did not end."""
        return {
            score.set_name: score.bits_per_byte
            for score in self.scores
            if score.final and score.subject == subject and score.bits_per_byte is not None
        }


def write_table(path: Path, rows: list[RunRow]) -> None:
    """Replace the table at ``path``."""
    write_file_atomic(path, (msgspec.json.encode(row) + b"\n" for row in rows))


def read_table(path: Path) -> Iterator[RunRow]:
    """The rows of a table.

    Raises:
        DataError: The file cannot be read, or a line is no row.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=error.strerror, mend="Run the study first.") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield msgspec.json.decode(line, type=RunRow)
        except msgspec.DecodeError as error:
            raise DataError(f"line {number} of {path} is no row of a study", got=error) from error
