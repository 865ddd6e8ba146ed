"""Runs a study: every cell of its grid that has no row yet, several at a time, until all have one."""

from __future__ import annotations

import signal
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from isthmus.checkpoint import IslandLock
from isthmus.lab.crew import Crew, Ended, command_line
from isthmus.lab.display import Display, State, describe_row
from isthmus.lab.grid import Cell, Choices, choose, comparison_cells, tuning_cells
from isthmus.lab.study_file import Study
from isthmus.lab.table import TABLE_NAME, RunRow, write_table
from isthmus.lab.worker import read_row

CACHE_NAME = "cache"
CELLS_NAME = "cells"

_TICK_S = 0.5
_TELLING = 0.05
"""A run that is so far along tells how long its kind takes."""


class Runner:
    """The grid of one study, and how far it is.

    Args:
        study: The study.
        path: Its file, for the workers.
        out: Where everything goes.
    """

    def __init__(self, study: Study, path: Path, out: Path) -> None:
        self.study, self._path, self.out = study, path, out
        self.rows: dict[str, RunRow] = {}
        self.failed: dict[str, str] = {}
        self._tuning = tuning_cells(study)
        self._take_in(self._tuning)
        self._take_in(self.cells)

    @property
    def choices(self) -> Choices:
        """What tuning has come to."""
        return choose(self.study, self.rows.values())

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that are known by now: those of arms whose tuning is not over come later."""
        return (*self._tuning, *comparison_cells(self.study, self.choices.values))

    @property
    def num_cells(self) -> int:
        """How many runs the whole study has."""
        study = self.study
        return len(self._tuning) + len(study.arms) * len(study.cases) * len(study.study.seeds)

    @property
    def pending(self) -> list[Cell]:
        """Cells without a row that have not failed in this process."""
        return [cell for cell in self.cells if cell.name not in self.rows and cell.name not in self.failed]

    def outcome(self, cell: Cell) -> str:
        """What became of a cell's run, in a word or two."""
        if cell.name in self.rows:
            return self.rows[cell.name].outcome
        return "stopped" if (self.folder(cell) / "snapshots").is_dir() else "to do"

    def run(self, jobs: int, console: Console) -> bool:
        """Run all that is to be run; whether every run ended or diverged, and none failed.

        Raises:
            LockError: The study runs already.
            KeyboardInterrupt: Ctrl-C or SIGTERM, after all workers have saved and left.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        crew = Crew(command_line(self._path, self.out))
        with IslandLock(self.out, "this study"), _interruptible(), Display(console, self.study.study.name) as display:
            try:
                while self._fill(crew, jobs) or crew.working:
                    ended = crew.wait(_TICK_S)
                    if ended is not None:
                        self._end(ended, display)
                    display.show(self._state(crew, jobs))
            finally:
                if crew.working:
                    display.say("stopping: the runs save; the same command goes on with them ...")
                crew.stop()
                self.write()
        return not self.failed

    def write(self) -> None:
        """Write the table of all rows, in the order of the grid."""
        write_table(self.out / TABLE_NAME, [self.rows[c.name] for c in self.cells if c.name in self.rows])

    def folder(self, cell: Cell) -> Path:
        """Where a cell's run lives."""
        return self.out / CELLS_NAME / cell.name

    def _take_in(self, cells: tuple[Cell, ...]) -> None:
        for cell in cells:
            row = read_row(self.folder(cell), cell)
            if row is not None:
                self.rows[cell.name] = row

    def _fill(self, crew: Crew, jobs: int) -> bool:
        """Start workers while there is room; whether anything is left to do."""
        waiting = [cell for cell in self.pending if cell.name not in crew.working]
        for cell in waiting[: max(0, jobs - len(crew.working))]:
            crew.start(cell.name, self.folder(cell))
        return bool(waiting)

    def _end(self, ended: Ended, display: Display) -> None:
        cell = next(cell for cell in self.cells if cell.name == ended.name)
        row = None if ended.code else read_row(self.folder(cell), cell)
        if row is None:
            self.failed[cell.name] = ended.last_words or f"the process ended with code {ended.code} and no result"
            display.say(f"{cell.name} failed; its last words:\n{self.failed[cell.name]}")
            return
        self.rows[cell.name] = row
        self.write()
        display.say(describe_row(row, done=len(self.rows), total=self.num_cells))

    def _state(self, crew: Crew, jobs: int) -> State:
        running = {name: crew.progress(name) for name in crew.working}
        return State(len(self.rows), len(self.failed), self.num_cells, running, self._left_s(crew, jobs))

    def _left_s(self, crew: Crew, jobs: int) -> float | None:
        """Seconds until all is done, by what a token took in runs of the same arm; None before any has got far."""
        paces = defaultdict[str, list[float]](list)
        for row in self.rows.values():
            paces[row.arm].append(row.cpu_s / max(1, row.tokens))
        left_tokens = defaultdict[str, float](float)
        for cell in self.pending:
            done = crew.progress(cell.name) if cell.name in crew.working else 0.0
            left_tokens[cell.arm] += cell.token_budget * (1.0 - done)
            if done > _TELLING:
                paces[cell.arm].append(crew.elapsed_s(cell.name) / (cell.token_budget * done))
        if not paces:
            return None
        usual = statistics.median(pace for known in paces.values() for pace in known)
        left_tokens[""] += self._unknown_tokens()
        pace = {arm: statistics.median(paces[arm]) if arm in paces else usual for arm in left_tokens}
        return sum(tokens * pace[arm] for arm, tokens in left_tokens.items()) / jobs

    def _unknown_tokens(self) -> float:
        """Tokens of the runs that wait for values to be chosen."""
        known = self.choices.values
        first = {arm.name: self.study.combinations(arm)[0] for arm in self.study.arms if arm.name not in known}
        return sum(cell.token_budget for cell in comparison_cells(self.study, first) if cell.arm in first)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
