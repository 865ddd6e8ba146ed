"""A run as it happens: a table for terminals, lines for logs. Both are functions of the records alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from isthmus.clock import Clock, SystemClock
from isthmus.observe.events import Event, describe, printable
from isthmus.observe.follow import Follower
from isthmus.observe.narrator import blocked_words, event_line, round_line
from isthmus.observe.runfiles import STANDARD_NAME, island_paths
from isthmus.units import format_bytes, format_count, format_duration, format_rate

_SHOWN_EVENTS = 6
_STATE_STYLES = {
    "training": "green",
    "joining": "cyan",
    "waiting": "yellow",
    "finishing": "cyan",
    "done": "bold green",
    "provisional": "yellow",
    "interrupted": "yellow",
    "failed": "bold red",
    "not started": "dim",
}
_EVENT_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


class View:
    """A run directory, watched; it may still be empty.

    ``render`` gives what a terminal shows now, ``lines`` what is new for a log. Use one or the other: each
    call reads on from where the last one stopped.

    Args:
        run_dir: The run's directory; its baseline, if any, is in ``standard`` below it.
        clock: Only its wall clock is read, to tell who has fallen silent.
    """

    def __init__(self, run_dir: Path, clock: Clock | None = None) -> None:
        self._run_dir = run_dir
        self._clock = clock or SystemClock()
        self._followers: dict[tuple[bool, str], Follower] = {}
        self._told_rounds: dict[tuple[bool, str], int] = {}
        self._events: deque[Event] = deque(maxlen=_SHOWN_EVENTS)

    @property
    def finished(self) -> bool:
        """Whether every island, the baseline aside, had written its last record when last looked at."""
        joint = self._of(baseline=False)
        return bool(joint) and all(follower.tally.finished is not None for follower in joint)

    def render(self) -> RenderableType:
        """Progress, one row per island, the last events."""
        self._read()
        now_s = self._clock.wall_s()
        parts: list[RenderableType] = []
        for baseline in (False, True):
            followers = self._of(baseline=baseline)
            if followers or not baseline:
                parts.append(_progress(followers, baseline=baseline))
        parts += [Text(""), _Islands(self._of(baseline=False) + self._of(baseline=True), now_s), Text("")]
        parts += [_event_text(event) for event in self._events]
        return Group(*parts)

    def lines(self) -> list[str]:
        """New plain lines: one per island and round, and every event but late meetings, oldest first."""
        return self._read()

    def _read(self) -> list[str]:
        self._find_islands()
        lines: list[tuple[float, str]] = []
        events: list[Event] = []
        for key, follower in self._followers.items():
            for record in follower.new():
                event = describe(record)
                if event is not None:
                    events.append(event)
                if follower.tally.rounds > self._told_rounds.get(key, 0):
                    self._told_rounds[key] = follower.tally.rounds
                    lines.append((record.wall_s, self._round_line(follower, record.wall_s)))
        for event in sorted(events, key=lambda event: event.wall_s):
            self._keep(event)
        lines += [(event.wall_s, _event_text(event).plain) for event in events if event.sort != "late"]
        return [line for _, line in sorted(lines, key=lambda timed: timed[0])]

    def _round_line(self, follower: Follower, wall_s: float) -> str:
        return round_line(follower.tally, wall_s, link=_link_words(follower, self._clock.wall_s()))

    def _find_islands(self) -> None:
        for baseline, directory in ((False, self._run_dir), (True, self._run_dir / STANDARD_NAME)):
            for name, path in island_paths(directory).items():
                if (baseline, name) not in self._followers:
                    self._followers[baseline, name] = Follower(name, path, baseline=baseline)

    def _keep(self, event: Event) -> None:
        """Late meetings come in droves: of those only each island's newest is kept."""
        if event.sort == "late":
            for old in [e for e in self._events if e.sort == "late" and e.island == event.island]:
                self._events.remove(old)
        self._events.append(event)

    def _of(self, *, baseline: bool) -> list[Follower]:
        found = [follower for follower in self._followers.values() if follower.baseline == baseline]
        return sorted(found, key=lambda follower: (follower.tally.slot, follower.name))


def _progress(followers: list[Follower], *, baseline: bool) -> Text:
    starts = [follower.tally.started for follower in followers if follower.tally.started is not None]
    if not starts:
        return Text("waiting for the first record", style="dim")
    tokens = sum(follower.tally.tokens for follower in followers)
    budget = max(started.token_budget for started in starts)
    name = "standard, one place" if baseline else printable(starts[0].run_name) or "run"
    text = Text(no_wrap=True, overflow="ellipsis").append(name, style="bold")
    text.append(f" · run {printable(starts[0].run)[:8]}   ", style="dim")
    text.append(f"{format_count(tokens)} / {format_count(budget)} tokens  ")
    share = min(tokens / budget, 1.0) if budget else 0.0
    text.append(f"{share:.0%} ")
    text.append_text(_bar(share, 24, "cyan"))
    living = [f for f in followers if f.tally.state in ("training", "waiting", "finishing")]
    pace = sum(follower.tally.tokens_per_s for follower in living)
    if share < 1 and pace > 0:
        text.append(f"  {format_duration((budget - tokens) / pace)} left", style="dim")
    return text


class _Islands:
    """The table of islands, with as many columns as fit."""

    def __init__(self, followers: list[Follower], now_s: float) -> None:
        self._followers, self._now_s = followers, now_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [column for column in _COLUMNS if column.from_width <= options.max_width < column.below_width]
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        for column in columns:
            table.add_column(column.title, justify=column.justify, no_wrap=True)
        for follower in self._followers:
            table.add_row(*(column.cell(follower, self._followers, self._now_s) for column in columns))
        yield table


def _state(follower: Follower, followers: list[Follower], now_s: float) -> Text:
    silent_s = follower.silent_s(now_s)
    if silent_s is None and _reported_down(follower, followers):
        silent_s = max(now_s - follower.tally.last_wall_s, 0.0)
    if silent_s is not None:
        return Text(f"down {format_duration(silent_s)}", style="bold red")
    tally = follower.tally
    if tally.state == "waiting" and tally.waiting is not None:
        waited = format_duration(max(now_s - tally.waiting.wall_s, 0.0))
        return Text(printable(f"waiting {waited} for {', '.join(tally.waiting.peers)}"), style="yellow")
    return Text(tally.state, style=_STATE_STYLES[tally.state])


def _reported_down(follower: Follower, followers: list[Follower]) -> bool:
    """Whether another island has lost this one since its last word."""
    if not follower.tally.alive:
        return False
    seen = (other.tally.peers.get(follower.name) for other in followers if other is not follower)
    return any(change is not None and not change.up and change.wall_s > follower.tally.last_wall_s for change in seen)


def _link(follower: Follower, _: list[Follower], now_s: float) -> Text:
    limit = follower.tally.started.rate_limit_bytes_per_s if follower.tally.started else None
    words = _link_words(follower, now_s)
    if limit is None:
        return Text(words or "–")
    share = min(follower.sent_bytes_per_s(now_s) / limit, 1.0) if limit > 0 else 0.0
    return _bar(share, 8, "magenta").append(f" {words}")


def _link_share(follower: Follower, _: list[Follower], now_s: float) -> str:
    """The link's use of its limit; where it has none, the rate."""
    sent = follower.sent_bytes_per_s(now_s)
    limit = follower.tally.started.rate_limit_bytes_per_s if follower.tally.started else None
    return f"{sent / limit:.0%}" if limit else format_rate(sent * 8)


def _link_words(follower: Follower, now_s: float) -> str:
    """What an island sends now, against its limit if it has one."""
    sent = follower.sent_bytes_per_s(now_s)
    limit = follower.tally.started.rate_limit_bytes_per_s if follower.tally.started else None
    if limit is None:
        return format_rate(sent * 8) if sent else ""
    return f"{format_rate(sent * 8)} of {format_rate(limit * 8)}"


def _peers(follower: Follower) -> Text:
    text = Text()
    for peer in follower.tally.peers.values():
        text.append("  " if text else "")
        rtt = f" {format_duration(peer.rtt_s)}" if peer.up and peer.rtt_s is not None else ""
        text.append(f"{'●' if peer.up else '○'} {printable(peer.peer)}{rtt}", style="green" if peer.up else "bold red")
    return text or Text("–")


def _bar(share: float, width: int, style: str) -> Text:
    filled = round(share * width)
    return Text().append("█" * filled, style=style).append("░" * (width - filled), style="dim")


def _event_text(event: Event) -> Text:
    return Text(event_line(event), style=_EVENT_STYLES[event.severity])


class _Column(NamedTuple):
    """One column: its cell from (this island, all islands, wall clock), in terminals of certain widths."""

    title: str
    cell: Callable[[Follower, list[Follower], float], str | Text]
    from_width: int = 0
    justify: Literal["left", "right"] = "right"
    below_width: int = 10_000


_COLUMNS = (
    _Column("ISLAND", lambda f, _, __: Text(printable(f.name), style="bold"), justify="left"),
    _Column("STATE", _state, justify="left"),
    _Column("STEP", lambda f, _, __: f"{f.tally.step:,}"),
    _Column("TOKENS", lambda f, _, __: format_count(f.tally.tokens), 96),
    _Column("TOK/S", lambda f, _, __: format_count(f.tally.tokens_per_s)),
    _Column("LOSS", lambda f, _, __: "–" if f.tally.loss_nats is None else f"{f.tally.loss_nats:.3f}"),
    _Column("ROUND", lambda f, _, __: str(f.tally.rounds), 110),
    _Column("OPEN", lambda f, _, __: str(f.tally.meetings.open)),
    _Column("SENT", lambda f, _, __: format_bytes(f.tally.traffic.sent_bytes)),
    _Column("LINK", _link_share, below_width=112),
    _Column("LINK", _link, 112, "left"),
    _Column("BLOCKED", lambda f, _, __: blocked_words(f.tally)),
    _Column("PEERS", lambda f, _, __: _peers(f), 138, "left"),
)
