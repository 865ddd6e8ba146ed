"""Many islands in pairs: how fast a round's progress reaches all, and what momentum is made of."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from isthmus.observe import records
from isthmus.schedule import OuterPlan, OuterStep
from worlds import Settings, SmallWorld

EIGHT = "abcdefgh"
SETTINGS = Settings(codec="fp32", window_steps=24, fragments=2, flight_steps=2, budget_steps=400)
"""The first fragment departs after steps 12, 36 and 60; three meetings have then taken some 16 steps."""


def apart(world: SmallWorld, what: str) -> float:
    """How far islands are from their mean at most, over the first fragment's parameters."""
    each = torch.stack([vector(world, name, what) for name in world.names])
    return float((each - each.mean(0)).abs().max())


def vector(world: SmallWorld, name: str, what: str) -> torch.Tensor:
    slow = world[name].engine.slow
    state = slow.state_dict()
    names = [entry.name for entry in slow.fragments[0].entries if entry.name in state["velocity"]]
    return torch.cat([state[what][entry].flatten() for entry in names])


def ran(steps: int, names: str = EIGHT, **changes: object) -> SmallWorld:
    world = SmallWorld(names, dataclasses.replace(SETTINGS, **changes)).start()
    for name in names:
        world.run_to_step(name, steps)
    return world


def test_as_many_meetings_as_dimensions_bring_a_rounds_progress_to_all_before_the_next():
    world = ran(32, meetings=3)
    assert apart(world, "slow") < 1e-6
    assert apart(ran(32), "slow") > 1e-3
    for name in EIGHT:
        met = [record.peer for record in world[name].of(records.Meeting) if record.fragment == 0]
        assert len(set(met)) == 3


def test_meetings_after_a_departure_take_no_outer_step():
    world = ran(47, meetings=3)
    for name in EIGHT:
        assert [record.fragment for record in world[name].of(records.Departure)] == [0, 1, 0]
        assert world[name].engine.memory.rounds == [2, 1]


@pytest.mark.parametrize("names", ["ab", EIGHT])
def test_momentum_of_the_mixed_model_is_that_of_one_shared_outer_optimizer(names: str):
    outer = OuterPlan(OuterStep(0.7, 0.6), calm_rounds=0, calm_share=0.0)
    settings = {"outer": outer, "meetings": 3 if len(names) > 2 else 1}
    mixed, local = ran(58, names, mixed_momentum=True, **settings), ran(58, names, **settings)
    assert apart(mixed, "velocity") < 1e-5
    assert apart(local, "velocity") > 1e-2
    assert apart(mixed, "slow") < 1e-5
