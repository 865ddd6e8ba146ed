"""When capacity is there, as the roster says."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from isthmus.windows import check_window, closes_at, opens_at, say_time


def at(day: int, hour: int, minute: int = 0) -> float:
    return datetime(2026, 12, day, hour, minute, tzinfo=UTC).timestamp()


def closes(now_s: float, *windows: str, started_s: float = 0.0) -> float | None:
    return closes_at(windows, now_s, started_s=started_s)


def test_an_island_without_windows_is_always_there():
    assert closes(at(7, 3)) == math.inf


def test_a_window_of_one_time_is_open_from_its_begin_until_before_its_end():
    window = "2026-12-07T22:00Z/2026-12-08T06:00+02:00"
    assert closes(at(7, 21, 59), window) is None
    assert closes(at(7, 22), window) == closes(at(8, 3, 59), window) == at(8, 4)
    assert closes(at(8, 4), window) is None
    assert opens_at([window], at(7, 1)) == at(7, 22)
    assert opens_at([window], at(7, 23)) is None


def test_a_daily_window_may_go_over_midnight():
    window = "22:00/06:00"
    assert closes(at(7, 5), window) == at(7, 6)
    assert closes(at(7, 6), window) is None
    assert opens_at([window], at(7, 6)) == at(7, 22)
    assert closes(at(7, 23), window) == closes(at(8, 1), window) == at(8, 6)
    assert closes(at(7, 9), "09:00/17:00") == at(7, 17)
    assert opens_at(["09:00/17:00"], at(7, 17)) == at(8, 9)


def test_windows_that_touch_or_overlap_are_one():
    assert closes(at(7, 10), "09:00/12:00", "12:00/14:00", "13:00/15:30") == at(7, 15, 30)
    assert closes(at(7, 10), "13:00/15:30", "09:00/12:00") == at(7, 12)


def test_a_length_counts_from_the_islands_start():
    assert closes(at(7, 10), "PT4H", started_s=at(7, 9)) == at(7, 13)
    assert closes(at(7, 13), "PT4H", started_s=at(7, 9)) is None
    assert closes(at(7, 10), "PT1H30M", started_s=at(7, 10)) == at(7, 11, 30)


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "always", "22:00", "22:00/", "08:00/08:00", "25:00/26:00", "22:00Z/23:00Z"),
        *("PT0S", "-PT4H", "P", "4", "2026-12-07/2026-12-08", "2026-12-07T22:00/2026-12-08T06:00"),
        *("2026-12-08T22:00Z/2026-12-07T06:00Z", "22:00/2026-12-08T06:00Z"),
    ],
)
def test_what_is_no_window_is_refused_with_what_would_be_one(text: str):
    with pytest.raises(ValueError, match=r"Input should be a window: .*22:00/06:00"):
        check_window(text)


def test_times_are_said_in_utc():
    assert say_time(at(7, 22)) == "2026-12-07 22:00:00 UTC"
