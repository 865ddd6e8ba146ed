"""The end of a run: last departures, last meetings without loss, and no waiting for ever."""

from __future__ import annotations

import pytest

from isthmus import schedule
from isthmus.session.orders import Arrive, Depart, Mode, Withheld
from isthmus.session.trade import LOSSLESS
from isthmus.terms import PeerDown, Phase, Pulse
from lone_core import LoneCore, headers, published, sent
from toy_islands import make_plans
from toy_world import World


def finishing(core: LoneCore) -> list:
    core.core.finish(core.now_s)
    return core.feed()


def done(world: World, *names: str) -> bool:
    return all(world[name].core.phase is Phase.DONE for name in names)


def settled(world: World, one: str, other: str) -> bool:
    return all(
        world[one].edge(other, fragment).reference == world[other].edge(one, fragment).reference
        for fragment in world[one].plan.fragments
    )


def test_the_end_begins_with_a_plain_departure_of_every_fragment():
    core = LoneCore(num_fragments=3)
    core.start()
    departs = [order for order in finishing(core) if isinstance(order, Depart)]
    assert departs == [Depart(fragment, *schedule.CALM) for fragment in range(3)]


def test_every_fragment_is_then_published_once_more_without_loss():
    core = LoneCore(num_fragments=2)
    core.start()
    orders = finishing(core)
    assert sorted(published(orders)) == [("birch", 0), ("birch", 1)]
    assert {(header.codec, header.final) for header in headers(orders)} == {(LOSSLESS, True)}


def test_the_weight_of_a_last_meeting_is_the_last_window():
    core = LoneCore(window_steps=4, flight_steps=0)
    core.start()
    core.step(9)
    core.publish_from("birch", 7)
    assert [header.weight_tokens for header in headers(finishing(core))] == [100]


def test_a_meeting_that_is_final_at_both_ends_is_assigned():
    core = LoneCore()
    core.start()
    finishing(core)
    orders = core.publish_from("birch", 7, final=True, codec=LOSSLESS)
    assert [order.mode for order in orders if isinstance(order, Arrive)] == [Mode.ASSIGN]
    assert core.core.phase is Phase.DONE and not core.core.provisional


def test_an_answer_of_a_partner_that_still_trains_is_a_correction_and_not_the_end():
    core = LoneCore()
    core.start()
    finishing(core)
    orders = core.publish_from("birch", 7, final=False, codec=LOSSLESS)
    assert [order.mode for order in orders if isinstance(order, Arrive)] == [Mode.CORRECT]
    assert core.core.phase is Phase.FINISHING
    assert [header.final for header in headers(orders)] == [True]


def test_a_training_island_answers_a_final_knock_without_loss_but_not_as_its_last():
    core = LoneCore()
    core.start()
    core.publish_from("birch", 7, final=True, codec=LOSSLESS)
    answer = headers(core.step(2))[0]
    assert (answer.codec, answer.final) == (LOSSLESS, False)


def test_a_knock_from_before_the_end_is_answered_and_then_the_last_meeting_is_sought():
    core = LoneCore(window_steps=50)
    core.start()
    core.publish_from("birch", 7)
    assert [(header.final, header.codec) for header in headers(finishing(core))] == [(False, ""), (True, LOSSLESS)]


def test_done_is_told_by_a_pulse():
    core = LoneCore()
    core.start()
    finishing(core)
    orders = core.publish_from("birch", 7, final=True, codec=LOSSLESS)
    assert [pulse.phase for pulse in sent(orders, Pulse)][-1] is Phase.DONE


def test_an_island_that_is_done_is_not_knocked_at():
    core = LoneCore(num_islands=3)
    core.start()
    core.pulse_from("birch", Phase.DONE)
    assert published(core.step(2)) == [("cedar", 0)]


@pytest.mark.parametrize("lag_s", [0.0, 7.0])
def test_two_islands_end_with_the_same_weights_and_finals_for_every_fragment(lag_s):
    world = World(make_plans(2, 3, window_steps=3), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].finish()
    world.run(lag_s)
    world["birch"].finish()
    assert world.run(20.0, lambda: done(world, "ash", "birch"))
    assert settled(world, "ash", "birch")
    for island in world.islands.values():
        assert island.modes[Mode.ASSIGN] == 3 and not island.core.provisional


def test_a_finishing_island_keeps_a_training_one_company_without_a_storm():
    world = World(make_plans(2, 1, window_steps=2, finish_wait_s=100.0), step_s={"ash": 0.2, "birch": 1.0})
    world.start_all()
    world.run(10.0)
    world["ash"].finish()
    before = world.published["ash"]
    world.run(60.0)
    assert world["ash"].core.phase is Phase.FINISHING
    assert world.published["ash"] - before <= 60 / 2 + 2
    assert world.hellos["ash"] <= 4 + 60 / world["ash"].plan.hello_every_s
    assert world.hellos["birch"] <= 4 + 70 / (6 * world["birch"].plan.hello_every_s)


def test_three_islands_end_together():
    world = World(make_plans(3, 2), step_s=dict.fromkeys(("ash", "birch", "cedar"), 0.5))
    world.start_all()
    world.run(20.0)
    for name in world.islands:
        world[name].finish()
    assert world.run(200.0, lambda: done(world, *world.islands))


def test_an_island_whose_partner_is_silent_ends_provisionally_after_the_wait():
    core = LoneCore(finish_wait_s=60.0)
    core.start()
    finishing(core)
    core.now_s = 59.0
    core.feed()
    assert core.core.phase is Phase.FINISHING and core.core.waits_for == ("birch",)
    core.now_s = 60.0
    core.feed()
    assert core.core.phase is Phase.DONE and core.core.provisional


def test_an_island_whose_partner_is_dead_waits_for_it_and_then_ends_provisionally():
    core = LoneCore(finish_wait_s=60.0)
    core.start()
    core.feed(PeerDown("birch", "lost"))
    finishing(core)
    assert core.core.phase is Phase.FINISHING and core.core.waits_for == ("birch",)
    core.now_s = 60.0
    core.feed()
    assert core.core.phase is Phase.DONE and core.core.provisional
    assert core.core.waits_for == ()


def test_a_link_that_is_cut_when_the_run_ends_costs_nothing_if_it_comes_back():
    world = World(make_plans(2), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world.cut("ash", "birch")
    world.run(1.0)
    world["ash"].finish()
    world["birch"].finish()
    world.run(5.0)
    assert not done(world, "ash") and not done(world, "birch")
    world.connect("ash", "birch")
    assert world.run(20.0, lambda: done(world, "ash", "birch"))
    assert not world["ash"].core.provisional and settled(world, "ash", "birch")


def test_an_island_whose_partner_ended_and_left_does_not_wait():
    core = LoneCore()
    core.start()
    core.pulse_from("birch", Phase.DONE)
    core.feed(PeerDown("birch", "left"))
    finishing(core)
    assert core.core.phase is Phase.DONE and core.core.provisional


def test_an_answer_that_the_news_of_the_end_overtook_is_still_waited_for():
    core = LoneCore()
    core.start()
    finishing(core)
    core.pulse_from("birch", Phase.DONE)
    assert core.core.phase is Phase.FINISHING
    core.publish_from("birch", 7, final=True, codec=LOSSLESS)
    assert core.core.phase is Phase.DONE and not core.core.provisional


def test_an_island_alone_in_its_roster_is_done_at_once():
    core = LoneCore(num_islands=1, num_fragments=2)
    core.feed()
    core.step(3)
    finishing(core)
    assert core.core.phase is Phase.DONE and not core.core.provisional


@pytest.mark.parametrize("knocked", [False, True])
def test_a_last_publication_that_cannot_be_coded_is_not_tried_for_ever(knocked):
    world = World(make_plans(2, finish_wait_s=10.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].withholds = lambda header: header.final
    if knocked:
        world["birch"].finish()
        world.run(2.0)
    world["ash"].finish()
    assert world.run(15.0, lambda: done(world, "ash"))
    assert world["ash"].core.provisional
    assert sum("was not published" in what for what in world["ash"].warnings) <= 2


def test_what_could_not_be_coded_while_training_is_tried_again_at_the_end():
    core = LoneCore()
    core.start()
    core.feed(Withheld("birch", 0, "not finite"))
    assert published(finishing(core)) == [("birch", 0)]


def test_a_newcomer_is_served_by_a_finishing_island():
    world = World(make_plans(2, finish_wait_s=30.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start("ash")
    world.run(20.0)
    world["ash"].finish()
    world.start("birch")
    assert world.run(20.0, lambda: world["birch"].core.phase is Phase.TRAINING)


def test_a_restart_in_the_middle_of_the_end_ends_all_the_same():
    world = World(make_plans(2, 2, finish_wait_s=60.0), step_s={"ash": 0.5, "birch": 0.5})
    world.start_all()
    world.run(20.0)
    world["ash"].finish()
    world["birch"].snapshot()
    world.crash("birch")
    world.run(2.0)
    world.start("birch", world["birch"].snapshots[-1])
    world.run(3.0)
    world["birch"].finish()
    assert world.run(50.0, lambda: done(world, "ash", "birch"))
    assert settled(world, "ash", "birch") and not world["ash"].core.provisional
