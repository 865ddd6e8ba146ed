"""The edge table, by both rules, under random schedules of loss, repetition, reordering, cuts and restarts.

A failing seed is named in the failure; ``ISTHMUS_SEED=n pytest tests/property/test_edge_table.py -k one_schedule``
runs it alone and shows what happened when.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from random import Random

import pytest

from isthmus.roster import partners
from isthmus.session.memory import Rule
from isthmus.terms import Phase
from toy_islands import ToyIsland, make_plans, reference_of
from toy_world import Faults, World

NUM_SCHEDULES = int(os.environ.get("SOAK_SCHEDULES", "2000"))
NUM_MESH_SCHEDULES = NUM_SCHEDULES // 4
NUM_BLOCKS = 20
CHAOS_S = 30.0
HEAL_S = 240.0
END_S = 100.0
VERSIONS_AFTER = 2
MAX_HELLOS_PER_S = 4.0


class Schedule:
    """One random schedule: chaos, then peace, then the questions."""

    def __init__(self, seed: int, rule: Rule) -> None:
        self.rng, self.rule = Random(seed), rule
        rng = self.rng
        num_islands, num_fragments = rng.choice((2, 2, 3) if rule == "pair" else (2, 3, 4)), rng.randint(1, 3)
        plans = make_plans(
            num_islands,
            num_fragments,
            rule=rule,
            window_steps=rng.randint(max(2, num_fragments), 4),
            flight_steps=rng.randint(0, 2),
            save_every_steps=rng.randint(2, 8),
        )
        if rng.random() < 0.1:
            name = rng.choice(list(plans))
            plans[name] = replace(plans[name], initial=tuple(reference_of(f"odd {f}") for f in range(num_fragments)))
        self.world = World(plans, seed=seed, step_s={name: rng.uniform(0.3, 1.0) for name in plans})
        for island in self.world.islands.values():
            island.tokens_per_step = rng.choice((100, 300))

    def run(self) -> None:
        """Chaos, peace and the end of the run; AssertionError where a promise is broken."""
        self._chaos()
        self._peace()
        self._reconverges()
        self._histories_agree()
        self._tokens_count_once()
        self._ends()

    def _chaos(self) -> None:
        world, rng = self.world, self.rng
        world.faults = Faults(
            loss=rng.choice((0.02, 0.1, 0.3)),
            duplicates=rng.choice((0.0, 0.1, 0.3)),
            delay_s=rng.choice(((0.05, 0.1), (0.05, 1.0), (0.05, 4.0))),
        )
        world.start_all()
        for _ in range(rng.randint(6, 24)):
            strike = rng.choice((self._cut, self._cut, self._crash, self._crash, self._save))
            world.at(rng.uniform(1.0, CHAOS_S), strike)
        world.run(CHAOS_S)

    def _peace(self) -> None:
        world = self.world
        world.faults = Faults()
        world.note("peace")
        for island in world.islands.values():
            island.fuse = None
            if not island.alive:
                self._restart(island)
        for name in world.islands:
            for other in world.islands:
                if name < other:
                    world.connect(name, other)

    def _cut(self) -> None:
        world, rng = self.world, self.rng
        one, other = rng.sample(list(world.islands), 2)
        world.cut(one, other)
        world.at(rng.uniform(0.1, 6.0), lambda: world.connect(one, other))

    def _crash(self) -> None:
        island = self.world[self.rng.choice(list(self.world.islands))]
        if island.alive:
            island.fuse = self.rng.randint(0, 8)
            self.world.at(self.rng.uniform(1.0, 6.0), lambda: self._restart(island))

    def _save(self) -> None:
        island = self.world[self.rng.choice(list(self.world.islands))]
        if island.alive:
            island.snapshot()

    def _restart(self, island: ToyIsland) -> None:
        if island.alive:
            return
        del island.snapshots[:-4]
        chance = self.rng.random()
        if chance < 0.15 or not island.snapshots:
            island.snapshots.clear()
            self.world.start(island.name)
        else:
            chosen = island.snapshots[-1] if chance < 0.6 else self.rng.choice(island.snapshots)
            if self.rng.random() < 0.5:
                del island.snapshots[island.snapshots.index(chosen) + 1 :]
            self.world.branched |= chosen is not island.snapshots[-1]
            self.world.start(island.name, chosen)

    def _reconverges(self) -> None:
        """Every edge: both ends open and equal, again and again at growing versions where the two should meet."""
        world = self.world
        wanted = {
            (name, peer, fragment): VERSIONS_AFTER if self._should_meet(name, peer) else 1
            for name, island in world.islands.items()
            for peer in island.plan.peers
            if name < peer
            for fragment in island.plan.fragments
        }
        agreed: dict[tuple[str, str, int], set[tuple[int, int]]] = {key: set() for key in wanted}
        hellos, began_s = world.hellos.total(), world.now_s

        def reconverged() -> bool:
            for (name, peer, fragment), states in agreed.items():
                mine, theirs = world[name].edge(peer, fragment), world[peer].edge(name, fragment)
                state = (mine.epoch, mine.version)
                equal = (*state, mine.reference) == (theirs.epoch, theirs.version, theirs.reference)
                if mine.open and theirs.open and equal:
                    states.add(state)
            return all(len(states) >= wanted[key] for key, states in agreed.items()) and all(
                island.core.phase is Phase.TRAINING for island in world.islands.values()
            )

        done = world.run(HEAL_S, reconverged)
        missing = {key: sorted(states) for key, states in agreed.items() if len(states) < wanted[key]}
        phases = {name: island.core.phase.value for name, island in world.islands.items()}
        assert done, f"no agreement after {HEAL_S} s of peace at {missing}, phases {phases}: {self._edges()}"
        rate = (world.hellos.total() - hellos) / (world.now_s - began_s + 5.0)
        assert rate <= MAX_HELLOS_PER_S * len(wanted), f"a storm of {rate:.1f} HELLOs a second"

    def _should_meet(self, name: str, peer: str) -> bool:
        if self.rule == "mesh":
            return True
        plan = self.world[name].plan
        slots = (plan.slot, *plan.peers.values())
        return any(partner.slot == plan.peers[peer] for partner in partners(plan.slot, slots))

    def _edges(self) -> str:
        lines = [
            f"{name}-{peer} {fragment}: {edge}"
            for name, island in self.world.islands.items()
            for peer, fragment, edge in island.memory.all_edges()
        ]
        return "\n" + "\n".join(lines)

    def _histories_agree(self) -> None:
        """Two ends that applied a meeting to the same reference applied the same pair, with the same outcome.

        An island that goes back to an older checkpoint and then to one that it had written before that has two pasts;
        where its partner knows the other one, the table must have noticed and begun a new epoch.
        """
        for name, island in self.world.islands.items():
            for (peer, fragment, epoch, version), met in island.held.lineage.items():
                other = self.world[peer].held.lineage.get((name, fragment, epoch, version))
                given_up = self.world.branched and epoch < island.edge(peer, fragment).epoch
                if other is not None and other.before == met.before and not given_up:
                    assert other[:3] == met[:3], (
                        f"{name} and {peer} applied other pairs at {fragment}, {epoch}, {version}"
                    )

    def _tokens_count_once(self) -> None:
        for island in self.world.islands.values():
            for (peer, _), tokens in island.held.counted.items():
                now = self.world[peer].memory.tokens
                assert tokens <= now, f"{island.name} mixed {tokens} tokens of {peer}, which has trained only {now}"
            for peer, known in island.memory.peers.items():
                shown = known.held.header.tokens if known.held else 0
                assert shown <= self.world[peer].memory.tokens, (
                    f"{peer} counts tokens again that {island.name} can show"
                )

    def _ends(self) -> None:
        """Every island ends; two islands, or all of a mesh, with the same references, and none provisionally."""
        world = self.world
        for island in world.islands.values():
            world.at(self.rng.uniform(0.0, 10.0), island.finish)
        done = world.run(END_S, lambda: all(island.core.phase is Phase.DONE for island in world.islands.values()))
        assert done, f"not all end: { {name: island.core.phase.value for name, island in world.islands.items()} }"
        if len(world.islands) == 2 or self.rule == "mesh":
            assert not any(island.core.provisional for island in world.islands.values()), self._edges()
            for one, other in itertools.combinations(world.islands.values(), 2):
                references = [edge.reference for edge in one.memory.edges[other.name]]
                assert references == [edge.reference for edge in other.memory.edges[one.name]], self._edges()


def replay(seed: int, rule: Rule) -> None:
    """Run one schedule; a failure tells the seed and what happened when."""
    one = Schedule(seed, rule)
    try:
        one.run()
    except Exception as error:
        trace = "\n".join(one.world.trace)
        raise AssertionError(
            f"{rule} schedule {seed} fails; replay it with ISTHMUS_SEED={seed}: {error!r}\n{trace}"
        ) from error


@pytest.mark.slow
@pytest.mark.parametrize("block", range(NUM_BLOCKS))
def test_all_schedules_reconverge_without_fork_or_repetition(block):
    for seed in range(block, NUM_SCHEDULES, NUM_BLOCKS):
        replay(seed, "pair")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(NUM_BLOCKS))
def test_all_schedules_of_a_mesh_reconverge_without_fork_or_repetition(block):
    for seed in range(block, NUM_MESH_SCHEDULES, NUM_BLOCKS):
        replay(seed, "mesh")


@pytest.mark.parametrize("rule", ["pair", "mesh"])
def test_one_schedule_replays_alike(rule):
    seed = int(os.environ.get("ISTHMUS_SEED", "0"))
    replay(seed, rule)
    first, second = Schedule(seed, rule), Schedule(seed, rule)
    first.run()
    second.run()
    assert first.world.trace == second.world.trace
    assert first.world.now_s == second.world.now_s
