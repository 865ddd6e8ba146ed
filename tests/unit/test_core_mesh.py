"""The mesh rule's decisions, driven by hand: whom a fragment is published to, and when a meeting of all is over."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.session.orders import ArrivalRefused, Arrive, Clear, Mode, Publish, Warn, Withheld
from isthmus.session.trade import LOSSLESS, NO_PAYLOAD
from isthmus.terms import NO_REFERENCE, EdgeReport, Hello, PeerDown, PeerUp, Phase
from lone_core import LoneCore, headers, published, sent


def mesh(num_islands: int = 3, num_fragments: int = 1, **changes: object) -> LoneCore:
    values: dict[str, object] = {"rule": "mesh", "flight_steps": 0, "window_steps": 2}
    core = LoneCore(num_islands, num_fragments, **values | changes)
    core.start()
    return core


def arrivals(orders: list[object]) -> list[Arrive]:
    return [order for order in orders if isinstance(order, Arrive)]


def warnings(orders: list[object]) -> list[str]:
    return [order.what for order in orders if isinstance(order, Warn)]


# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_fragment_goes_to_everybody_in_one_publication_coded_once():
    core = mesh(4)
    orders = core.step(2)
    (publish,) = [order for order in orders if isinstance(order, Publish)]
    assert [header.receiver for header in publish.headers] == ["birch", "cedar", "dogwood"]
    alike = {msgspec.structs.replace(header, receiver="") for header in publish.headers}
    assert len(alike) == 1


def test_the_next_publication_waits_until_all_have_answered():
    core = mesh()
    assert len(published(core.step(2))) == 2
    core.publish_from("birch", 7)
    assert published(core.step(6)) == []
    core.publish_from("cedar", 8)
    assert len(published(core.step(2))) == 2


@pytest.mark.parametrize("event", ["down", "done", "newcomer", "poison", "incarnation"])
def test_nothing_is_published_while_one_is_missing_and_departures_go_on(event):
    core = mesh()
    if event == "down":
        core.feed(PeerDown("cedar", "cable cut"))
    elif event == "done":
        core.pulse_from("cedar", Phase.DONE)
    elif event == "newcomer":
        core.greet("cedar", incarnation=2, complete=False)
    elif event == "poison":
        core.feed(ArrivalRefused("cedar", 0, "not finite"))
    else:
        core.feed(PeerUp("cedar", 2))
    assert published(core.step(6)) == []
    assert core.core.memory.rounds == [3]


def test_each_loss_is_told_once():
    core = mesh()
    text = "cedar cannot be reached: by the mesh rule nothing is averaged without it; training goes on"
    assert warnings(core.feed(PeerDown("cedar", "cable cut"))) == [text]
    assert warnings(core.step(8)) == []
    core.greet("cedar")
    assert warnings(core.feed(PeerDown("cedar", "cable cut"))) == [text]


def test_an_island_that_trains_without_having_heard_of_another_says_so():
    core = LoneCore(3, rule="mesh", join_wait_s=4.0)
    core.greet("birch")
    core.now_s = 5.0
    assert [what.partition(" ")[0] for what in warnings(core.feed())] == ["cedar"]
    assert core.core.phase is Phase.TRAINING


def test_what_cannot_be_coded_is_told_of_once_and_every_edge_stays_free():
    core = mesh()
    assert len(warnings(core.feed(Withheld("birch", 0, "not finite")))) == 1
    assert len(published(core.step(2))) == 2


def test_weights_count_from_the_latest_round_that_anybody_has_a_record_of():
    core = mesh()
    reports = tuple(
        EdgeReport(epoch=edge.epoch, version=edge.version, reference=edge.reference, open=True, peer_tokens_met=150)
        for edge in core.core.memory.edges["cedar"]
    )
    core.say("cedar", core.hello("cedar", edges=reports))
    assert {header.weight_tokens for header in headers(core.step(2))} == {50}


# -- meeting -----------------------------------------------------------------------------------------------------------


def test_a_meeting_is_over_when_everybodys_publications_are_here_and_moves_all_edges():
    core = mesh()
    core.step(2)
    assert arrivals(core.publish_from("cedar", 8)) == []
    (arrive,) = arrivals(core.publish_from("birch", 7))
    assert arrive.peers == ("birch", "cedar")
    assert [header.publication for header in arrive.headers[1:]] == [7, 8]
    assert arrive.mode is Mode.CORRECT
    assert core.edge("birch").version == core.edge("cedar").version == 1
    assert core.edge("birch").reference == core.edge("cedar").reference


def test_publications_stand_in_order_of_slots_at_every_island():
    core = mesh(name="birch")
    core.step(2)
    core.publish_from("cedar", 8)
    (arrive,) = arrivals(core.publish_from("ash", 7))
    assert [header.sender for header in arrive.headers] == ["ash", "birch", "cedar"]


def test_who_publishes_last_applies_the_meeting_at_once_and_the_others_after_the_flight_steps():
    last, first = mesh(flight_steps=3), mesh(flight_steps=3)
    for peer, publication in (("birch", 7), ("cedar", 8)):
        last.publish_from(peer, publication)
    assert len(arrivals(last.step(2))) == 1
    first.step(2)
    for peer, publication in (("birch", 7), ("cedar", 8)):
        first.publish_from(peer, publication)
    assert arrivals(first.step(2)) == []
    assert len(arrivals(first.step())) == 1


def test_a_meeting_waits_for_the_hello_of_an_island_that_has_started_again():
    core = mesh(flight_steps=3)
    core.step(2)
    core.publish_from("birch", 7)
    core.publish_from("cedar", 8)
    core.feed(PeerUp("cedar", 2))
    assert arrivals(core.step(6)) == []
    core.greet("cedar", incarnation=2)
    assert core.edge("cedar").theirs is None
    assert core.edge("birch").theirs is not None


def test_what_comes_before_this_round_is_over_is_dropped_without_a_word_and_asked_for_afterwards():
    core = mesh(flight_steps=0)
    core.step(2)
    core.publish_from("birch", 7)
    early = core.publication_of("birch", 9, version=1, reference=b"c" * 32)
    assert sent(core.feed(early, early), Hello) == []
    assert core.edge("birch").early
    orders = core.publish_from("cedar", 8)
    assert len(arrivals(orders)) == 1
    assert len(sent(orders, Hello)) == 1
    assert not core.edge("birch").early


def test_what_comes_after_all_of_this_round_are_here_brings_its_arrival_forward():
    core = mesh(flight_steps=5)
    core.step(2)
    core.publish_from("birch", 7)
    core.publish_from("cedar", 8)
    orders = core.feed(core.publication_of("birch", 9, version=1, reference=b"c" * 32))
    assert len(arrivals(orders)) == 1


def test_a_publication_that_cannot_be_used_changes_nothing_and_stops_the_averaging():
    core = mesh(flight_steps=3)
    core.step(2)
    core.publish_from("birch", 7)
    core.publish_from("cedar", 8)
    core.feed(ArrivalRefused("cedar", 0, "not finite"))
    assert arrivals(core.step(6)) == []
    assert core.edge("birch").version == core.edge("cedar").version == 0
    assert core.edge("birch").theirs is not None and core.edge("cedar").theirs is None


# -- out of step -------------------------------------------------------------------------------------------------------


def test_an_edge_that_begins_anew_takes_all_edges_of_its_fragment_along():
    core = mesh(num_fragments=2)
    core.step(2)
    reports = [edge.report() for edge in core.core.memory.edges["cedar"]]
    reports[0] = EdgeReport(epoch=3, version=0, reference=NO_REFERENCE, open=True)
    orders = core.say("cedar", core.hello("cedar", edges=tuple(reports)))
    cleared = {(order.peer, order.fragment) for order in orders if isinstance(order, Clear)}
    assert cleared == {("birch", 0), ("cedar", 0)}
    assert core.edge("birch", 0).epoch == core.edge("cedar", 0).epoch == 3
    assert core.edge("birch", 0).mine is None and core.edge("birch", 1).mine is not None
    assert len(sent(orders, Hello)) == 2


def test_an_island_that_went_back_behind_the_others_starts_a_new_epoch_for_all():
    core = mesh()
    core.step(2)
    core.publish_from("birch", 7)
    core.publish_from("cedar", 8)
    core.feed(PeerUp("cedar", 2))
    went_back = EdgeReport(epoch=0, version=0, reference=core.plan.initial[0])
    core.say("cedar", core.hello("cedar", incarnation=2, edges=(went_back,)))
    for peer in ("birch", "cedar"):
        edge = core.edge(peer)
        assert (edge.epoch, edge.version, edge.reference, edge.mine) == (1, 0, NO_REFERENCE, None)


# -- newcomers ---------------------------------------------------------------------------------------------------------


def test_a_newcomer_takes_part_in_a_meeting_of_all_with_empty_hands_and_adopts_it():
    core = LoneCore(3, rule="mesh")
    core.greet("birch", rounds=10)
    orders = core.greet("cedar", rounds=10)
    assert published(orders) == [("birch", 0), ("cedar", 0)]
    assert {(header.codec, header.weight_tokens) for header in headers(orders)} == {(NO_PAYLOAD, 0)}
    assert core.core.waits_for == ("birch", "cedar")
    core.publish_from("birch", 7)
    (arrive,) = arrivals(core.publish_from("cedar", 8))
    assert arrive.mode is Mode.ADOPT
    assert core.core.phase is Phase.TRAINING


def test_a_newcomer_is_missed_until_it_has_knocked_and_then_answered_without_loss():
    core = mesh()
    core.greet("cedar", incarnation=2, complete=False)
    assert published(core.step(4)) == []
    core.publish_from("cedar", 8, sender_incarnation=2, codec=NO_PAYLOAD, weight_tokens=0, tokens=0)
    assert {header.codec for header in headers(core.step(2))} == {LOSSLESS}


def test_a_newcomer_waits_for_other_newcomers_and_never_averages_nothing():
    core = LoneCore(3, rule="mesh", name="cedar")
    core.greet("ash", rounds=10)
    core.greet("birch", rounds=0, complete=False)
    empty = {"codec": NO_PAYLOAD, "weight_tokens": 0, "tokens": 0}
    core.publish_from("birch", 7, **empty)
    assert core.edge("birch").theirs is not None
    core.publish_from("ash", 8, **empty)
    assert core.core.phase is Phase.JOINING and core.edge("ash").version == 0


# -- the end -----------------------------------------------------------------------------------------------------------


def finishing() -> LoneCore:
    core = mesh()
    core.step(1)
    core.core.finish(core.now_s)
    core.feed()
    return core


def test_the_run_ends_with_one_lossless_meeting_of_all_and_is_then_whole():
    core = finishing()
    assert {(header.codec, header.final) for header in headers(core.orders)} == {(LOSSLESS, True)}
    core.publish_from("birch", 7, codec=LOSSLESS, final=True)
    (arrive,) = arrivals(core.publish_from("cedar", 8, codec=LOSSLESS, final=True))
    assert arrive.mode is Mode.ASSIGN
    assert core.core.phase is Phase.DONE and not core.core.provisional


def test_a_meeting_that_not_all_hold_for_the_last_one_is_followed_by_another():
    core = finishing()
    core.publish_from("birch", 7, codec=LOSSLESS, final=True)
    (arrive,) = arrivals(core.publish_from("cedar", 8))
    assert arrive.mode is Mode.CORRECT
    assert core.core.phase is Phase.FINISHING
    assert {header.version for header in headers(core.orders) if header.final} == {0, 1}


def test_what_another_began_before_the_end_is_completed_first():
    core = mesh()
    core.step(1)
    core.publish_from("birch", 7)
    core.core.finish(core.now_s)
    first = headers(core.feed())
    assert {(header.codec, header.final) for header in first} == {("", False)}
    orders = core.publish_from("cedar", 8)
    assert len(arrivals(orders)) == 1
    assert {(header.codec, header.final) for header in headers(orders)} == {(LOSSLESS, True)}
