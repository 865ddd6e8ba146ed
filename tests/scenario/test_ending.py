"""The end of a run of pairs, with tensors: one outcome, bit for bit, which is the mean by mass of what islands held."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
import torch

from isthmus.observe import records
from isthmus.terms import Ending, EndPlan, MessageReceived, Phase
from worlds import Settings, SmallWorld

SETTINGS = Settings(window_steps=6, flight_steps=2, budget_steps=30, finish_wait_s=30.0)
SPEEDS = {"b": 1.7, "c": 0.6, "d": 1.2}


def ended(names: str, **changes: object) -> SmallWorld:
    world = SmallWorld(names, dataclasses.replace(SETTINGS, **changes), step_s=SPEEDS).start()
    world.run()
    return world


@pytest.mark.parametrize("codec", ["int4", "fp32"])
@pytest.mark.parametrize("names", ["ab", "abc", "abcd", "abcde", "abcdefg"])
def test_any_number_of_islands_end_with_the_same_bits(names: str, codec: str):
    world = ended(names, codec=codec)
    digests = {world[name].engine.slow.digest() for name in names}
    assert len(digests) == 1
    assert not any(world[name].engine.core.provisional for name in names)
    for name in names:
        world[name].engine.slow.take_in()
        assert torch.equal(world[name].fast(), world[name].slow())


def test_the_outcome_is_the_mean_by_mass_of_what_islands_held_at_their_end():
    world = ended("abcde")
    masses = {name: standing.mass for name, standing in standings_of(world, "a").items()}
    total = sum(masses.values())
    held = {name: world[name].fast().double() for name in "abcde"}
    mean = sum(masses[name] / total * held[name] for name in "abcde")
    assert max(float((each - mean).abs().max()) for each in held.values()) > 1e-4
    torch.testing.assert_close(world["a"].slow().double(), mean, rtol=0, atol=1e-6)


def test_the_last_meetings_are_final_in_the_records():
    world = ended("abc")
    final = [record for record in world["a"].of(records.Meeting) if record.final]
    assert final
    assert [record.final for record in world["a"].of(records.Meeting)][-len(final) :] == [True] * len(final)


def test_a_plan_that_its_author_did_not_sign_is_refused():
    world = SmallWorld("abc", SETTINGS).start()
    world.run_to_step("a", 12)
    engine = world["a"].engine
    engine.effects = dataclasses.replace(engine.effects, check_plan=lambda plan, signature: signature == b"good")
    forged = EndPlan(
        run=engine.plan.run, number=64, author="b", members=("a", "b"), steps=(), result=64, base=0, binding=True
    )
    for signature in (b"bad", b"good"):
        ending = Ending(standings={}, plan=forged, signature=signature)
        engine.effects.link.tell(MessageReceived("c", ending))
        engine.pump()
    alarms = [record.what for record in world["a"].of(records.Alarm)]
    assert alarms == ["c showed a plan for the end that b did not sign"]


def test_an_island_signs_its_own_plans_and_passes_on_others_signatures():
    world = SmallWorld("abc", SETTINGS).start()
    told: dict[str, set[tuple[str, bytes]]] = {name: set() for name in "abc"}
    for name in "abc":
        engine = world[name].engine
        engine.effects = dataclasses.replace(engine.effects, sign_plan=lambda plan, by=name: f"by {by}".encode())
        engine.effects.link.send = listening(engine.effects.link.send, told[name])
    world.run()
    assert world["a"].engine.phase is Phase.DONE
    assert told == {name: {("a", b"by a")} for name in "abc"}


def listening(send, told):
    def listen(peer, message):
        if isinstance(message, Ending) and message.plan is not None:
            told.add((message.plan.author, message.signature))
        send(peer, message)

    return listen


def standings_of(world: SmallWorld, name: str):
    return msgspec.structs.asdict(world[name].engine.core.freeze().ending)["standings"]
