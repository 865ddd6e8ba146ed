"""How two links agree on one session, whoever dials and whatever gets lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire import (
    PROTOCOL_VERSION,
    PeerSessions,
    Refusal,
    RefusalCode,
    SessionHello,
    SessionKey,
    SessionKind,
    decode_hello,
    encode_hello,
    judge_hello,
)

HELLO = SessionHello(
    run="r" * 64,
    sender="asia",
    receiver="us-east",
    incarnation=3,
    kind=SessionKind.CONTROL,
    number=1,
    session=b"id",
)


def test_a_hello_survives_the_wire():
    assert decode_hello(encode_hello(HELLO)) == HELLO


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", RefusalCode.MALFORMED),
        (b"\x00", RefusalCode.MALFORMED),
        (encode_hello(HELLO)[:-1], RefusalCode.MALFORMED),
        (encode_hello(HELLO) + b"x", RefusalCode.MALFORMED),
        (encode_hello(HELLO, version=PROTOCOL_VERSION + 1), RefusalCode.VERSION),
        (b"\x63\x00not even MessagePack", RefusalCode.VERSION),
    ],
)
def test_what_is_no_hello_of_this_version_is_refused(body, code):
    refusal = decode_hello(body)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"run": "s" * 64}, RefusalCode.RUN, "run.toml"),
        ({"sender": "mars"}, RefusalCode.IDENTITY, "mars"),
        ({"receiver": "mars"}, RefusalCode.IDENTITY, "address in the roster"),
    ],
)
def test_a_hello_of_another_run_or_name_is_refused_with_the_reason(changes, code, words):
    assert judge_hello(HELLO, run="r" * 64, me="us-east", peer="asia") is None
    refusal = judge_hello(msgspec.structs.replace(HELLO, **changes), run="r" * 64, me="us-east", peer="asia")
    assert refusal is not None
    assert refusal.code == code
    assert words in refusal.reason


def offered(number: int, incarnation: int = 3) -> SessionHello:
    return msgspec.structs.replace(HELLO, number=number, incarnation=incarnation)


def settled_by_peer(sessions: PeerSessions, number: int, incarnation: int = 3) -> SessionKey:
    key = sessions.offer(offered(number, incarnation))
    assert isinstance(key, SessionKey)
    assert sessions.settle(key, incarnation) is None
    return key


def test_an_older_incarnation_is_refused_and_a_newer_one_takes_over():
    sessions = PeerSessions(lower=True)
    settled_by_peer(sessions, 9, incarnation=3)
    older = sessions.offer(offered(10, incarnation=2))
    assert isinstance(older, Refusal)
    assert older.code == RefusalCode.INCARNATION
    settled_by_peer(sessions, 1, incarnation=4)
    dialled = PeerSessions(lower=True)
    settled_by_peer(dialled, 1, incarnation=4)
    dialled.release(SessionKey(1, False), 4)
    key = dialled.dial()
    assert key is not None
    late = dialled.settle(key, 3)
    assert late is not None
    assert late.code == RefusalCode.INCARNATION


def test_while_a_session_stands_nobody_dials_and_a_stale_attempt_is_refused():
    sessions = PeerSessions(lower=True)
    key = settled_by_peer(sessions, 2)
    assert sessions.dial() is None
    assert isinstance(sessions.offer(offered(2)), Refusal)
    sessions.release(key, 3)
    assert sessions.dial() == SessionKey(3, True)


def test_a_peer_that_lost_its_connection_replaces_it():
    sessions = PeerSessions(lower=True)
    settled_by_peer(sessions, 2)
    settled_by_peer(sessions, 3)
    assert sessions.dial() is None


def test_the_end_of_a_replaced_session_does_not_touch_the_new_one():
    sessions = PeerSessions(lower=True)
    old = settled_by_peer(sessions, 2, incarnation=3)
    new = sessions.offer(offered(2, incarnation=4))
    assert new == old
    sessions.release(old, 3)
    assert sessions.settle(new, 4) is None


def test_a_peer_that_forgot_its_numbers_learns_them_from_the_refusal():
    mine, theirs = PeerSessions(lower=True), PeerSessions(lower=False)
    settled_by_peer(mine, 5)
    key = theirs.dial()
    assert key is not None
    refusal = mine.offer(offered(key.number))
    assert isinstance(refusal, Refusal)
    theirs.learn(refusal.number)
    theirs.release(key, None)
    again = theirs.dial()
    assert again is not None
    assert isinstance(mine.offer(offered(again.number)), SessionKey)


class Handshakes:
    """Two ends that dial each other at will; every step of every handshake is one choice of the schedule."""

    def __init__(self) -> None:
        self.ends = [PeerSessions(lower=True), PeerSessions(lower=False)]
        self.settled: list[SessionKey | None] = [None, None]
        self.flying: list[tuple[str, int, SessionKey]] = []

    def dial(self, end: int) -> None:
        if (key := self.ends[end].dial()) is not None:
            self.flying.append(("hello", end, key))

    def step(self, which: int) -> None:
        what, dialler, key = self.flying.pop(which)
        other = 1 - dialler
        if what == "hello":
            answer = self.ends[other].offer(offered(key.number))
            if isinstance(answer, SessionKey):
                self.flying.append(("answer", dialler, key))
            else:
                self.ends[dialler].learn(answer.number)
                self.ends[dialler].release(key, None)
        elif what == "answer":
            if self.ends[dialler].settle(key, 3) is None:
                self._settle(dialler, key)
                self.flying.append(("ready", dialler, key))
            else:
                self.ends[dialler].release(key, None)
                self.ends[other].release(key, 3)
        elif self.ends[other].settle(key, 3) is None:
            self._settle(other, key)
        else:
            self.ends[other].release(key, 3)
            self._lose(dialler, key)

    def _settle(self, end: int, key: SessionKey) -> None:
        old, self.settled[end] = self.settled[end], key
        if old is not None:
            self._lose(1 - end, old)

    def _lose(self, end: int, key: SessionKey) -> None:
        if self.settled[end] == key:
            self.settled[end] = None
            self.ends[end].release(key, 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=60))
def test_two_ends_that_dial_at_once_settle_on_one_session(schedule):
    world = Handshakes()
    for dials, choice in schedule:
        if dials or not world.flying:
            world.dial(choice % 2)
        else:
            world.step(choice % len(world.flying))
    for _ in range(50):
        world.dial(0)
        world.dial(1)
        while world.flying:
            world.step(0)
    assert world.settled[0] is not None
    assert world.settled[0] == world.settled[1]
