"""Starts islands as processes of their own and shows how they fare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from isthmus.config import IslandPaths, RunPaths, load_shared
from isthmus.errors import ConfigError
from isthmus.observe.live import View

LOG_NAME = "train.log"
"""What an island's process says, beside its records."""

_REFRESH_S = 0.5
_TAIL_LINES = 12


class IslandProcesses:
    """Islands of one run as child processes, each in a group of its own; they end with ``terminate``, or by themselves.

    Args:
        run_dir: The run's directory.
        islands: Which islands.
        arguments: What ``isthmus train`` is told besides, by name.
    """

    def __init__(
        self,
        run_dir: Path,
        islands: Iterable[IslandPaths],
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._run_dir, self._arguments = run_dir, arguments or {}
        self._logs = {paths.root.name: paths.root / LOG_NAME for paths in islands}
        self._processes = {name: self._start(name) for name in self._logs}

    @property
    def names(self) -> tuple[str, ...]:
        """All islands."""
        return tuple(self._logs)

    def is_running(self, name: str) -> bool:
        """Whether an island's process runs, be it a stopped one."""
        return self._processes[name].poll() is None

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to an island's process and to that of its link."""
        if self.is_running(name):
            os.killpg(self._processes[name].pid, number)

    def kill(self, name: str) -> None:
        """End an island as a power cut would, and wait until it is gone."""
        self.signal(name, signal.SIGKILL)
        self._processes[name].wait()

    def restart(self, name: str) -> None:
        """Start an island again that has ended."""
        self._processes[name] = self._start(name)

    @property
    def running(self) -> bool:
        """Whether any of them still runs."""
        return any(process.poll() is None for process in self._processes.values())

    def failed(self) -> dict[str, int]:
        """Exit codes of those that ended badly, by name."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code}

    def last_words(self, name: str) -> str:
        """The end of what an island's process said."""
        try:
            lines = self._logs[name].read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_TAIL_LINES:])

    def terminate(self) -> None:
        """Ask all to save and leave, and wait until they have."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            process.wait()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "isthmus", "train", str(self._run_dir), "--island", name]
        command += self._arguments.get(name, ())
        with self._logs[name].open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def watch(run_dir: Path, processes: IslandProcesses, console: Console) -> None:
    """Show the run until all its processes have ended; Ctrl-C and SIGTERM ask them to save and leave."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View(run_dir)
    try:
        if console.is_terminal:
            with Live(get_renderable=view.render, console=console, refresh_per_second=1 / _REFRESH_S):
                _wait(processes)
        else:
            while processes.running:
                _print_lines(view, console)
                time.sleep(_REFRESH_S)
            _print_lines(view, console)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            console.print("asking all islands to save and leave ...", highlight=False)
        processes.terminate()
        raise


def report_failures(processes: IslandProcesses, console: Console) -> bool:
    """Say of every island that ended badly how it ended; whether there was one."""
    failed = processes.failed()
    for name, code in failed.items():
        console.print(f"{name} ended with exit code {code}. Its last words:", style="bold red", highlight=False)
        console.print(processes.last_words(name), highlight=False, markup=False)
    return bool(failed)


def run_up(run_dir: Path) -> int:
    """Run every island whose directory is here; the exit code is 1 if one of them failed."""
    load_shared(run_dir)
    islands = [paths for paths in RunPaths(run_dir).present() if paths.config.is_file()]
    if not islands:
        raise ConfigError(f"no island has its files in {run_dir}", mend="Write a run with `isthmus init DIR`.")
    console = Console()
    processes = IslandProcesses(run_dir, islands)
    watch(run_dir, processes, console)
    return int(report_failures(processes, console))


def _wait(processes: IslandProcesses) -> None:
    while processes.running:
        time.sleep(_REFRESH_S)


def _print_lines(view: View, console: Console) -> None:
    for line in view.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
