"""What must be equal before any curve is looked at."""

from __future__ import annotations

import copy
import random
from itertools import takewhile

import numpy as np
import pytest
import torch

from isthmus import mixing
from isthmus.observe import records
from isthmus.schedule import OuterPlan, OuterStep, departures
from isthmus.session.memory import Rule
from isthmus.transport import LinkQuality
from worlds import Batches, Settings, SmallWorld, Toy, train_step

CALM = OuterPlan(OuterStep(1.0, 0.0), calm_rounds=0, calm_share=0.0)


def test_one_island_with_a_plain_outer_step_is_plain_training():
    world = SmallWorld("a", Settings(outer=CALM)).start()
    world.run()
    model, data = Toy(), Batches(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = [train_step(model, optimizer, data.next()) for _ in range(40)]
    assert world["a"].losses == losses
    for name, tensor in world["a"].engine.slow.slow_weights().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_an_island_alone_in_its_roster_sends_nothing():
    world = SmallWorld("a").start()
    world.run()
    assert world["a"].of(records.Departure)
    assert not any(record.published for record in world["a"].of(records.Departure))
    assert not world["a"].of(records.LinkRate)
    assert not world["a"].engine.core.provisional


def streaming_diloco(settings: Settings, steps: int, num_islands: int) -> tuple[list[list[float]], list[torch.Tensor]]:
    """Islands with one shared anchor and velocity per fragment, results applied after the flight steps."""
    models, shares = [Toy() for _ in range(num_islands)], [1 / num_islands] * num_islands
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.02) for model in models]
    data, losses = [Batches(slot) for slot in range(num_islands)], [[] for _ in models]
    names = [[e.name for e in f.entries] for f in SmallWorld("a", settings).start()["a"].engine.slow.fragments]
    anchor = {n: t.clone() for n, t in models[0].state_dict().items()}
    shared = {n: torch.zeros_like(t) for n, t in anchor.items()}
    own = [copy.deepcopy(shared) for _ in models]
    (lr, mu), flight = settings.outer.step, []
    for step in range(1, steps + 1):
        for i in range(num_islands):
            losses[i].append(train_step(models[i], optimizers[i], data[i].next()))
        for due, name, merged, said in flight:
            for i in range(num_islands) if due == step else ():
                models[i].state_dict()[name].add_(merged - said[i])
        for p in departures(step, window_steps=settings.window_steps, num_fragments=settings.fragments):
            for name in names[p]:
                eta, m = (1.0, 0.0) if name == "seen" else (lr, mu)
                fast = [model.state_dict()[name] for model in models]
                delta = [anchor[name] - theta for theta in fast]
                said = [anchor[name].clone() for _ in models]
                for i in range(num_islands):
                    mixing.mesh_round(said[i], own[i][name], [delta[i]], [1.0], outer_lr=eta, momentum=m)
                    fast[i].copy_(said[i])
                mixing.mesh_round(anchor[name], shared[name], delta, shares, outer_lr=eta, momentum=m)
                flight.append((step + settings.flight_steps, name, anchor[name].clone(), said))
    return losses, [torch.cat([t.flatten() for t in model.state_dict().values()]) for model in models]


@pytest.mark.parametrize(("names", "rule"), [("ab", "pair"), ("ab", "mesh"), ("abc", "mesh"), ("abcde", "mesh")])
def test_a_pair_or_a_mesh_without_loss_is_streaming_diloco_step_by_step(names, rule):
    settings = Settings(codec="fp32", budget_steps=60, window_steps=8, fragments=3, flight_steps=3, rule=rule)
    world = SmallWorld(names, settings).start()
    world.run_to_step("a", 59)
    expected, weights = streaming_diloco(settings, 59, len(names))
    for island, losses, flat in zip(names, expected, weights, strict=True):
        assert world[island].losses[:59] == pytest.approx(losses, abs=2e-6)
        own = torch.cat([t.flatten() for t in world[island].model.state_dict().values()])
        assert torch.allclose(own, flat, atol=2e-6)
    assert len(world["a"].of(records.Meeting)) > 15
    assert not any(record.late for record in world["a"].of(records.Meeting))


@pytest.mark.parametrize("codec", ["int4", "fp32"])
def test_until_the_end_a_mesh_of_two_is_a_pair_bit_for_bit_in_all_that_it_writes_down(codec):
    def lived(rule: Rule) -> list[list[records.Record]]:
        settings = Settings(codec=codec, budget_steps=60, rule=rule)
        quality = LinkQuality(delay_s=0.3, rate_bits_per_s=20_000)
        world = SmallWorld("ab", settings, quality=quality, step_s={"b": 1.7}).start()
        world.run()
        assert world["a"].engine.slow.digest() == world["b"].engine.slow.digest()
        return [[*takewhile(before_the_end, island.records)] for island in world.islands.values()]

    def before_the_end(record: records.Record) -> bool:
        return not isinstance(record, records.PhaseChange) or record.phase != "finishing"

    pair, mesh = lived("pair"), lived("mesh")
    assert any(record.late for record in pair[0] if isinstance(record, records.Meeting))
    assert pair == mesh


@pytest.mark.parametrize("codec", ["int4", "int8", "fp32"])
def test_two_islands_end_with_the_same_bits(codec):
    world = SmallWorld("ab", Settings(codec=codec), step_s={"b": 1.7}).start()
    world.run()
    a, b = world["a"].engine, world["b"].engine
    assert a.slow.digest() == b.slow.digest()
    assert not a.core.provisional
    assert not b.core.provisional


def test_the_same_seed_gives_the_same_bytes_twice():
    def lived() -> tuple[list[records.Record], list[bytes], list[str]]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        quality = LinkQuality(delay_s=0.3, rate_bits_per_s=20_000, loss=0.1, duplication=0.1, reordering=0.2)
        settings = Settings(save_every_steps=10)
        world = SmallWorld("abc", settings, seed=7, quality=quality, step_s={"b": 1.3, "c": 0.8}).start()
        world.run(at_most_s=200)
        islands = world.islands.values()
        files = [island.storage.open(name).read() for island in islands for name in island.storage.names()]
        told = [record for island in islands for record in island.records]
        return told, files, [island.engine.slow.digest() for island in islands]

    first, second = lived(), lived()
    assert len(first[0]) > 300
    assert len(first[1]) >= 6
    assert first == second
