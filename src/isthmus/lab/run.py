"""One run of a study: islands on a virtual clock until their budget is spent; stopped at any time, it goes on."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

import isthmus
from isthmus.checkpoint import LocalStorage, load_latest, prune, save
from isthmus.clock import VirtualClock
from isthmus.config import LoadedRun, resolve_model
from isthmus.lab.dweller import DivergedError, Dweller
from isthmus.lab.files import load_setup
from isthmus.lab.grid import Cell, Setup
from isthmus.lab.joint import JointScorer
from isthmus.lab.links import outages, qualities
from isthmus.lab.table import Outcome, RunRow, Score
from isthmus.lab.world import Resident, World, WorldEvent
from isthmus.model import build_model
from isthmus.observe import records
from isthmus.observe.journal import read_records
from isthmus.observe.tally import Tally
from isthmus.train import Texts, open_stream
from isthmus.transport import MemoryNetwork

FORMAT = 1
DIVERGED_BITS = 9.0
"""A byte costs 8 without any model; a run that ends so far above has diverged."""


class LabRun:
    """One cell's run, from its snapshot if it was stopped before.

    Args:
        cell: The cell.
        folder: Its directory; an ordinary run directory, of which ``isthmus report`` makes a page.
        cache: Where texts are cached, for all cells.
        save_every_s: Seconds of processor time between two snapshots.
        tick_s: The same between two reports of the progress.
    """

    def __init__(
        self, cell: Cell, folder: Path, cache: Path, *, save_every_s: float = 60.0, tick_s: float = 2.0
    ) -> None:
        self._cell, self._save_every_s, self._tick_s = cell, save_every_s, tick_s
        self._snapshots = LocalStorage(folder / "snapshots")
        loaded = load_setup(cell.setup, folder, cache)
        first = next(iter(loaded.values()))
        self._run, self._texts = first.run, Texts(first)
        self._joint = JointScorer(self._texts.whole, build_model(resolve_model(first.run.model), seed=0))
        self._clock = VirtualClock()
        events = world_events(cell.setup)
        saves = any(event.kind == "crash" for event in events)
        self._dwellers = {name: self._dweller(each, saves=saves) for name, each in loaded.items()}
        self._world = World(self._clock, make_network(cell.setup, self._clock, first), events)
        self._scores: list[Score] = []
        self._next_tokens = self._run.eval.every_tokens or None
        self._earlier_cpu_s = self._score_cpu_s = 0.0
        self._started_s = self._saved_s = self._ticked_s = time.process_time()
        self._begin()

    @property
    def tokens(self) -> int:
        """Tokens that all islands have trained."""
        return sum(dweller.tokens for dweller in self._dwellers.values())

    @property
    def progress(self) -> float:
        """The share of the token budget that is spent."""
        return min(1.0, self.tokens / self._run.run.token_budget)

    def run(self, stopped: Callable[[], bool], report: Callable[[float], None]) -> RunRow | None:
        """Go on until the run is over, or ``stopped`` says so; then it is saved and None is returned.

        Args:
            stopped: Looked at after every event.
            report: Told the progress every ``tick_s``.
        """
        try:
            while not self._world.is_over:
                self._world.run(until=self._pause(stopped))
                self._ticked_s = time.process_time()
                report(self.progress)
                if self._evaluation_is_due():
                    self._score(final=False)
                if stopped() or self._ticked_s - self._saved_s >= self._save_every_s:
                    self._save()
                if stopped():
                    return None
            if not self._living:
                return self._row("failed", "no island lived to the end of the run")
            self._score(final=True)
        except DivergedError as error:
            return self._row("diverged", str(error))
        finally:
            for dweller in self._dwellers.values():
                dweller.close()
        worst = max(score.bits_per_byte or float("inf") for score in self._scores if score.final)
        if worst > DIVERGED_BITS:
            return self._row("diverged", f"{worst:.3g} bits per byte at the end: worse than no model at all")
        return self._row("done", "")

    def _dweller(self, loaded: LoadedRun, *, saves: bool) -> Dweller:
        step_s = next(island.step_s for island in self._cell.setup.islands if island.name == loaded.member.name)
        digest = self._texts.manifest.digest
        return Dweller(loaded, open_stream(loaded), self._clock, step_s=step_s, saves=saves, manifest_digest=digest)

    def _begin(self) -> None:
        """Start all islands, or go on from the snapshot, if there is one of these settings."""
        found = load_latest(self._snapshots)
        state = found[0] if found and found[0].get("made_of") == self._made_of else None
        for name, dweller in self._dwellers.items():
            dweller.open_records(0 if state is None else state["islands"][name]["records_bytes"])
        residents = [
            Resident(name=name, make=each.start, thaw=each.make, train=each.train, step_s=each.step_s)
            for name, each in self._dwellers.items()
        ]
        if state is not None:
            self._load(state, residents)
            return
        for resident in residents:
            self._world.start(resident)

    def _pause(self, stopped: Callable[[], bool]) -> Callable[[], bool]:
        """When to look up from the world's events: when something is due, but after one event at the earliest."""
        asked = iter((False,))

        def pause() -> bool:
            due = self._evaluation_is_due() or time.process_time() - self._ticked_s >= self._tick_s
            return stopped() or next(asked, due)

        return pause

    def _evaluation_is_due(self) -> bool:
        due = self._next_tokens is not None and self.tokens >= self._next_tokens
        return due and bool(self._living)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    @property
    def _made_of(self) -> str:
        """What a snapshot must have been made of to be gone on from."""
        return f"{FORMAT} {isthmus.__version__} {self._cell.digest} {self._texts.manifest.digest}"

    @property
    def _cpu_s(self) -> float:
        return self._earlier_cpu_s + time.process_time() - self._started_s

    def _save(self) -> None:
        state = {
            "made_of": self._made_of,
            "world": self._world.state_dict(),
            "islands": {name: dweller.state_dict() for name, dweller in self._dwellers.items()},
            "scores": msgspec.msgpack.encode(self._scores),
            "next_tokens": self._next_tokens,
            "cpu_s": (self._cpu_s, self._score_cpu_s),
        }
        save(self._snapshots, self.tokens, state)
        prune(self._snapshots, keep=1)
        self._saved_s = time.process_time()

    def _load(self, state: Mapping[str, Any], residents: list[Resident]) -> None:
        for name, dweller in self._dwellers.items():
            dweller.load_state_dict(state["islands"][name])
        self._world.load_state_dict(state["world"], residents)
        self._scores = msgspec.msgpack.decode(state["scores"], type=list[Score])
        self._next_tokens = state["next_tokens"]
        self._earlier_cpu_s, self._score_cpu_s = state["cpu_s"]

    # -- what came of it -----------------------------------------------------------------------------------------------

    @property
    def _living(self) -> list[Dweller]:
        return [dweller for name, dweller in self._dwellers.items() if self._world.is_alive(name)]

    def _score(self, *, final: bool) -> None:
        """Score the living, and write it down among the lowest slot's records."""
        if not final and self._next_tokens is not None:
            every = self._run.eval.every_tokens
            self._next_tokens = (self.tokens // every + 1) * every
        started_s = time.process_time()
        living = self._living
        holdings = [(each.tokens, each.engine.slow.slow_weights()) for each in living]
        for score, named in self._joint.score(holdings, run_tokens=self.tokens, final=final):
            self._scores.append(score)
            if score.subject == "joint":
                living[0].record(
                    records.Evaluation,
                    set_name=score.set_name,
                    bits_per_byte=score.bits_per_byte,
                    standard_error=score.standard_error,
                    num_bytes=named.score.num_bytes,
                    run_tokens=score.run_tokens,
                    manifest_digest=self._texts.manifest.digest,
                    xz_bits_per_byte=named.xz_bits_per_byte,
                    final=final,
                )
        self._score_cpu_s += time.process_time() - started_s

    def _row(self, outcome: Outcome, detail: str) -> RunRow:
        cell, tallies = self._cell, [_tally(dweller) for dweller in self._dwellers.values()]
        return RunRow(
            study=cell.study,
            stage=cell.stage,
            arm=cell.arm,
            case=dict(cell.case),
            seed=cell.seed,
            values=dict(cell.values),
            digest=cell.digest,
            outcome=outcome,
            detail=detail,
            islands=len(self._dwellers),
            tokens=self.tokens,
            steps={name: dweller.steps for name, dweller in self._dwellers.items()},
            scores=tuple(self._scores),
            cpu_s=round(self._cpu_s, 2),
            train_cpu_s=round(sum(dweller.train_cpu_s for dweller in self._dwellers.values()), 2),
            score_cpu_s=round(self._score_cpu_s, 2),
            virtual_s=self._clock.now_s(),
            sent_bytes=sum(tally.traffic.sent_bytes for tally in tallies),
            meetings=sum(tally.meetings.completed for tally in tallies),
            late=sum(tally.meetings.late for tally in tallies),
            versions={
                "isthmus": isthmus.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "data": self._texts.manifest.digest,
            },
        )


def world_events(setup: Setup) -> tuple[WorldEvent, ...]:
    """Scripted faults and outages of links in the order of their times."""
    events = [WorldEvent(at_s, kind, islands) for at_s, kind, islands in setup.faults.events()]
    for from_s, until_s, a, b in outages(setup):
        events += [WorldEvent(from_s, "cut", (a, b)), WorldEvent(until_s, "heal", (a, b))]
    return tuple(sorted(events, key=lambda event: event.at_s))


def make_network(setup: Setup, clock: VirtualClock, loaded: LoadedRun) -> MemoryNetwork:
    """The network between the islands of a setup."""
    names = tuple(island.name for island in setup.islands)
    network = MemoryNetwork(clock, loaded.run.run.seed, islands=names, run=loaded.run.hash)
    for (sender, receiver), quality in qualities(setup).items():
        network.shape(sender, receiver, quality)
    return network


def _tally(dweller: Dweller) -> Tally:
    tally = Tally(dweller.name)
    for record in read_records(dweller.loaded.own_paths.records):
        tally.add(record)
    return tally
