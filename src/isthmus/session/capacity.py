"""When an island's own capacity is there, by its windows in the roster."""

from __future__ import annotations

import logging
import time

from isthmus.clock import Clock
from isthmus.errors import ConfigError
from isthmus.roster import Member
from isthmus.windows import closes_at, opens_at, say_time

log = logging.getLogger("isthmus")

_LOOK_S = 1.0


def wait_for_window(member: Member, clock: Clock) -> float:
    """Wait until the island's window is open; the time at which it was, in seconds since the epoch.

    Raises:
        ConfigError: It has windows, and none opens any more.
    """
    said = False
    while True:
        now_s = clock.wall_s()
        if closes_at(member.windows, now_s, started_s=now_s) is not None:
            return now_s
        opens_s = opens_at(member.windows, now_s)
        if opens_s is None:
            mend = f"Give it others: isthmus roster windows RUN_DIR {member.name} WINDOW"
            what = f"no window of island {member.name} in the roster opens any more"
            raise ConfigError(what, got=", ".join(member.windows), mend=mend)
        if not said:
            log.info("%s: its window in the roster opens at %s; waiting until then", member.name, say_time(opens_s))
            said = True
        time.sleep(min(_LOOK_S, opens_s - now_s))


def why_leave(member: Member, clock: Clock, *, started_s: float, grace_s: float) -> str | None:
    """Why the island is to leave now, because its window closes: None while there is time.

    Args:
        member: The island in the roster.
        clock: The time.
        started_s: When it started, in seconds since the epoch.
        grace_s: How long leaving may take.
    """
    if not member.windows:
        return None
    now_s = clock.wall_s()
    closes_s = closes_at(member.windows, now_s, started_s=started_s)
    if closes_s is None:
        return "its window in the roster has closed"
    return f"its window in the roster closes at {say_time(closes_s)}" if closes_s - now_s <= grace_s else None
