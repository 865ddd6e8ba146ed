"""What a study says while it runs: a line for every run that ends, and on a terminal how far the others are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.lab.table import RunRow
from isthmus.units import format_duration

_SAY_EVERY_S = 60.0


@dataclass(frozen=True)
class State:
    """How far a study is: runs by what became of them, progress of those that run by name, seconds left if known."""

    done: int
    failed: int
    total: int
    running: Mapping[str, float]
    left_s: float | None

    def line(self) -> str:
        """The state in one line."""
        failed = f", {self.failed} failed" if self.failed else ""
        left = "time left not known yet" if self.left_s is None else f"about {format_duration(self.left_s)} left"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.running.items())
        return f"{self.done} of {self.total} runs{failed}, {left}" + (f"; running: {shares}" if shares else "")


class Display:
    """Shows a study on a console.

    Args:
        console: Where to.
        name: The study's name.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, state: State) -> None:
        """Show how far it is: at once on a terminal, else once a minute."""
        if self._live is not None:
            self._live.update(_render(self._name, state), refresh=True)
        elif time.monotonic() - self._said_s >= _SAY_EVERY_S:
            self._said_s = time.monotonic()
            self.say(state.line())


def describe_row(row: RunRow, *, done: int, total: int) -> str:
    """One line on a run that ended."""
    case = "".join(f", {key.rpartition('.')[2]} {value}" for key, value in row.case.items())
    tried = "".join(f", {key.rpartition('.')[2]} {value:g}" for key, value in row.values.items())
    head = f"[{done}/{total}] {row.stage} {row.arm}{case}{tried}, seed {row.seed}: "
    if row.outcome != "done":
        return f"{head}{row.outcome}: {row.detail}"
    scores = ", ".join(f"{name} {score:.4f}" for name, score in row.final_scores("joint").items())
    return f"{head}{scores} ({format_duration(row.cpu_s)} of CPU)"


def _render(name: str, state: State) -> Group:
    table = Table.grid(padding=(0, 1))
    for cell, share in state.running.items():
        table.add_row(Text(cell), ProgressBar(total=1.0, completed=share, width=24), Text(f"{share:.0%}"))
    idle = State(state.done, state.failed, state.total, {}, state.left_s)
    return Group(Text(f"{name}: {idle.line()}", style="bold"), table)
