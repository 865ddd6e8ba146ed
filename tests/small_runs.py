"""Small runs on disk, islands of them in this process or in their own, and patience with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from isthmus.clock import SystemClock
from isthmus.config import LoadedRun, NewIsland, RunPaths, write_run
from isthmus.observe import records
from isthmus.observe.journal import read_records
from isthmus.session import Island
from isthmus.transport import MemoryLink, MemoryNetwork, MemorySettings
from isthmus.transport.link import Link
from isthmus.transport.ports import free_address

STEP_TOKENS = 10
DEADLINE_S = 90.0

OWN_MODEL = {"preset": "own"}
TINY_MODEL = {
    "preset": "micro",
    "d_model": 16,
    "num_layers": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 16,
    "num_experts": 4,
    "expert_hidden": 8,
    "shared_hidden": 16,
}

R = TypeVar("R", bound=records.Common)
Tables = Mapping[str, Mapping[str, Any]]


def write_small_run(
    run_dir: Path,
    *names: str,
    model: Mapping[str, Any] = OWN_MODEL,
    tokens: int = 1000 * STEP_TOKENS,
    run: Tables | None = None,
    island: Tables | None = None,
) -> RunPaths:
    """A run whose islands find each other on loopback; ``run`` and ``island`` change values of the files."""
    tables = {
        "run": {"name": "small", "token_budget": tokens},
        "model": model,
        "mixing": {"window_steps": 8, "fragments": 2, "flight_steps": 2},
        "train": {"sequence_length": 32, "learning_rate": 8e-3},
    }
    own = {
        "island": {"batch_size": 2, "precision": "fp32", "device": "cpu", "threads": 1},
        "join": {"wait_s": 0.0},
        "finish": {"wait_s": 60.0},
    }
    islands = []
    for name in names:
        address = free_address()
        tables_of_one = _merged(_merged(own, {"link": {"listen": address}}), island or {})
        islands.append(NewIsland(name, tables_of_one, addresses=(address,)))
    write_run(run_dir, _merged(tables, run or {}), islands)
    return RunPaths(run_dir)


def write_text_run(
    run_dir: Path, *names: str, tokens: int, more_texts: int = 0, run: Tables | None = None, **own: Any
) -> RunPaths:
    """A run of the bundled trainer on small texts of its own; more of them where there are many islands."""
    texts = run_dir.parent / f"{run_dir.name}-texts"
    texts.mkdir()
    for part in range(8):
        lines = [f"line {part} {number}: {'the quick brown fox jumps'[: number % 25]}\n" for number in range(100)]
        (texts / f"train{part}.txt").write_text("".join(lines))
    for part in range(more_texts):
        (texts / f"train-more{part}.txt").write_text(f"more of part {part}, a quick dog\n" * 100)
    for part in range(4):
        (texts / f"held{part}.txt").write_text("".join(f"held out {part}.{n}, a lazy dog\n" for n in range(12)))
    data = {"evaluate": (str(texts / "held*.txt"),), "evaluate_bytes": 2000}
    return write_small_run(
        run_dir,
        *names,
        model=TINY_MODEL,
        tokens=tokens,
        run=_merged({"data": data}, run or {}),
        island=_merged({"data": {"sources": (str(texts / "train*.txt"),)}, "join": {"wait_s": 20.0}}, own),
    )


def change_file(path: Path, *changes: tuple[str, str]) -> None:
    """Replace text that must be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, (old, text)
        text = text.replace(old, new)
    path.write_text(text)


def records_of(paths: RunPaths, name: str, kind: type[R]) -> list[R]:
    """Records of one kind that an island has written; none before it has begun."""
    path = paths.island(name).records
    found = read_records(path) if path.is_file() else ()
    return [record for record in found if isinstance(record, kind)]


def alarms(paths: RunPaths, name: str) -> list[str]:
    return [record.what for record in records_of(paths, name, records.Alarm)]


def last_step(paths: RunPaths, name: str) -> int:
    """The last step that an island wrote down."""
    return max((record.step for record in records_of(paths, name, records.StepDone)), default=0)


def until(done: Callable[[], object], what: str, *running: Child) -> None:
    """Look again and again until it is done; fail after a long while, or when a process has ended meanwhile."""
    deadline_s, never = time.monotonic() + DEADLINE_S, threading.Event()
    while not done():
        for child in running:
            assert child.process.poll() is None, child.said()
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {what}"
        never.wait(0.02)


def toy_model(width: int = 6) -> nn.Module:
    """The same weights every time; training it is a matter of microseconds."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, 6))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return model


class Loop:
    """A training loop of one's own: a toy model, an optimizer, and data that follow from the step."""

    def __init__(self, seed: int = 0, *, width: int = 6, learning_rate: float = 0.02) -> None:
        self.model = toy_model(width)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)
        self.cursor, self._seed = 0, seed

    def backward(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self._seed + self.cursor)
        self.cursor += 1
        x = torch.randn(8, 6, generator=generator)
        loss = (self.model(x) - torch.sin(3 * x.roll(1, dims=1))).square().mean()
        loss.backward()
        return loss.detach()

    def train_step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.backward()
        self.optimizer.step()
        return loss

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def state_dict(self) -> dict[str, int]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.cursor = state["cursor"]

    def seek(self, cursor: int) -> None:
        self.cursor = cursor

    def join(self, paths: RunPaths, name: str, **options: Any) -> Island:
        options = {"data": self, **options}
        return Island.join(paths.root, name=name, model=self.model, optimizer=self.optimizer, **options)


def train(island: Island, loop: Loop, steps: int = 1) -> None:
    for _ in range(steps):
        loss = loop.train_step()
        island.step(tokens=STEP_TOKENS, loss=loss)


def in_memory(paths: RunPaths, *later: str) -> Callable[[LoadedRun, int], Link]:
    """A network without delay for the islands of a run, and those that join its roster later; the machine's clock."""
    network: MemoryNetwork | None = None

    def open_link(loaded: LoadedRun, incarnation: int) -> MemoryLink:
        nonlocal network
        if network is None:
            names = [*(member.name for member in loaded.roster.islands), *later, "never-there"]
            settings = MemorySettings(detection_s=1.0, sample_window_s=None)
            network = MemoryNetwork(SystemClock(), islands=names, run=loaded.run.hash, settings=settings)
        network.identities[loaded.member.name] = loaded.identity
        return network.open(loaded.member.name, incarnation)

    return open_link


class Child:
    """One island in a process of its own, its words in a file."""

    def __init__(self, log: Path, *command: str) -> None:
        self._log = log
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
            )

    def said(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def workers(self) -> list[int]:
        """The processes it started: the ranks of a torchrun, each in a session of its own."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], check=False, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kills it and its workers, which would train on without it."""
        for pid in (self.process.pid, *self.workers()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def ends(self) -> int:
        """The exit code, once there is one."""
        return self.process.wait(DEADLINE_S)

    def ends_well(self) -> None:
        assert self.ends() == 0, self.said()


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Starts processes by command line, and kills those that are left at the end."""
    started: list[Child] = []

    def start(log: Path, *command: str) -> Child:
        started.append(Child(log, *command))
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            if child.process.poll() is None:
                child.kill_all()


def trainer(paths: RunPaths, name: str, ranks: int = 1, *options: str) -> tuple[Path, ...]:
    """The log and the command line of the bundled trainer as one island, of several ranks by torchrun."""
    launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options)
    command = ("-m", "isthmus", "train", str(paths.root), "--island", name)
    return (paths.root / f"{name}.log", *(launch if ranks > 1 else ()), *command)


def _merged(tables: Tables, changes: Tables) -> dict[str, dict[str, Any]]:
    return {key: {**tables.get(key, {}), **changes.get(key, {})} for key in {**tables, **changes}}
