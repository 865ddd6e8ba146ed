"""When slices leave, how long pauses are, and which alarms are let through."""

from __future__ import annotations

import random

import pytest

from isthmus.terms import LinkSample
from isthmus.transport.meter import Meter
from isthmus.transport.pacing import AlarmLimiter, Backoff, RateLimiter, Spread, slice_bytes


@pytest.mark.parametrize(("rate", "slices"), [(1e3, 4096), (1e6, 10_000), (1e9, 65_536), (float("inf"), 65_536)])
def test_a_slice_is_10_ms_worth_within_bounds(rate, slices):
    assert slice_bytes(rate) == slices


def test_a_capped_rate_holds_over_any_stretch_and_idle_time_is_not_saved_up():
    limiter, now_s, sent = RateLimiter(8e6), 100.0, 0
    for _ in range(1000):
        now_s += limiter.reserve(5000, now_s)
        sent += 5000
    assert sent / (now_s - 100.0) == pytest.approx(1e6, rel=0.01)
    now_s += 60.0
    burst = 0
    while limiter.reserve(5000, now_s) == 0.0:
        burst += 5000
    assert burst <= 15_000


def test_no_100_ms_carry_much_more_than_the_cap_even_after_idle_time():
    for rate in (1e5, 5e5, 1e7):
        limiter, now_s, sent = RateLimiter(8 * rate), 100.0, []
        for _ in range(200):
            now_s += limiter.reserve(slice_bytes(rate), now_s)
            sent.append(now_s)
        busiest = max(sum(start <= at < start + 0.1 for at in sent) for start in sent) * slice_bytes(rate)
        assert busiest <= 1.1 * rate * 0.1 + slice_bytes(rate)


def test_what_cannot_wait_is_made_up_for_by_what_can():
    limiter = RateLimiter(8e6)
    limiter.reserve(1_000_000, 10.0)
    assert limiter.reserve(1, 10.0) == pytest.approx(1.0, abs=0.03)


def test_without_a_cap_nothing_waits():
    assert RateLimiter(None).reserve(10**12, 0.0) == 0.0


def test_a_spread_ends_on_time_even_if_it_starts_late():
    for start_s in (0.0, 3.0, 9.0, 20.0):
        spread, now_s = Spread(10_000, end_s=10.0), start_s
        for _ in range(10):
            now_s += spread.take_s(1000, now_s)
        assert now_s == pytest.approx(max(10.0, start_s))


def test_after_a_stall_the_rest_is_spread_evenly_and_not_sent_in_a_burst():
    spread, now_s = Spread(10_000, end_s=10.0), 0.0
    now_s += spread.take_s(2000, now_s) + 4.0
    assert spread.bytes_per_s(now_s) == pytest.approx(2000)
    pauses = [spread.take_s(2000, now_s + index) for index in range(4)]
    assert pauses == pytest.approx([1.0] * 4)
    assert spread.bytes_per_s(10.0) == float("inf")


def test_pauses_grow_to_a_cap_and_differ_by_chance():
    backoff = Backoff(random.Random(1), first_s=0.1, cap_s=5.0)
    pauses = [backoff.next_s() for _ in range(12)]
    assert all(0.5 * min(5.0, 0.1 * 2**i) <= pause <= min(5.0, 0.1 * 2**i) for i, pause in enumerate(pauses))
    assert len(set(pauses)) == 12
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_an_alarm_comes_once_in_a_while_and_says_how_many_were_held_back():
    limiter = AlarmLimiter(quiet_s=10.0)
    assert [limiter.admit("noise", now_s) for now_s in (0.0, 1.0, 2.0, 10.0, 11.0)] == [0, None, None, 2, None]
    assert limiter.admit("else", 1.0) == 0


class Fake:
    """A connection with counts that the test sets."""

    def __init__(self) -> None:
        self.counts = (0, 0)

    def wire_counts(self) -> tuple[int, int]:
        return self.counts


def test_the_meter_counts_every_byte_once_also_of_closed_connections():
    meter, one, two = Meter(), Fake(), Fake()
    meter.add(one)
    meter.add(two)
    one.counts, two.counts = (10, 1), (5, 0)
    assert meter.sample(0.0, 0.1) == LinkSample(0.0, 0.1, 15, 1)
    one.counts = (30, 1)
    meter.remove(one)
    meter.remove(one)
    one.counts = (1000, 1000)
    assert meter.sample(0.1, 0.1) == LinkSample(0.1, 0.1, 20, 0)
    assert meter.sample(0.2, 0.1) == LinkSample(0.2, 0.1, 0, 0)
    assert meter.sample(0.3, 0.1) is None
    two.counts = (6, 0)
    assert meter.sample(0.4, 0.1) == LinkSample(0.4, 0.1, 1, 0)
