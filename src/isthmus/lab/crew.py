"""Worker processes, one a run, that end when this process does."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LOG_NAME = "run.log"
_TAIL_LINES = 12


class Ended(NamedTuple):
    """A worker's end: the cell's name, the exit code, and the last words of one that failed."""

    name: str
    code: int
    last_words: str


@dataclass
class _Worker:
    """A process, and how far its run is."""

    process: subprocess.Popen[bytes]
    folder: Path
    started_s: float
    progress: float = 0.0


class Crew:
    """Runs cells in processes of their own; each saves and leaves when its input ends, also if this process is killed.

    Args:
        command: What starts a worker; the cell's name is added.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._workers: dict[str, _Worker] = {}
        self._ended: queue.Queue[Ended] = queue.Queue()

    @property
    def working(self) -> tuple[str, ...]:
        """Names of the cells that run."""
        return tuple(self._workers)

    def progress(self, name: str) -> float:
        """How far a cell's run is, 0 to 1."""
        return self._workers[name].progress

    def elapsed_s(self, name: str) -> float:
        """Seconds since its worker was started."""
        return time.monotonic() - self._workers[name].started_s

    def start(self, name: str, folder: Path) -> None:
        """Start a worker."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG_NAME).open("ab") as log:
            process = subprocess.Popen(
                [*self._command, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        worker = _Worker(process, folder, time.monotonic())
        self._workers[name] = worker
        threading.Thread(target=self._listen, args=(name, worker), name=f"listen {name}", daemon=True).start()

    def wait(self, timeout_s: float) -> Ended | None:
        """The next worker that ended; None if none does in time."""
        try:
            ended = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        _let_go(self._workers.pop(ended.name))
        return ended

    def stop(self) -> None:
        """Ask all workers to save and leave, and wait until they have."""
        for worker in self._workers.values():
            _let_go(worker)
        while self._workers:
            self.wait(1.0)

    def _listen(self, name: str, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            worker.progress = json.loads(line)["progress"]
        worker.process.stdout.close()
        code = worker.process.wait()
        self._ended.put(Ended(name, code, _tail(worker.folder / LOG_NAME) if code else ""))


def _let_go(worker: _Worker) -> None:
    """Close a worker's input, which asks it to save and leave."""
    assert worker.process.stdin is not None
    worker.process.stdin.close()


def command_line(study: Path, out: Path) -> list[str]:
    """What starts a worker of a study."""
    return [sys.executable, "-m", "isthmus", "lab", str(study), "--out", str(out), "--cell"]


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
