"""The end of a run under random schedules of cuts, crashes, restarts and lossy networks: there is one outcome.

Printed with a failure is the seed's schedule; ``run_schedule(seed)`` runs it again.
"""

from __future__ import annotations

import itertools
from random import Random

import pytest

from isthmus.terms import Phase
from toy_islands import make_plans
from toy_world import Faults, World

WAIT_S = 10.0
Ended = dict[tuple[str, int], tuple[bool, dict[int, bytes]]]
"""By island and incarnation: whether it was provisional, and the weights it ended with."""


class Schedule:
    """A world at its end, and what becomes of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        count = self.random.randint(2, 8)
        plans = make_plans(
            count,
            self.random.choice([1, 1, 2]),
            finish_wait_s=WAIT_S,
            window_steps=self.random.choice([2, 4, 8]),
        )
        steps_s = {name: self.random.choice([0.25, 0.5, 1.0]) for name in plans}
        self.names, self.world = list(plans), World(plans, seed=seed, step_s=steps_s)
        self.world.faults = Faults(delay_s=(0.02, self.random.choice([0.05, 0.5, 2.0])))
        if self.random.random() < 0.4:
            self.world.faults = Faults(loss=0.2, duplicates=0.2, delay_s=(0.05, 1.5))
        self.ended: Ended = {}
        self.world.start_all()
        self.world.run(20.0)
        late_s = self.random.choice([0.5, 5.0, 25.0])
        self.ends_at_s = {name: self.world.now_s + self.random.uniform(0.0, late_s) for name in self.names}
        self.world.at(0.0, self._poll)

    def run(self) -> None:
        """Let things go wrong for a while, then heal them all; everybody must end, and nobody otherwise."""
        until_s = self.world.now_s + self.random.choice([8.0, 30.0, 60.0, 90.0])
        while self.world.now_s < until_s:
            self._pass(self.random.expovariate(1 / self.random.choice([0.3, 1.0, 4.0])))
            self._hurt()
        self._heal()
        islands = self.world.islands.values()
        said = "\n".join(self.world.trace)
        assert self.world.run(20 * WAIT_S, lambda: self._look() or all(i.core.phase is Phase.DONE for i in islands)), (
            f"{[i.name for i in islands if i.core.phase is not Phase.DONE]} never end:\n{said}"
        )
        self._pass(5 * WAIT_S)
        outcomes = [weights for provisional, weights in self.ended.values() if not provisional]
        held = [island.held.slow for island in islands if not island.core.provisional]
        assert all(weights == outcomes[0] for weights in (*outcomes, *held)), f"two outcomes:\n{said}"

    def _poll(self) -> None:
        for name, island in self.world.islands.items():
            over = self.world.now_s >= self.ends_at_s[name]
            island.trains = not over
            if island.alive and over and island.core.phase is Phase.TRAINING:
                island.snapshot()
                island.finish()
        self.world.at(0.25, self._poll)

    def _pass(self, seconds: float) -> None:
        self.world.run(seconds, self._look)
        self._look()

    def _look(self) -> bool:
        for name, island in self.world.islands.items():
            key = (name, island.incarnation)
            if island.alive and island.core.phase is Phase.DONE and key not in self.ended:
                self.ended[key] = island.core.provisional, dict(island.held.slow)
                island.snapshot()
        return False

    def _hurt(self) -> None:
        what, one_two = self.random.random(), self.random.sample(self.names, 2)
        if what < 0.35:
            self.world.cut(*one_two)
        elif what < 0.45:
            half = sorted(self.random.sample(self.names, self.random.randint(1, len(self.names) - 1)))
            for pair in itertools.product(half, [name for name in self.names if name not in half]):
                self.world.cut(*pair)
        elif what < 0.7:
            self.world.connect(*one_two)
        elif what < 0.8:
            self._connect_all()
        elif what < 0.9:
            if self.world[one_two[0]].alive:
                self.world.crash(one_two[0])
        else:
            self._restart(*[name for name in self.names if not self.world[name].alive][:1])

    def _restart(self, *names: str) -> None:
        for name in names:
            island = self.world[name]
            self.world.start(name, island.snapshots[-1] if island.snapshots else None)

    def _heal(self) -> None:
        self.world.faults = Faults()
        self._restart(*[name for name in self.names if not self.world[name].alive])
        self._connect_all()

    def _connect_all(self) -> None:
        for pair in itertools.combinations(self.names, 2):
            self.world.connect(*pair)


def run_schedule(seed: int) -> None:
    Schedule(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 80, 10))
def test_whatever_happens_at_the_end_all_islands_end_and_no_two_outcomes_are_the_runs(first: int) -> None:
    for seed in range(first, first + 10):
        run_schedule(seed)


def test_a_vote_counts_for_the_plan_it_was_cast_in_and_not_for_the_one_that_made_the_outcome() -> None:
    """Two parts of a run each come to an outcome that is not the run's yet; the one that most vote for later is."""
    a, b, c, d, z = names = ("ash", "birch", "cedar", "dogwood", "elm")
    world = World(make_plans(5, finish_wait_s=20.0), step_s=dict.fromkeys(names, 0.5))
    world.start_all()
    world.run(20.0)

    def taken(giver: str) -> bool:
        """Whether the last island has given its weights to a plan and not yet taken its outcome."""
        own, other = (world[name].core.freeze_end() for name in (z, giver))
        return own.plan is not None and giver in own.plan.members and own.at[0] < 2 <= other.at[0]

    for pair in itertools.product((c, d), (a, b, z)):
        world.cut(*pair)
    for name in (a, b, z):
        world[name].finish()
    assert world.run(300.0, lambda: taken(a))
    for name in (a, b):
        world.cut(z, name)
    world.run(3.0)
    for name in (c, d):
        world[name].finish()
        world.connect(z, name)
    assert world.run(200.0, lambda: taken(c))
    for name in (c, d):
        world.cut(z, name)
    for name in (a, b):
        world.connect(z, name)
    assert world.run(300.0, lambda: not any(world[name].core.provisional for name in (a, b, z)))
    outcome = dict(world[a].held.slow)
    for pair in itertools.product((c, d), (a, b, z)):
        world.connect(*pair)
    world.run(300.0)
    final = [name for name in names if not world[name].core.provisional]
    assert set(final) >= {a, b, z}
    assert all(world[name].held.slow == outcome for name in final)
