"""Whom an island publishes to, when a meeting is applied, and how the run's clock moves."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from isthmus import schedule
from isthmus.session.orders import (
    ArrivalRefused,
    Arrive,
    Arrived,
    Clear,
    Depart,
    DepartureRefused,
    Resend,
    Save,
    Warn,
    Withheld,
)
from isthmus.terms import (
    NO_REFERENCE,
    EdgeReport,
    Hello,
    PeerDown,
    PeerUp,
    Phase,
    PublicationReceived,
    Pulse,
    SignedHeader,
)
from lone_core import LoneCore, headers, published, sent
from toy_islands import make_plans, reference_of
from toy_world import World


def until_published(core: LoneCore, *, at_most: int = 10) -> list[tuple[str, int]]:
    for _ in range(at_most):
        if found := published(core.step()):
            return found
    return []


def test_every_fragment_departs_once_a_window_and_a_pulse_follows():
    core = LoneCore(num_fragments=2, window_steps=4)
    core.start()
    orders = core.step(8)
    assert [order.fragment for order in orders if isinstance(order, Depart)] == [0, 1, 0, 1]
    assert len(sent(orders, Pulse)) == 4


def test_a_departure_knocks_at_the_partner():
    core = LoneCore()
    core.start()
    assert until_published(core) == [("birch", 0)]


def test_a_departure_without_anybody_there_still_departs():
    core = LoneCore(join_wait_s=0.0)
    core.feed()
    orders = core.step(4)
    assert any(isinstance(order, Depart) for order in orders) and not published(orders)


def test_a_knock_is_answered_before_the_island_knocks_itself():
    core = LoneCore(num_islands=3)
    core.start()
    core.publish_from("cedar", 7)
    assert until_published(core) == [("cedar", 0)]


def test_of_two_knocks_the_longer_waiting_is_answered_first():
    core = LoneCore(num_islands=3)
    core.start()
    core.publish_from("cedar", 7)
    core.publish_from("birch", 8)
    assert until_published(core) == [("cedar", 0)]
    assert until_published(core) == [("birch", 0)]


def test_an_answer_completes_the_meeting_at_once():
    core = LoneCore(flight_steps=3, window_steps=2)
    core.start()
    core.publish_from("birch", 7)
    orders = core.step(2)
    assert published(orders) == [("birch", 0)]
    assert any(isinstance(order, Arrive) for order in orders)
    assert core.edge("birch").version == 1


def test_an_answer_to_an_own_knock_is_applied_no_earlier_than_the_flight_steps():
    core = LoneCore(flight_steps=3, window_steps=2)
    core.start()
    core.step(2)
    core.publish_from("birch", 7)
    assert not any(isinstance(order, Arrive) for order in core.step(2))
    assert any(isinstance(order, Arrive) for order in core.step())


def test_only_one_own_publication_of_a_fragment_waits_for_an_answer():
    core = LoneCore(num_islands=4, window_steps=10)
    core.start()
    assert len(published(core.step(29))) == 1


def test_an_answer_that_has_not_come_for_two_windows_is_no_longer_counted_on():
    core = LoneCore(num_islands=3, window_steps=10)
    core.start()
    assert published(core.step(29)) == [("birch", 0)]
    assert published(core.step(1)) == [("cedar", 0)]


def test_no_more_than_two_answers_may_be_overdue():
    core = LoneCore(num_islands=8, window_steps=10)
    core.start()
    assert len(published(core.step(200))) == 2


def test_an_island_that_leaves_lets_every_fragment_depart_out_of_turn():
    core = LoneCore(num_fragments=3, window_steps=30)
    core.start()
    core.step(3)
    core.core.leave()
    orders = core.feed()
    assert [order.fragment for order in orders if isinstance(order, Depart)] == [0, 1, 2]
    assert sorted(published(orders)) == [("birch", 0), ("birch", 1), ("birch", 2)]


def test_fragments_wait_for_answers_independently():
    core = LoneCore(num_fragments=2)
    core.start()
    assert sorted(published(core.step(40))) == [("birch", 0), ("birch", 1)]


def test_a_publication_to_a_lost_partner_does_not_count_as_unanswered():
    core = LoneCore(num_islands=3)
    core.start()
    assert until_published(core) == [("birch", 0)]
    core.feed(PeerDown("birch", "cable cut"))
    assert until_published(core) == [("cedar", 0)]
    assert core.edge("birch").mine is not None


@pytest.mark.parametrize("event", ["done", "newcomer", "poison"])
def test_a_publication_that_nobody_will_answer_does_not_hold_the_fragment_back(event):
    core = LoneCore(num_islands=3)
    core.start()
    assert until_published(core) == [("birch", 0)]
    if event == "done":
        core.pulse_from("birch", Phase.DONE)
    elif event == "newcomer":
        core.greet("birch", incarnation=2, complete=False)
    else:
        core.publish_from("birch", 7)
        core.feed(ArrivalRefused("birch", 0, "not finite"))
    assert until_published(core) == [("cedar", 0)]


def test_the_partner_met_least_recently_is_chosen():
    core = LoneCore(num_islands=3, flight_steps=0)
    core.start()
    order = []
    for number in range(6):
        peer, fragment = until_published(core)[0]
        order.append(peer)
        core.publish_from(peer, 100 + number, fragment=fragment)
    assert set(order) == {"birch", "cedar"}
    assert all(one != other for one, other in pairwise(order))


def test_what_comes_back_after_a_cut_is_sent_again():
    core = LoneCore()
    core.start()
    core.step(2)
    mine = core.edge("birch").mine
    core.feed(PeerDown("birch", "cable cut"), PeerUp("birch", 1))
    resent = [order.header for order in core.say("birch", core.hello("birch")) if isinstance(order, Resend)]
    assert [header.publication for header in resent] == [mine.publication]


def test_what_is_sent_again_after_a_restart_is_addressed_to_the_new_incarnation():
    core = LoneCore()
    core.start()
    core.step(2)
    orders = core.greet("birch", incarnation=5)
    resent = [order.header for order in orders if isinstance(order, Resend)]
    assert [(header.sender_incarnation, header.receiver_incarnation) for header in resent] == [(1, 5)]


def test_a_publication_of_an_older_incarnation_is_dropped():
    core = LoneCore()
    core.start()
    stale = core.publication_of("birch", 7)
    core.greet("birch", incarnation=2)
    core.feed(stale)
    assert core.edge("birch").theirs is None


def test_a_publication_of_an_unknown_fragment_is_dropped():
    core = LoneCore()
    core.start()
    known = core.publication_of("birch", 7)
    strange = msgspec.structs.replace(known.signed.header, fragment=5)
    assert core.feed(PublicationReceived("birch", SignedHeader(strange, b"", b""), known.payload)) == []
    assert core.core.memory.peers["birch"].held is None


def test_tokens_since_the_last_meeting_are_the_weight():
    core = LoneCore(flight_steps=0)
    core.start()
    first = headers(core.step(2))
    core.publish_from("birch", 7)
    second = headers(core.step(2))
    assert [(header.tokens, header.weight_tokens) for header in first + second] == [(200, 200), (400, 200)]


def test_tokens_that_a_partner_has_mixed_already_do_not_count_again():
    core = LoneCore()
    (report,) = core.hello("birch").edges
    core.greet("birch", edges=(msgspec.structs.replace(report, peer_tokens_met=150),))
    assert [header.weight_tokens for header in headers(core.step(2))] == [50]


def test_tokens_trained_before_a_crash_are_recovered_from_what_a_partner_holds():
    core = LoneCore()
    own = core.publication_of("birch", 3, sender="ash", receiver="birch", tokens=900, cursor=9).signed
    orders = core.greet("birch", held=own)
    assert (core.core.memory.tokens, core.core.memory.cursor) == (900, 9)
    assert any(isinstance(order, Warn) and "900 tokens" in order.what for order in orders)


def test_what_another_island_signed_recovers_nothing():
    core = LoneCore()
    core.greet("birch", held=core.publication_of("birch", 3, tokens=900).signed)
    assert core.core.memory.tokens == 0


def test_the_header_that_shows_the_most_tokens_is_held_whatever_comes_last():
    core = LoneCore(num_fragments=2)
    core.start()
    core.publish_from("birch", 8, fragment=1, tokens=500)
    core.publish_from("birch", 7, fragment=0, tokens=300)
    assert core.core.memory.peers["birch"].held.header.publication == 8


def test_the_first_rounds_and_the_last_of_the_run_are_calm():
    bold = schedule.OuterStep(1.4, 0.5)
    outer = schedule.OuterPlan(bold, calm_rounds=2, calm_share=0.2)
    core = LoneCore(outer=outer, window_steps=1, token_budget=1000, join_wait_s=0.0)
    core.feed()
    departs = [order for order in core.step(10) if isinstance(order, Depart)]
    assert [(order.outer_lr, order.momentum) for order in departs] == [(1.0, 0.0)] * 2 + [bold] * 5 + [(1.0, 0.0)] * 3


def test_a_fragment_that_cannot_depart_is_told_of_and_publishes_nothing():
    core = LoneCore()
    core.start()
    orders = core.feed(DepartureRefused(0, "not finite"))
    assert any(isinstance(order, Warn) for order in orders) and not published(orders)


def test_a_checkpoint_is_due_every_so_many_steps():
    core = LoneCore(save_every_steps=3)
    core.start()
    saved = [number for number in range(1, 11) if any(isinstance(order, Save) for order in core.step())]
    assert saved == [3, 6, 9]


def test_a_memory_survives_its_encoding_with_every_edge_shut():
    core = LoneCore()
    core.start()
    core.step(3)
    core.publish_from("birch", 7)
    memory = core.core.memory
    decoded = type(memory).decode(memory.encode(), core.plan)
    memory.shut("birch")
    assert decoded == memory


def test_tokens_of_the_run_are_those_heard_from_anybody_and_never_fall():
    core = LoneCore(num_islands=3)
    core.start()
    core.step(1)
    core.pulse_from("birch", Phase.TRAINING, birch=500, cedar=70)
    core.pulse_from("cedar", Phase.TRAINING, cedar=60, birch=400)
    assert core.core.memory.run_tokens == 100 + 500 + 70


@pytest.mark.parametrize("fate", ["gone", "silent"])
def test_a_partner_that_falls_silent_cannot_freeze_the_clock_of_the_run(fate):
    world = World(make_plans(2, token_budget=20_000, hello_every_s=1.0), step_s={"ash": 1.0, "birch": 1.0})
    world["ash"].tokens_per_step, world["birch"].tokens_per_step = 100, 300
    world.start_all()
    world.run(20.0)
    if fate == "gone":
        world.crash("birch")
    else:
        world["birch"].step_s = float("inf")
    before = world["ash"].core.progress
    assert 0.2 < before < 0.8
    assert world.run(250.0, lambda: world["ash"].core.progress >= 1.0)
    assert world["ash"].core.open_meetings <= 1


def test_both_ends_of_an_edge_keep_meeting_at_three_to_one_speeds():
    world = World(make_plans(2, 2, window_steps=4), step_s={"ash": 0.3, "birch": 0.9})
    world.start_all()
    world.run(60.0)
    assert min(world["ash"].edge("birch", fragment).version for fragment in range(2)) >= 10
    assert world.hellos.total() < 20


def test_a_poisoned_publication_shuts_the_edge_without_a_storm_of_hellos():
    world = World(make_plans(3), step_s=dict.fromkeys(("ash", "birch", "cedar"), 0.5))
    world["ash"].refuses_payload = lambda header: header.sender == "birch"
    world.start_all()
    world.run(20.0)
    assert not world["ash"].edge("birch").open
    assert sum("cannot be used" in what for what in world["ash"].warnings) == 1
    hellos, published_before = world.hellos.total(), world.published["birch"]
    versions, others = world["ash"].edge("cedar").version, world["birch"].edge("cedar").version
    world.run(60.0)
    assert world.hellos.total() - hellos <= 3 * 60 / 12 + 2
    others = world["birch"].edge("cedar").version - others
    assert world.published["birch"] - published_before <= others + 60 / 12 + 2
    assert world["ash"].edge("cedar").version > versions + 10


def test_other_meetings_with_a_poisoner_that_were_due_at_once_are_still_counted():
    core = LoneCore(num_fragments=2, flight_steps=5)
    core.start()
    core.step(2)
    core.feed(core.publication_of("birch", 7, fragment=0), core.publication_of("birch", 8, fragment=1))
    core.feed(ArrivalRefused("birch", 0, "not finite"), Arrived(("birch",), 1, b"reference"))
    assert core.edge("birch", 0).theirs is None
    assert core.edge("birch", 1).version == 1 and not core.edge("birch", 1).open


def test_a_poisoner_that_starts_anew_is_given_another_chance():
    core = LoneCore()
    core.start()
    core.publish_from("birch", 7)
    core.feed(ArrivalRefused("birch", 0, "not finite"))
    core.say("birch", core.hello("birch"))
    assert not core.edge("birch").open
    core.greet("birch", incarnation=2)
    assert core.edge("birch").open


def test_what_a_poisoner_says_of_its_edges_changes_nothing_here_until_it_starts_anew():
    core = LoneCore()
    core.start()
    core.publish_from("birch", 7)
    core.feed(ArrivalRefused("birch", 0, "not finite"))
    before = core.edge("birch")
    newer = EdgeReport(epoch=before.epoch + 1, version=0, reference=NO_REFERENCE)
    assert not any(isinstance(order, Clear) for order in core.say("birch", core.hello("birch", edges=(newer,))))
    assert core.edge("birch") == before
    anew = core.greet("birch", incarnation=2, edges=(newer,))
    assert any(isinstance(order, Clear) for order in anew)
    assert (core.edge("birch").epoch, core.edge("birch").reference) == (before.epoch + 1, NO_REFERENCE)


def test_meetings_of_a_fragment_that_arrive_together_are_followed_by_one_publication():
    core = LoneCore(num_islands=8, meetings=3, window_steps=12, flight_steps=40)
    core.start()
    core.step(12)
    (first,) = [peer for peer in core.plan.peers if core.edge(peer).mine]
    core.feed(core.publication_of(first, 7), PeerDown(first, "lost"))
    core.step(12)
    (second,) = [peer for peer in core.plan.peers if core.edge(peer).mine and peer != first]
    core.feed(core.publication_of(second, 7), PeerDown(second, "lost"))
    both = [Arrived((peer,), 0, reference_of(peer)) for peer in (first, second)]
    (third,) = published(core.feed(*both))
    assert third[0] not in (first, second)


def test_a_publication_that_cannot_be_coded_is_told_of_and_the_edge_stays_free():
    core = LoneCore()
    core.start()
    orders = core.feed(Withheld("birch", 0, "not finite"))
    assert any(isinstance(order, Warn) for order in orders)
    assert core.edge("birch").mine is None


def test_an_unanswered_publication_is_asked_about_now_and_then():
    core = LoneCore(hello_every_s=2.0)
    core.start()
    core.step(2)
    hellos = 0
    for second in range(60):
        core.now_s = float(second)
        hellos += len(sent(core.feed(), Hello))
    assert 3 <= hellos <= 5
