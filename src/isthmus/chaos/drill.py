"""Runs a drill: starts islands, strikes them as planned, and measures what came of it."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from isthmus.chaos.goodput import Cost, Span, Struck, island_cost
from isthmus.chaos.strikes import Strike, StrikeKind, pairs, plan_strikes
from isthmus.config import IslandPaths, RunPaths, SharedFiles, load_run, load_shared
from isthmus.errors import ConfigError, IsthmusError
from isthmus.observe.follow import Follower
from isthmus.observe.journal import read_records
from isthmus.transport.relays import Relays, Way
from isthmus.up import IslandProcesses

REPORT_NAME = "chaos.json"
"""The report, in the run's directory."""

_TICK_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """What a drill is to do; seconds count from when all islands train."""

    seed: int
    duration_s: float
    every_s: float
    kinds: tuple[StrikeKind, ...]
    step_s: float = 0.0
    start_s: float = 300.0


@dataclass
class _Marks:
    """What was done to one island, with open ends."""

    down: list[list[float]] = field(default_factory=list)
    stopped: list[list[float]] = field(default_factory=list)

    def closed(self, end_s: float) -> Struck:
        """With the ends that are still open at a time."""
        down, stopped = (
            tuple(Span(span[0], span[1] if len(span) > 1 else end_s) for span in spans)
            for spans in (self.down, self.stopped)
        )
        return Struck(down, stopped)


@dataclass
class Drill:
    """A drill under way."""

    plan: DrillPlan
    processes: IslandProcesses
    relays: Relays
    say: Say
    marks: dict[str, _Marks]

    def begin(self, strike: Strike) -> None:
        """Let a strike happen."""
        self.say(f"{strike.kind} {' and '.join(strike.islands)} for {strike.for_s:.0f} s")
        name = strike.islands[0]
        now_s = time.time()
        if strike.kind == "kill":
            self.processes.kill(name)
            self.marks[name].down.append([now_s])
        elif strike.kind == "stop":
            self.processes.signal(name, signal.SIGSTOP)
            self.marks[name].stopped.append([now_s])
        for one, other in pairs(strike, self.processes.names):
            self.relays.cut(one, other)

    def end(self, strike: Strike) -> None:
        """End it."""
        name = strike.islands[0]
        if strike.kind == "kill":
            self.processes.restart(name)
            self.marks[name].down[-1].append(time.time())
        elif strike.kind == "stop":
            self.processes.signal(name, signal.SIGCONT)
            self.marks[name].stopped[-1].append(time.time())
        for one, other in pairs(strike, self.processes.names):
            self.relays.heal(one, other)


def run_drill(run_dir: Path, plan: DrillPlan, say: Say) -> tuple[Cost, tuple[Strike, ...], list[str]]:
    """Start all islands of a run, strike them as planned, then ask all to save and leave.

    Args:
        run_dir: The run's directory; it goes on from where it is, and can be gone on with afterwards.
        plan: What to do.
        say: Is told what happens, line by line.

    Returns:
        What it has cost, what was done, and the islands that ended otherwise than they should have.

    Raises:
        ConfigError: The run's files are wrong, or it has no island here.
        IsthmusError: The islands do not all come to train.
    """
    shared = load_shared(run_dir)
    islands = [paths for paths in RunPaths(run_dir).present() if paths.config.is_file()]
    if not islands:
        raise ConfigError(f"no island has its files in {run_dir}", mend="Write a run with `isthmus init DIR`.")
    names = [paths.root.name for paths in islands]
    strikes = plan_strikes(plan.seed, names, duration_s=plan.duration_s, every_s=plan.every_s, kinds=plan.kinds)
    with Relays(_targets(shared, run_dir, names)) as relays:
        processes = IslandProcesses(run_dir, islands, _arguments(plan, relays.addresses, names))
        drill = Drill(plan, processes, relays, say, {name: _Marks() for name in names})
        try:
            _wait_until_all_train(islands, processes, plan.start_s, say)
            span = _strike_all(drill, strikes)
            failed = [name for name in names if not processes.is_running(name) and name in processes.failed()]
        finally:
            for name in names:
                processes.signal(name, signal.SIGCONT)
            processes.terminate()
    failed += [name for name in processes.failed() if name not in failed]
    cost = Cost(
        {
            paths.root.name: island_cost(
                list(read_records(paths.records)), drill.marks[paths.root.name].closed(span.end_s), span
            )
            for paths in islands
        }
    )
    _write_report(run_dir, plan, strikes, cost, failed)
    return cost, strikes, failed


def _targets(shared: SharedFiles, run_dir: Path, names: list[str]) -> dict[Way, str]:
    """Who dials whom where, so that a relay can stand between."""
    found: dict[Way, str] = {}
    for name in names:
        dial = load_run(run_dir, name).island.link.dial
        for peer in shared.roster.peers(name):
            addresses = dial.get(peer.name, peer.addresses)
            if peer.name in names and addresses:
                found[name, peer.name] = addresses[0]
    return found


def _arguments(plan: DrillPlan, addresses: Mapping[Way, str], names: list[str]) -> dict[str, list[str]]:
    """What every island is told besides: its peers are behind relays, and how long a step takes."""
    arguments = {name: ["--step-s", f"{plan.step_s}"] if plan.step_s else [] for name in names}
    for (name, peer), address in addresses.items():
        arguments[name] += ["--dial", f"{peer}={address}"]
    return arguments


def _wait_until_all_train(islands: list[IslandPaths], processes: IslandProcesses, at_most_s: float, say: Say) -> None:
    """Wait until every island has trained a step since now."""
    waiting = {paths.root.name: Follower(paths.root.name, paths.records) for paths in islands}
    begun_s, deadline_s = time.time(), time.monotonic() + at_most_s
    say(f"starting {', '.join(waiting)}")
    while waiting:
        for name, follower in list(waiting.items()):
            list(follower.new())
            last = follower.tally
            if last.alive and last.step and last.last_wall_s > begun_s and last.tokens_per_s > 0:
                del waiting[name]
        ended = [name for name in waiting if not processes.is_running(name)]
        if ended:
            last_words = processes.last_words(ended[0])
            raise IsthmusError(f"{ended[0]} ended before it trained", got=last_words)
        if waiting and time.monotonic() > deadline_s:
            raise IsthmusError(
                "not all islands came to train",
                got=f"no step of {', '.join(sorted(waiting))} in {at_most_s:.0f} s",
                mend="`isthmus status` says where they are; their train.log says why.",
            )
        time.sleep(_TICK_S)


def _strike_all(drill: Drill, strikes: tuple[Strike, ...]) -> Span:
    """Let all strikes happen in their time; ends early where the run is over."""
    moments = [(strike.at_s, 0, strike) for strike in strikes] + [(strike.end_s, 1, strike) for strike in strikes]
    ahead, begun_s, began = sorted(moments), time.monotonic(), time.time()
    while (now_s := time.monotonic() - begun_s) < drill.plan.duration_s and (drill.processes.running or ahead):
        due = list(itertools.takewhile(lambda moment: moment[0] <= now_s, ahead))
        del ahead[: len(due)]
        for _, is_end, strike in due:
            (drill.end if is_end else drill.begin)(strike)
        if not drill.processes.running and not any(is_end for _, is_end, _ in ahead):
            break
        time.sleep(_TICK_S)
    return Span(began, time.time())


def _write_report(run_dir: Path, plan: DrillPlan, strikes: tuple[Strike, ...], cost: Cost, failed: list[str]) -> None:
    report = {
        "plan": asdict(plan),
        "strikes": [strike._asdict() for strike in strikes],
        "goodput": cost.goodput,
        "stall_steps": cost.stall_steps,
        "islands": {name: asdict(island) for name, island in cost.islands.items()},
        "failed": failed,
    }
    (run_dir / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
