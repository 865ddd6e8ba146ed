"""Whole runs of eight islands through storms of faults, on a virtual clock: run, shrink and count.

    python tests/storm.py --schedules 10000          # what ``make soak`` does
    python tests/storm.py --seed 4711                # one storm again, with what happened when

An island holds its promises after everything that it does (``storm_world.py``); when the storm is over all meet again,
what they disagree on shrinks, and all end with one outcome. A storm that fails is shrunk to the faults that it needs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import get_args

from isthmus import schedule
from isthmus.roster import partners
from isthmus.terms import Phase
from storm_faults import CALM_FROM_S, LAST_S, NUM_ISLANDS, FaultKind, Script, draw
from storm_world import STATES, Hits, StormWorld
from toy_islands import make_plans

STEPS = 270
TOKENS_PER_STEP = 100
FINISH_WAIT_S = 15.0
NOISE = 0.005
DRIFT = 0.02
APART_AT_REST = 0.2
"""How far apart islands are that only noise and rounding part, at most."""

MEET_S = 150.0
END_S = 30 * FINISH_WAIT_S


class Storm:
    """One run.

    Args:
        script: What it is and what goes wrong.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        plans = make_plans(
            NUM_ISLANDS,
            script.num_fragments,
            window_steps=script.window_steps,
            flight_steps=script.flight_steps,
            meetings=script.meetings,
            save_every_steps=script.save_every_steps,
            token_budget=NUM_ISLANDS * STEPS * TOKENS_PER_STEP,
            finish_wait_s=FINISH_WAIT_S,
            outer=schedule.OuterPlan(schedule.OuterStep(0.9, 0.3)),
        )
        self.world = StormWorld(plans, seed=script.seed)
        self.world.prepare(script.delay_s)
        for island in self.world.islands.values():
            island.step_s = self.world.rng.uniform(0.4, 0.9)
            island.noise, island.drift = NOISE, self.world.rng.uniform(-DRIFT, DRIFT)

    def run(self) -> None:
        """Through the storm to the end; AssertionError where a promise is broken."""
        world, script = self.world, self.script
        last = list(world.islands)[-1]
        for name in world.islands:
            world.at(script.late_s if name == last else 0.0, partial(world.start, name))
        for fault in script.faults:
            world.at(fault.at_s, partial(self._strike, fault))
        world.run(CALM_FROM_S if script.calm else LAST_S)
        world.peace()
        if script.calm:
            self._meet_again()
        self._end()

    def _strike(self, fault) -> None:
        if all(hasattr(self.world[name], "core") for name in fault.islands):
            self.world.strike(fault)

    def _meet_again(self) -> None:
        """All train, all partners' edges move on, and what parts the islands shrinks."""
        world = self.world
        for island in world.islands.values():
            island.drift = 0.0
        before = {key: self._place(*key) for key in self._near_edges()}
        apart = world.spread
        moved = world.run(MEET_S, lambda: all(self._has_moved(key, place) for key, place in before.items()))
        still = [key for key, place in before.items() if not self._has_moved(key, place)]
        phases = {name: island.core.phase.value for name, island in world.islands.items()}
        assert moved, f"these do not meet again: {still}; phases {phases}"
        bound = max(APART_AT_REST, apart / 2)
        assert world.run(MEET_S, lambda: world.spread <= bound), f"{apart} apart at first, {world.spread} later"

    def _near_edges(self) -> list[tuple[str, str, int]]:
        found = []
        for name, island in self.world.islands.items():
            names = {slot: peer for peer, slot in island.plan.peers.items()}
            near = [names[partner.slot] for partner in partners(island.plan.slot, (*names, island.plan.slot))]
            found += [(name, peer, fragment) for peer in near for fragment in island.plan.fragments]
        return found

    def _place(self, name: str, peer: str, fragment: int) -> tuple[int, int]:
        edge = self.world[name].edge(peer, fragment)
        return edge.epoch, edge.version

    def _has_moved(self, key: tuple[str, str, int], place: tuple[int, int]) -> bool:
        is_over = any(self.world[name].core.phase in (Phase.FINISHING, Phase.DONE) for name in key[:2])
        return is_over or (self._place(*key) > place and self.world[key[0]].edge(*key[1:]).open)

    def _end(self) -> None:
        """All end, with one outcome; all with it, if nothing went wrong near the end."""
        world = self.world
        islands = world.islands.values()
        done = world.run(STEPS * 2.0 + END_S, lambda: all(island.core.phase is Phase.DONE for island in islands))
        assert done, f"these never end: {[i.name for i in islands if i.core.phase is not Phase.DONE]}"
        world.run(5 * FINISH_WAIT_S)
        outcomes = [weights for provisional, weights in world.ended.values() if not provisional]
        outcomes += [island.held.slow for island in islands if not island.core.provisional]
        assert all(weights == outcomes[0] for weights in outcomes), "two outcomes of one run"
        if self.script.calm:
            provisional = [island.name for island in islands if island.core.provisional]
            assert not provisional, f"{provisional} ended provisionally, though nothing went wrong at the end"


def failure(script: Script) -> tuple[str | None, Storm]:
    """Run a storm; what is wrong with it, or None."""
    storm = Storm(script)
    try:
        storm.run()
    except Exception as error:  # whatever it is, it is a failure of this storm
        return f"{type(error).__name__}: {error}", storm
    return None, storm


def shrink(script: Script, *, tries: int = 300) -> Script:
    """The same storm with as few faults as it needs to fail in the same way."""
    kind = (failure(script)[0] or "")[:30]
    size = len(script.faults) // 2
    while size and tries > 0:
        for at in range(0, len(script.faults), size):
            fewer = replace(script, faults=script.faults[:at] + script.faults[at + size :])
            tries -= 1
            if (failure(fewer)[0] or "")[:30] == kind:
                script = fewer
                break
        else:
            size //= 2
    return script


def report(script: Script) -> str:
    """A failing storm, shrunk, as text that can be run again."""
    small = shrink(script)
    what, storm = failure(small)
    return (
        f"storm {script.seed} fails: {failure(script)[0]}\n"
        f"shrunk: {what}\nreplay: python tests/storm.py --seed {script.seed}\n{small}\n" + "\n".join(storm.world.trace)
    )


def check(seeds: range) -> tuple[Hits, list[int], int]:
    """Run the storms of seeds; what was hit, the seeds that fail, and the steps of all islands."""
    hits, failed, steps = Hits(), list[int](), 0
    for seed in seeds:
        what, storm = failure(draw(seed))
        hits += storm.world.hits
        steps += sum(island.memory.step for island in storm.world.islands.values() if hasattr(island, "core"))
        if what is not None:
            failed.append(seed)
    return hits, failed, steps


def table(hits: Hits) -> str:
    """How often each fault hit each state of a meeting."""
    kinds = get_args(FaultKind)
    lines = [" ".join(["fault".ljust(12), *(state.rjust(10) for state in STATES)])]
    lines += [" ".join([kind.ljust(12), *(str(hits[kind, state]).rjust(10) for state in STATES)]) for kind in kinds]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run many storms, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many storms (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="run this one alone, shrink it if it fails, and say what happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--any-hits", action="store_true", help="do not ask that every fault hits every state")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        what, storm = failure(draw(arguments.seed))
        say("\n".join([str(storm.script), *storm.world.trace]) if what is None else report(storm.script))
        return int(what is not None)
    started_s, hits, failed, steps, done = time.perf_counter(), Hits(), list[int](), 0, 0
    end = arguments.first + arguments.schedules
    blocks = [range(at, min(at + 25, end)) for at in range(arguments.first, end, 25)]
    with multiprocessing.Pool(arguments.jobs) as pool:
        for block, (more, bad, taken) in zip(blocks, pool.imap(check, blocks), strict=True):
            hits, failed, steps, done = hits + more, failed + bad, steps + taken, done + len(block)
            for seed in bad:
                say(report(draw(seed)))
            if done % 500 == 0:
                say(f"{done} storms, {len(failed)} failed, {time.perf_counter() - started_s:.0f} s\n{table(hits)}")
    if done % 500:
        say(table(hits))
    never = [(kind, state) for kind in get_args(FaultKind) for state in STATES if not hits[kind, state]]
    each = f"{done} storms of {NUM_ISLANDS} islands, {steps / done / NUM_ISLANDS:.0f} steps each"
    say(f"{each}; failed: {failed or 'none'}")
    if never:
        say(f"never hit: {never}")
    return int(bool(failed or (never and not arguments.any_hits)))


if __name__ == "__main__":
    sys.exit(main())
