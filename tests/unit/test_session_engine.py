"""The engine over whole runs: what it keeps, what it writes down, and what it never rebinds."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from isthmus.checkpoint import MemoryStorage, load_latest, save
from isthmus.errors import CheckpointError, ShapeError
from isthmus.observe import records
from isthmus.session import Engine
from isthmus.session.copies import Landing, SideStream
from isthmus.terms import Phase, PublicationReceived
from isthmus.transport import LinkQuality
from worlds import BATCH, Settings, SmallWorld, Toy

SETTINGS = Settings(window_steps=6, flight_steps=4, budget_steps=48, finish_wait_s=60)


def ran(step_s: float = 1.3) -> SmallWorld:
    world = SmallWorld("ab", SETTINGS, step_s={"b": step_s}).start()
    world.run()
    return world


# -- tensors -----------------------------------------------------------------------------------------------------------


def test_no_parameter_or_buffer_is_rebound_over_a_whole_run():
    world = SmallWorld("ab", SETTINGS).start()
    places = {name: tensor.data_ptr() for name, tensor in world["a"].model.state_dict(keep_vars=True).items()}
    kept = dict(world["a"].model.named_parameters())
    world.run()
    world["a"].engine.slow.take_in()
    after = world["a"].model.state_dict(keep_vars=True)
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == places
    assert all(parameter is kept[name] for name, parameter in world["a"].model.named_parameters())


def test_after_the_end_the_model_can_hold_exactly_the_slow_weights():
    world = ran()
    for name in "ab":
        world[name].engine.slow.take_in()
        assert torch.equal(world[name].fast(), world[name].slow())


# -- an accelerator ----------------------------------------------------------------------------------------------------


class LateSide(SideStream):
    """Bytes on their way to the host are there when they are waited for, and not before; counts what is under way."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.under_way = 0

    def down(self, source: torch.Tensor, out: memoryview) -> Landing:
        self.under_way += 1
        return Late(self, super().down(source, out))


class Late:
    def __init__(self, side: LateSide, landing: Landing) -> None:
        self._side, self._landing, self._landed = side, landing, False

    def finish(self) -> None:
        self._landing.finish()
        self._side.under_way -= not self._landed
        self._landed = True


def test_what_is_coded_on_an_accelerator_is_sent_a_step_later_and_the_run_ends_with_one_model():
    side = LateSide()
    world = SmallWorld("ab", dataclasses.replace(SETTINGS, side=side)).start()
    world.run_to_step("a", 3)
    assert [record.published for record in world["a"].of(records.Departure)] == [True]
    assert world["a"].of(records.Published) == []
    assert side.under_way > 0
    world.run_to_step("a", 4)
    assert side.under_way == 0
    world.run()
    assert side.under_way == 0
    assert all(len(world[name].of(records.Meeting)) > 4 for name in "ab")
    assert torch.equal(world["a"].slow(), world["b"].slow())


def test_a_checkpoint_and_an_arrival_wait_for_what_is_still_on_its_way_to_the_host():
    side = LateSide()
    world = SmallWorld("ab", dataclasses.replace(SETTINGS, side=side)).start()
    world.run_to_step("a", 3)
    payloads = world["a"].engine.state_dict()["payloads"]
    assert [any(payload) for _, _, payload in payloads.values()] == [True]


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_payloads_and_references_stay_as_many_over_two_hundred_rounds():
    settings = dataclasses.replace(SETTINGS, window_steps=2, flight_steps=1, fragments=2, budget_steps=10_000)
    quality = LinkQuality(delay_s=0.01, loss=0.05, duplication=0.05)
    world = SmallWorld("ab", settings, seed=3, quality=quality).start()
    most, early = 0, 0
    for step in range(10, 210, 10):
        world.run_to_step("a", step)
        state = world["a"].engine.state_dict()
        most = max(most, len(state["payloads"]))
        assert len(state["slow"]["references"]) <= 2 and len(state["rms"]) <= 2
        early = early or len(state["memory"])
    assert sum(world["a"].engine.memory.rounds) >= 200
    assert most <= 3 * settings.fragments
    assert len(state["memory"]) < early + 500


def test_a_payload_that_no_edge_takes_is_not_kept():
    world = SmallWorld("ab", SETTINGS).start()
    world.run_to_step("a", 12)
    (record, *_) = world["a"].of(records.Received)
    engine = world["a"].engine
    stale = next(e for e in world["b"].of(records.Published) if e.publication == record.publication)
    (header, _) = world["b"].engine.memory.edges["a"][stale.fragment].last
    before = engine.state_dict()["payloads"].keys()
    signed = engine.memory.peers["b"].held
    engine.effects.link.tell(PublicationReceived("b", signed, memoryview(b"again")))
    engine.pump()
    assert header.sender == "b"
    assert engine.state_dict()["payloads"].keys() == before


# -- state -------------------------------------------------------------------------------------------------------------


def test_an_engine_made_of_a_state_has_that_state():
    world = SmallWorld("ab", SETTINGS).start()
    world.run_to_step("a", 20)
    storage = MemoryStorage()
    save(storage, 20, world["a"].engine.state_dict())
    state, _ = load_latest(storage)
    save(world["a"].storage, 20, state)
    digest, memory = world["a"].engine.slow.digest(), world["a"].engine.memory
    fast, references = world["a"].fast(), hashes(world["a"].engine)
    world.kill("a")
    world.start("a")
    again = world["a"].engine
    assert again.slow.digest() == digest
    assert torch.equal(world["a"].fast(), fast)
    assert hashes(again) == references
    assert (again.memory.step, again.memory.tokens, again.memory.rounds) == (20, 20 * BATCH, memory.rounds)
    assert not any(edge.open for edge in again.memory.edges["b"])
    assert again.state_dict()["payloads"] == state["payloads"]
    assert again.state_dict()["rms"] == state["rms"]


def hashes(engine: Engine) -> list[bytes]:
    return [engine.slow.reference_hash("b", fragment) for fragment in engine.plan.fragments]


def test_a_state_of_another_run_is_refused():
    world = SmallWorld("a", SETTINGS).start()
    state = world["a"].engine.state_dict() | {"run": "cd" * 32}
    with pytest.raises(CheckpointError, match=r"another run or version.*cdcdcdcdcdcd.*abababababab"):
        remade(world, state)


def test_a_state_of_another_version_is_refused():
    world = SmallWorld("a", SETTINGS).start()
    with pytest.raises(CheckpointError, match="format 99"):
        remade(world, world["a"].engine.state_dict() | {"format": 99})


def test_a_state_of_another_model_is_refused_by_name():
    world = SmallWorld("a", SETTINGS).start()
    other = SmallWorld("a", SETTINGS, toy=lambda name: Shorter()).start()
    with pytest.raises(ShapeError, match=r"layers\.2\.weight"):
        remade(world, other["a"].engine.state_dict())


class Shorter(Toy):
    """A toy that lacks its last layer."""

    def __init__(self) -> None:
        super().__init__()
        del self.layers[2]


def remade(world: SmallWorld, state: dict[str, object]) -> Engine:
    engine = world["a"].engine
    return Engine(engine.plan, engine.slow, engine.trainee, engine.effects, 2, state)


# -- records -----------------------------------------------------------------------------------------------------------


def test_departures_are_numbered_per_fragment_and_say_what_they_published():
    world = ran(step_s=3.0)
    for name in "ab":
        departures = world[name].of(records.Departure)
        for fragment in (0, 1):
            rounds = [record.round for record in departures if record.fragment == fragment]
            assert rounds == list(range(len(rounds)))
        assert any(record.published for record in departures)
        for record in departures:
            assert record.published == bool(record.publication) == (record.peer is not None) == (not record.reason)
            assert record.published == (record.rms is not None)
    assert any(record.answer for record in world["b"].of(records.Departure))


def test_a_meeting_is_written_at_both_ends_with_mirrored_ids_weights_and_one_reference():
    world = ran()

    def key(record: records.Meeting) -> tuple[int, int]:
        return record.fragment, record.version

    ends = [{key(record): record for record in world[name].of(records.Meeting)} for name in "ab"]
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) >= 10
    for at, a in ends[0].items():
        b = ends[1][at]
        assert (a.publication, a.peer_publication) == (b.peer_publication, b.publication)
        assert (a.weight, a.peer_weight) == (b.peer_weight, b.weight)
        assert a.weight + a.peer_weight == 1.0
        assert a.reference == b.reference
        assert a.final == b.final


def test_a_meeting_is_late_if_it_came_after_its_slot_and_its_flight():
    world = ran()
    slot_steps = SETTINGS.window_steps // SETTINGS.fragments
    meetings = [record for name in "ab" for record in world[name].of(records.Meeting)]
    for record in meetings:
        assert record.late == (record.arrived_step - record.departed_step > slot_steps + SETTINGS.flight_steps)
        assert record.age_s >= 0.0
    assert not all(record.late for record in meetings)


def test_meetings_over_a_slow_link_are_late():
    world = SmallWorld("ab", SETTINGS, quality=LinkQuality(delay_s=9.0)).start()
    world.run()
    meetings = [record for record in world["a"].of(records.Meeting) if not record.final]
    assert meetings
    assert all(record.late for record in meetings[:-2])


def test_what_was_published_was_received_with_the_same_bytes():
    world = ran()
    sent = {record.publication: record for record in world["b"].of(records.Published)}
    received = world["a"].of(records.Received)
    assert len(received) >= 10
    for record in received:
        own = sent[record.publication]
        assert (record.fragment, record.codec, record.payload_bytes) == (own.fragment, own.codec, own.payload_bytes)
        assert own.wire_bytes == record.wire_bytes > own.payload_bytes
        assert own.num_parameters == world["b"].engine.slow.fragments[own.fragment].numel


def test_phases_are_written_in_order_and_the_last_meetings_are_marked_final():
    world = ran()
    for name in "ab":
        phases = [record.phase for record in world[name].of(records.PhaseChange)]
        assert phases == [Phase.TRAINING, Phase.FINISHING, Phase.DONE]
        final = [record for record in world[name].of(records.Meeting) if record.final]
        assert {record.fragment for record in final} == {0, 1}


def test_every_record_is_stamped_with_island_time_step_and_tokens():
    world = ran()
    for name in "ab":
        stamped = world[name].records
        assert {record.island for record in stamped} == {name}
        assert all(record.tokens == record.step * BATCH for record in stamped)
        times = [record.t_s for record in stamped]
        assert times == sorted(times)
