"""Every row of the edge table: what one end does with a HELLO or a publication."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.meeting import (
    Action,
    Edge,
    Relation,
    cleared,
    follows,
    is_complete,
    on_arrived,
    on_hello,
    on_publication,
    on_published,
    relation,
    renewed,
)
from isthmus.terms import NO_PUBLICATION, NO_REFERENCE, EdgeReport, Header

C2, C3, OTHER = b"reference 2", b"reference 3", b"another reference"
MINE, THEIRS, OLD_MINE, OLD_THEIRS = 1001, 2001, 1000, 2000


def header(publication: int, *, epoch: int = 0, version: int = 3, reference: bytes = C3, tokens: int = 10) -> Header:
    return Header(
        run="run",
        sender="ash",
        receiver="birch",
        fragment=0,
        epoch=epoch,
        version=version,
        sender_incarnation=1,
        receiver_incarnation=1,
        publication=publication,
        step=0,
        tokens=tokens,
        weight_tokens=0,
        run_tokens=0,
        cursor=0,
        reference=reference,
        codec="int4",
        num_bytes=1,
    )


def report(**fields: object) -> EdgeReport:
    """The partner is at version 3, as this end is, open, with nothing under way."""
    values: dict[str, object] = {"epoch": 0, "version": 3, "reference": C3, "open": True}
    return EdgeReport(**(values | fields))


EDGE = Edge(epoch=0, version=3, reference=C3, open=True, last=(header(OLD_MINE, version=2, reference=C2), OLD_THEIRS))
KNOCKING = EDGE.change(mine=header(MINE))
KNOCKED = EDGE.change(theirs=header(THEIRS))


@pytest.mark.parametrize(
    ("edge", "seen", "expected"),
    [
        (EDGE, report(), Relation.SAME),
        (EDGE, report(epoch=1), Relation.NEWER_EPOCH),
        (EDGE.change(epoch=1), report(), Relation.OLDER_EPOCH),
        (EDGE, report(version=2, reference=C2, mine=OLD_THEIRS), Relation.BEHIND),
        (EDGE, report(version=2, reference=C2, mine=THEIRS), Relation.APART),
        (EDGE, report(version=2, reference=C2), Relation.APART),
        (EDGE.change(last=None), report(version=2, reference=C2), Relation.APART),
        (EDGE, report(version=1, reference=OTHER, mine=OLD_THEIRS), Relation.APART),
        (KNOCKING, report(version=4, reference=OTHER, last=(THEIRS, MINE)), Relation.AHEAD),
        (KNOCKING, report(version=4, reference=OTHER, last=(THEIRS, OLD_MINE)), Relation.APART),
        (KNOCKING, report(version=4, reference=OTHER), Relation.APART),
        (EDGE, report(version=4, reference=OTHER, last=(THEIRS, NO_PUBLICATION)), Relation.APART),
        (KNOCKING, report(version=5, reference=OTHER, last=(THEIRS, MINE)), Relation.APART),
        (EDGE, report(reference=OTHER), Relation.APART),
        (EDGE, report(reference=NO_REFERENCE), Relation.APART),
    ],
)
def test_a_hello_falls_into_one_row(edge, seen, expected):
    assert relation(edge, seen) is expected


def test_a_newer_epoch_wins_and_everything_of_the_older_is_cleared():
    edge, actions = on_hello(KNOCKED.change(mine=header(MINE)), report(epoch=2))
    assert edge == Edge(epoch=2)
    assert actions == (Action.CLEARED, Action.HELLO)


def test_an_older_epoch_is_told_of_the_newer_one():
    edge, actions = on_hello(KNOCKING.change(epoch=2), report(epoch=1))
    assert edge == KNOCKING.change(epoch=2)
    assert actions == (Action.HELLO,)


def test_two_equal_open_ends_have_nothing_to_say():
    assert on_hello(EDGE, report()) == (EDGE, ())


def test_equal_ends_open():
    edge, _ = on_hello(EDGE.change(open=False), report())
    assert edge.open


@pytest.mark.parametrize("own", [False, True])
def test_an_end_that_is_shut_is_answered_whether_this_one_was_open_or_not(own):
    edge, actions = on_hello(EDGE.change(open=own), report(open=False))
    assert edge.open and actions == (Action.HELLO,)


def test_a_partner_that_has_opened_already_is_not_answered():
    assert on_hello(EDGE.change(open=False), report(open=True))[1] == ()


def test_mine_is_sent_again_where_the_partner_lacks_it():
    assert on_hello(KNOCKING, report())[1] == (Action.SEND_MINE,)


def test_mine_is_not_sent_again_where_the_partner_holds_it():
    assert on_hello(KNOCKING, report(theirs=MINE))[1] == ()


def test_a_publication_that_got_lost_is_asked_for():
    assert on_hello(EDGE, report(mine=THEIRS))[1] == (Action.ASK,)
    assert on_hello(KNOCKED, report(mine=THEIRS))[1] == ()


def test_theirs_stays_if_it_still_is_what_the_partner_published():
    assert on_hello(KNOCKED, report(mine=THEIRS))[0].theirs == KNOCKED.theirs


@pytest.mark.parametrize("mine", [NO_PUBLICATION, THEIRS + 1])
def test_theirs_is_forgotten_if_the_partner_knows_nothing_of_it(mine):
    assert on_hello(KNOCKED, report(mine=mine))[0].theirs is None


def test_a_partner_one_behind_gets_the_last_publication_again():
    edge, actions = on_hello(EDGE, report(version=2, reference=C2, mine=OLD_THEIRS))
    assert edge == EDGE and actions == (Action.RESEND_LAST,)


def test_a_partner_one_behind_that_is_shut_is_answered_before_it_is_sent_anything():
    edge, actions = on_hello(EDGE.change(open=False), report(version=2, reference=C2, mine=OLD_THEIRS, open=False))
    assert edge.open and actions == (Action.HELLO, Action.RESEND_LAST)


def test_a_partner_that_fell_one_behind_knows_nothing_of_what_it_published_since():
    edge, _ = on_hello(KNOCKED, report(version=2, reference=C2, mine=OLD_THEIRS))
    assert edge.theirs is None


def test_a_partner_one_ahead_is_told_so_that_it_sends_its_last_again():
    seen = report(version=4, reference=OTHER, last=(THEIRS, MINE))
    edge, actions = on_hello(KNOCKING.change(open=False), seen)
    assert edge.open and edge.mine == KNOCKING.mine and actions == (Action.HELLO,)


def test_theirs_stays_if_the_partner_one_ahead_completed_the_meeting_with_it():
    both = KNOCKING.change(theirs=header(THEIRS))
    assert on_hello(both, report(version=4, reference=OTHER, last=(THEIRS, MINE)))[0].theirs == both.theirs
    assert on_hello(both, report(version=4, reference=OTHER, last=(THEIRS + 1, MINE)))[0].theirs is None


def test_ends_that_cannot_be_made_to_agree_begin_a_new_epoch():
    edge, actions = on_hello(KNOCKING.change(tokens_met=7, peer_tokens_met=8, met=9), report(reference=OTHER))
    assert edge == Edge(epoch=1, tokens_met=7, peer_tokens_met=8, met=9)
    assert actions == (Action.CLEARED, Action.HELLO)


def test_two_ends_apart_agree_after_one_exchange():
    low, high = EDGE, EDGE.change(reference=OTHER)
    low, _ = on_hello(low, high.report())
    high, actions = on_hello(high, low.report())
    assert Action.HELLO in actions
    low, _ = on_hello(low, high.report())
    high, _ = on_hello(high, low.report())
    assert low.report() == high.report() and low.open and low.reference == NO_REFERENCE


def test_the_larger_of_both_ends_token_records_counts():
    edge, _ = on_hello(EDGE.change(tokens_met=5, peer_tokens_met=50), report(tokens_met=40, peer_tokens_met=20))
    assert (edge.tokens_met, edge.peer_tokens_met) == (20, 50)


def test_token_records_survive_a_new_epoch():
    edge, _ = on_hello(EDGE, report(epoch=1, tokens_met=40, peer_tokens_met=20))
    assert (edge.tokens_met, edge.peer_tokens_met) == (20, 40)


def test_the_first_publication_becomes_theirs():
    edge, actions = on_publication(EDGE, header(THEIRS), order=17)
    assert edge.theirs == header(THEIRS) and edge.knocked == 17 and actions == (Action.TAKEN,)


def test_a_publication_that_comes_twice_is_dropped():
    assert on_publication(KNOCKED, header(THEIRS), order=17) == (KNOCKED, ())


def test_a_publication_whose_meeting_is_over_is_dropped():
    assert on_publication(EDGE, header(OLD_THEIRS, version=2, reference=C2), order=17) == (EDGE, ())


def test_another_publication_of_the_same_version_calls_for_a_hello():
    assert on_publication(KNOCKED, header(THEIRS + 1), order=17) == (KNOCKED, (Action.HELLO,))


def test_a_shut_edge_drops_publications():
    shut = EDGE.change(open=False)
    assert on_publication(shut, header(THEIRS), order=17) == (shut, ())


@pytest.mark.parametrize("strange", [{"epoch": 1}, {"version": 4}, {"version": 2}, {"reference": OTHER}])
def test_a_publication_against_another_reference_is_never_taken(strange):
    assert on_publication(EDGE, header(THEIRS, **strange), order=17) == (EDGE, (Action.HELLO,))


def test_a_meeting_is_complete_with_both_publications():
    assert not is_complete(KNOCKING) and not is_complete(KNOCKED)
    assert is_complete(KNOCKED.change(mine=header(MINE)))


def test_an_arrival_raises_the_version_and_remembers_the_pair():
    both = KNOCKING.change(mine=header(MINE, tokens=300), theirs=header(THEIRS, tokens=200), tokens_met=250)
    edge = on_arrived(both, OTHER, order=5)
    assert (edge.version, edge.reference, edge.mine, edge.theirs) == (4, OTHER, None, None)
    assert edge.last == (header(MINE, tokens=300), THEIRS)
    assert (edge.tokens_met, edge.peer_tokens_met, edge.met) == (300, 200, 5)


def test_an_arrival_without_both_publications_is_a_bug():
    with pytest.raises(AssertionError):
        on_arrived(KNOCKING, OTHER, order=5)


def test_a_second_publication_on_one_edge_is_a_bug():
    with pytest.raises(AssertionError):
        on_published(KNOCKING, header(MINE + 1), due_step=9)


def test_a_publication_on_its_way_is_mine_until_it_is_answered():
    edge = on_published(EDGE, header(MINE), due_step=9)
    assert edge == KNOCKING.change(due_step=9)


def test_an_edge_begun_anew_keeps_only_its_records():
    edge, actions = renewed(KNOCKING.change(tokens_met=7, met=9))
    assert edge == cleared(KNOCKING.change(tokens_met=7, met=9), 1) == Edge(epoch=1, tokens_met=7, met=9)
    assert actions == (Action.CLEARED, Action.HELLO)


def test_a_report_says_what_an_edge_holds_and_survives_the_wire():
    seen = KNOCKED.change(mine=header(MINE)).report()
    assert (seen.mine, seen.theirs, seen.last, seen.open) == (MINE, THEIRS, (OLD_MINE, OLD_THEIRS), True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=EdgeReport) == seen


def test_only_the_next_version_of_a_complete_meeting_follows_it():
    complete = EDGE.change(mine=header(7), theirs=header(8))
    after = header(9, version=EDGE.version + 1)
    assert follows(complete, after)
    assert not follows(complete.change(theirs=None), after)
    assert not follows(complete.change(open=False), after)
    assert not follows(complete, header(9, version=EDGE.version + 2))
