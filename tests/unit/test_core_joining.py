"""How islands start: together, late, from nothing, with other weights, with another model."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from isthmus.session.memory import Plan
from isthmus.session.orders import Arrive, Clear, Mode, Resend, Warn
from isthmus.session.trade import LOSSLESS, NO_PAYLOAD
from isthmus.terms import (
    NO_REFERENCE,
    EdgeReport,
    Hello,
    Layout,
    LinkAlarm,
    MessageReceived,
    PeerDown,
    PeerUp,
    Phase,
)
from lone_core import LoneCore, headers, published, sent
from toy_islands import make_plans, reference_of
from toy_world import Faults, World


def agree(world: World, one: str, other: str, fragment: int = 0) -> bool:
    mine, theirs = world[one].edge(other, fragment), world[other].edge(one, fragment)
    return (
        mine.open
        and theirs.open
        and (mine.epoch, mine.version, mine.reference)
        == (
            theirs.epoch,
            theirs.version,
            theirs.reference,
        )
    )


def all_train(world: World) -> bool:
    return all(island.core.phase is Phase.TRAINING for island in world.islands.values())


def other_start(plans: dict[str, Plan], name: str) -> None:
    odd = tuple(reference_of(f"odd {fragment}") for fragment in plans[name].fragments)
    plans[name] = replace(plans[name], initial=odd)


def test_islands_that_start_together_train_at_once_on_the_common_start():
    world = World(make_plans(3, 2))
    world.start_all()
    assert world.run(3.0, lambda: all_train(world))
    assert all(edge.open and edge.epoch == 0 for i in world.islands.values() for _, _, edge in i.memory.all_edges())


def test_an_island_waits_for_the_others_hello_but_not_for_ever():
    core = LoneCore(join_wait_s=4.0)
    core.feed()
    assert core.core.phase is Phase.JOINING and core.core.waits_for == ("birch",)
    core.now_s = 3.9
    core.feed()
    assert core.core.phase is Phase.JOINING
    core.now_s = 4.0
    core.feed()
    assert core.core.phase is Phase.TRAINING


def test_an_island_alone_in_its_roster_waits_for_nobody():
    core = LoneCore(num_islands=1)
    core.feed()
    assert core.core.phase is Phase.TRAINING and not core.core.provisional


def test_a_hello_that_lacks_this_incarnation_is_answered_and_opens_nothing():
    core = LoneCore()
    core.feed(PeerUp("birch", 1))
    orders = core.say("birch", core.hello("birch", peer_incarnation=9))
    assert len(sent(orders, Hello)) == 1 and not core.edge("birch").open


def test_a_hello_of_an_older_incarnation_is_refused():
    core = LoneCore()
    core.feed(PeerUp("birch", 3))
    assert core.say("birch", core.hello("birch", incarnation=2)) == []
    assert not core.edge("birch").open


def test_a_newer_incarnation_shuts_every_edge_until_its_hello():
    core = LoneCore(num_fragments=2)
    core.start()
    core.feed(PeerDown("birch", "lost"), PeerUp("birch", 2))
    assert not core.edge("birch", 0).open and not core.edge("birch", 1).open


def test_a_newcomer_takes_over_the_run_and_then_trains():
    world = World(make_plans(2, 2, window_steps=4))
    world.start("ash")
    world.run(20.0)
    birch = world.start("birch")
    steps = []
    assert world.run(20.0, lambda: steps.append(birch.memory.step) or birch.core.phase is Phase.TRAINING)
    assert birch.modes == {Mode.ADOPT: 2} and birch.memory.complete
    assert set(steps) == {0}
    assert world.run(20.0, lambda: min(world["ash"].edge("birch", f).version for f in range(2)) >= 3)
    assert birch.modes[Mode.CORRECT] > 0 and world["ash"].modes[Mode.ADOPT] == 0


def test_a_newcomer_knocks_with_empty_hands_for_all_fragments_at_the_lowest_complete_slot():
    core = LoneCore(num_islands=4, num_fragments=2)
    core.greet("birch", complete=False)
    core.greet("dogwood", rounds=40)
    orders = core.greet("cedar", rounds=40)
    assert sorted(published(orders)) == [("cedar", 0), ("cedar", 1)]
    assert {(header.codec, header.weight_tokens) for header in headers(orders)} == {(NO_PAYLOAD, 0)}
    assert core.core.waits_for == ("birch", "cedar", "dogwood")


def test_newcomers_that_come_together_turn_to_different_donors():
    plans = make_plans(8, window_steps=4)
    world = World(plans)
    for name in tuple(plans)[:4]:
        world.start(name)
    world.run(30.0)
    joining = [world.start(name) for name in tuple(plans)[4:]]
    asked: dict[str, set[str]] = {island.name: set() for island in joining}

    def all_complete() -> bool:
        for island in joining:
            asked[island.name] |= {peer for peer, _, edge in island.memory.all_edges() if edge.mine}
        return all(island.core.phase is Phase.TRAINING for island in joining)

    assert world.run(60.0, all_complete)
    first = [{donor for donor in donors if donor in tuple(plans)[:4]} for donors in asked.values()]
    assert set().union(*first) == set(tuple(plans)[:4])


def test_a_newcomer_whose_donor_is_silent_asks_another_after_a_while():
    core = LoneCore(num_islands=3, join_wait_s=4.0)
    core.greet("birch", rounds=40)
    assert published(core.greet("cedar", rounds=40)) == [("birch", 0)]
    core.now_s = 23.9
    assert published(core.feed()) == []
    core.now_s = 24.1
    assert published(core.feed()) == [("cedar", 0)]
    core.publish_from("cedar", 7, codec=LOSSLESS)
    assert core.core.phase is Phase.TRAINING


def test_a_newcomer_answers_nobody():
    core = LoneCore(num_islands=3)
    core.greet("birch", rounds=40)
    core.greet("cedar", rounds=40)
    before = len(headers(core.orders))
    core.publish_from("cedar", 7)
    assert len(headers(core.orders)) == before


def test_a_newcomer_whose_donor_is_lost_turns_to_the_next():
    core = LoneCore(num_islands=3)
    core.greet("birch", rounds=40)
    core.greet("cedar", rounds=40)
    assert published(core.feed(PeerDown("birch", "lost"))) == [("cedar", 0)]


def test_a_donor_answers_a_newcomer_at_its_departure_without_loss():
    core = LoneCore(window_steps=3)
    core.start()
    core.publish_from("birch", 7, codec=NO_PAYLOAD, weight_tokens=0)
    assert published(core.step(2)) == []
    answers = headers(core.step())
    assert [header.codec for header in answers] == [LOSSLESS]


def test_nobody_knocks_at_a_newcomer():
    core = LoneCore()
    core.greet("birch", complete=False)
    assert core.core.phase is Phase.TRAINING
    assert published(core.step(10)) == []


def test_a_newcomer_that_became_complete_withdraws_the_knocks_nobody_answered():
    core = LoneCore(num_islands=3)
    core.greet("birch", rounds=40)
    core.greet("cedar", rounds=40)
    core.feed(PeerDown("birch", "lost"))
    orders = core.publish_from("cedar", 7, codec=LOSSLESS)
    assert core.core.phase is Phase.TRAINING
    assert any(order == Clear("birch", 0) for order in orders)
    assert (core.edge("birch").epoch, core.edge("birch").mine) == (1, None)


def test_two_donors_that_answer_at_once_do_no_harm():
    core = LoneCore(num_islands=3)
    core.greet("birch", rounds=40)
    core.greet("cedar", rounds=40)
    core.feed(PeerDown("birch", "lost"))
    answers = [core.publication_of(peer, 7, codec=LOSSLESS) for peer in ("birch", "cedar")]
    core.feed(PeerUp("birch", 1), *answers)
    assert core.core.phase is Phase.TRAINING
    assert (core.edge("birch").version, core.edge("cedar").version) == (1, 1)


def test_an_island_that_becomes_a_newcomer_withdraws_what_it_published_on_its_own():
    core = LoneCore(num_islands=3)
    core.start()
    core.step(2)
    assert core.edge("birch").mine is not None
    orders = core.say("cedar", core.hello("cedar", rounds=1000))
    assert Clear("birch", 0) in orders and core.edge("birch").epoch == 1
    assert [header.codec for header in headers(orders)] == [NO_PAYLOAD]


def test_two_newcomers_have_nothing_for_each_other():
    core = LoneCore(num_islands=3)
    core.greet("birch")
    core.publish_from("birch", 7, codec=NO_PAYLOAD, weight_tokens=0)
    core.greet("cedar", rounds=40)
    core.say("birch", core.hello("birch", complete=False))
    assert not core.core.memory.complete and core.edge("birch").theirs is None
    core.publish_from("birch", 8, codec=NO_PAYLOAD, weight_tokens=0)
    assert core.edge("birch").theirs is None


def test_where_all_wait_for_the_runs_weights_the_lowest_slot_goes_on_with_its_own():
    world = World(make_plans(3))
    world.start_all()
    for island in world.islands.values():
        island.core.memory.complete = False
    assert world.run(30.0, lambda: all_train(world))
    assert world["ash"].modes[Mode.ADOPT] == 0
    assert world["birch"].modes[Mode.ADOPT] == world["cedar"].modes[Mode.ADOPT] == 1


def test_a_newcomer_waits_for_an_island_that_may_come_back_with_the_runs_weights():
    core = LoneCore(num_islands=3)
    core.greet("birch", rounds=40)
    core.feed(PeerDown("birch", "lost"))
    core.greet("cedar", complete=False)
    assert core.core.phase is Phase.JOINING
    core.greet("birch", incarnation=2, complete=False)
    assert core.core.phase is Phase.TRAINING


def test_islands_that_all_lost_everything_begin_the_run_anew():
    world = World(make_plans(3))
    world.start_all()
    world.run(30.0)
    for name in world.islands:
        world.crash(name)
    world.start_all()
    assert world.run(30.0, lambda: all_train(world))
    assert world.run(60.0, lambda: world["ash"].edge("birch").version >= 2 and world["ash"].edge("cedar").version >= 2)


@pytest.mark.parametrize("odd", ["ash", "birch"])
def test_where_initial_weights_differ_the_higher_slot_adopts_with_a_warning(odd):
    plans = make_plans(2, 2)
    other_start(plans, odd)
    world = World(plans)
    world.start_all()
    assert world.run(30.0, lambda: all_train(world) and agree(world, "ash", "birch"))
    assert world["birch"].modes[Mode.ADOPT] == 2 and world["ash"].modes[Mode.ADOPT] == 0
    assert any("initial weights differ from those of ash" in what for what in world["birch"].warnings)


def test_initial_weights_that_differ_are_noticed_though_the_first_hello_was_lost():
    core = LoneCore(name="birch")
    begun_anew = EdgeReport(epoch=1, version=0, reference=NO_REFERENCE)
    core.greet("ash", edges=(begun_anew,))
    assert not core.core.memory.complete


def test_of_three_islands_with_three_starts_all_take_the_lowest_slots_weights():
    plans = make_plans(3)
    other_start(plans, "birch")
    plans["cedar"] = replace(plans["cedar"], initial=(reference_of("odder"),))
    world = World(plans)
    world.start_all()
    assert world.run(60.0, lambda: all_train(world))
    assert world["birch"].modes[Mode.ADOPT] == world["cedar"].modes[Mode.ADOPT] == 1
    assert world["ash"].modes[Mode.ADOPT] == 0


def test_an_island_that_began_alone_steps_aside_for_a_run_far_ahead():
    world = World(make_plans(2, join_wait_s=2.0), step_s={"ash": 0.2, "birch": 5.0})
    world.start_all()
    world.cut("ash", "birch")
    world.run(60.0)
    assert all_train(world) and world["birch"].core.phase is Phase.TRAINING
    world.connect("ash", "birch")
    assert world.run(60.0, lambda: world["birch"].modes[Mode.ADOPT] == 1)
    assert any("lone start" in what for what in world["birch"].warnings)
    assert world["ash"].modes[Mode.ADOPT] == 0


def test_an_island_that_met_the_run_never_steps_aside():
    core = LoneCore(flight_steps=0)
    core.start()
    core.step(2)
    core.publish_from("birch", 7)
    assert core.edge("birch").version == 1
    newer = EdgeReport(epoch=3, version=0, reference=NO_REFERENCE, open=True)
    core.say("birch", core.hello("birch", rounds=10_000, edges=(newer,)))
    assert core.edge("birch").epoch == 3
    core.say("birch", core.hello("birch", rounds=10_000))
    assert core.core.phase is Phase.TRAINING and core.core.memory.complete


def test_a_model_of_another_layout_is_refused_and_told_what_this_one_is():
    core = LoneCore(join_wait_s=1.0)
    orders = core.greet("birch", layout=b"another")
    assert sent(orders, Layout) == [Layout(("w 2x2",))]
    assert not core.edge("birch").open
    assert core.core.phase is Phase.TRAINING
    assert published(core.step(10)) == []


def test_islands_of_two_layouts_train_apart_without_a_storm():
    plans = make_plans(2)
    plans["birch"] = replace(plans["birch"], layout=b"another")
    world = World(plans, step_s={"ash": 0.2, "birch": 0.2})
    world.start_all()
    world.run(100.0)
    assert all_train(world)
    assert world.hellos.total() + world.layouts.total() <= 8


def test_a_peer_that_comes_back_with_the_right_layout_is_traded_with():
    core = LoneCore()
    core.greet("birch", layout=b"another")
    core.greet("birch", incarnation=2)
    assert core.edge("birch").open
    assert published(core.step(2)) == [("birch", 0)]


def test_what_a_stranger_says_is_ignored():
    core = LoneCore()
    core.start()
    hello = core.hello("birch", sender="stranger")
    publication = core.publication_of("birch", 7, sender="stranger")
    assert core.feed(PeerUp("stranger", 1), MessageReceived("stranger", hello)) == []
    assert core.feed(type(publication)("stranger", publication.signed, publication.payload)) == []


def test_an_alarm_of_the_link_reaches_the_user():
    core = LoneCore()
    assert Warn("garbage", "birch") in core.feed(LinkAlarm("birch", "garbage"))


def test_a_restart_from_a_checkpoint_goes_on_where_both_ends_agree():
    world = World(make_plans(2, 2))
    world.start_all()
    world.run(20.0)
    ash = world["ash"]
    before = world["birch"].edge("ash").version
    ash.snapshot()
    world.crash("ash")
    world.run(3.0)
    world.start("ash", ash.snapshots[-1])
    assert world.run(30.0, lambda: world["birch"].edge("ash").version >= before + 3)
    assert agree(world, "ash", "birch") or ash.core.open_meetings + world["birch"].core.open_meetings > 0
    assert ash.modes[Mode.ADOPT] == 0
    assert world["birch"].edge("ash").epoch == 0


def test_a_newcomers_knock_that_got_lost_is_asked_for():
    core = LoneCore(hello_every_s=2.0)
    core.start()
    core.now_s = 10.0
    knocking = tuple(msgspec.structs.replace(report, mine=7) for report in core.hello("birch").edges)
    orders = core.say("birch", core.hello("birch", complete=False, edges=knocking))
    assert [report.theirs for report in sent(orders, Hello)[0].edges] == [0]
    again = core.say("birch", core.hello("birch", complete=False, edges=knocking))
    assert sent(again, Hello) == []


def test_a_newcomer_gets_in_though_half_of_everything_is_lost():
    world = World(make_plans(2, 2, hello_every_s=1.0))
    world.start("ash")
    world.run(10.0)
    world.faults = Faults(loss=0.5)
    world.start("birch")
    assert world.run(300.0, lambda: all_train(world) and world["birch"].modes[Mode.ADOPT] >= 2)


def test_a_shut_end_is_answered_by_an_open_one():
    core = LoneCore()
    core.start()
    shut = tuple(msgspec.structs.replace(report, open=False) for report in core.hello("birch").edges)
    for _ in range(3):
        assert len(sent(core.say("birch", core.hello("birch", edges=shut)), Hello)) == 1
    assert sent(core.say("birch", core.hello("birch")), Hello) == []


def test_a_last_publication_is_sent_again_to_a_partner_that_fell_behind():
    core = LoneCore(flight_steps=0)
    core.start()
    core.step(2)
    mine = core.edge("birch").mine
    before = core.edge("birch").reference
    core.publish_from("birch", 7)
    behind = EdgeReport(epoch=0, version=0, reference=before, open=True, mine=7)
    orders = core.say("birch", core.hello("birch", edges=(behind,)))
    assert [order.header.publication for order in orders if isinstance(order, Resend)] == [mine.publication]
    assert not any(isinstance(order, Arrive) for order in orders)
