"""Where records lie: ``RUN_DIR/islands/NAME/records.jsonl``, the baseline's under ``RUN_DIR/standard``."""

from __future__ import annotations

from pathlib import Path

from isthmus.errors import DataError
from isthmus.observe.journal import RECORDS_NAME

STANDARD_NAME = "standard"
"""The directory of the baseline, inside a run's own: a run of one island."""


def island_paths(run_dir: Path) -> dict[str, Path]:
    """The record file of every island that has a directory, by name; the file itself may not exist yet."""
    islands = run_dir / "islands"
    if not islands.is_dir():
        return {}
    return {path.name: path / RECORDS_NAME for path in sorted(islands.iterdir()) if path.is_dir()}


def recorded_paths(run_dir: Path) -> dict[str, Path]:
    """The record file of every island that has written one, by name.

    Raises:
        DataError: The run directory holds no records.
    """
    paths = {name: path for name, path in island_paths(run_dir).items() if path.is_file()}
    if not paths:
        raise DataError(
            f"no records in {run_dir}",
            got="no such directory" if not run_dir.is_dir() else "no islands/NAME/records.jsonl in it",
            wanted="the directory of a run that has started",
            mend="Start one with `isthmus demo` or `isthmus train`, then name its directory.",
        )
    return paths


def standard_paths(run_dir: Path) -> dict[str, Path]:
    """The record files of the run's baseline, by name; empty if it has none."""
    return {name: path for name, path in island_paths(run_dir / STANDARD_NAME).items() if path.is_file()}
