"""Rosters that change while islands train."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.config import LoadedRun, RunPaths, add_island, load_run, load_shared, remove_island
from isthmus.identity import create_owner_key
from isthmus.observe import records
from isthmus.roster import Roster, sign_roster
from isthmus.session import Island, site
from isthmus.session.rosters import RosterFile, RosterWatch, WatchingLink, heard_roster
from isthmus.terms import LinkAlarm, MessageReceived, RosterNews
from isthmus.transport.link import Link
from small_runs import Loop, alarms, in_memory, records_of, train, until, write_small_run

NAMES = ("us-east", "asia", "europe")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return write_small_run(tmp_path / "run", *NAMES, tokens=10**6)


def two_versions(paths: RunPaths) -> tuple[Roster, Roster]:
    """The roster there is, and the one with an island more that takes its place."""
    return load_shared(paths.root).roster, add_island(paths.root, "india")


class Islands:
    """Islands in one process that take turns; none looks at the file by itself."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths, self._network = paths, in_memory(paths, "india")
        self.loops: dict[str, Loop] = {}
        self.islands: dict[str, Island] = {}

    def join(self, name: str) -> None:
        loop = self.loops[name] = Loop(len(self.loops))
        self.islands[name] = loop.join(self.paths, name, open_link=self.open_link)

    def open_link(self, loaded: LoadedRun, incarnation: int) -> Link:
        """A link that lets the others train on while a newcomer waits."""
        link = self._network(loaded, incarnation)
        if loaded.member.name not in self.islands:
            link.wait = lambda timeout_s: self.train(1)  # type: ignore[method-assign]
        return link

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for name, island in self.islands.items():
                if not island.done:
                    train(island, self.loops[name])

    def train_until(self, done: Callable[[], object], what: str) -> None:
        """Alarms and answers take time by the clock, so that the number of steps depends on the machine."""
        until(lambda: self.train(1) or done(), what)

    def tell(self, name: str, roster: Roster) -> None:
        """One island hears of a roster; the others hear it from there."""
        assert self.islands[name]._site.hear_roster(roster.model_dump_json())

    def versions(self) -> dict[str, int]:
        return {name: island.engine.plan.roster for name, island in self.islands.items()}

    def met_since(self, name: str, time_s: float) -> set[str]:
        return {m.peer for m in records_of(self.paths, name, records.Meeting) if m.wall_s > time_s}

    def end(self) -> None:
        engines = [island.engine for island in self.islands.values()]
        for engine in engines:
            engine.finish()
        until(lambda: [engine.pump() for engine in engines] and all(e.phase == "done" for e in engines), "the end")


@pytest.fixture
def _nobody_looks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(site, "WATCH_S", 3600.0)


@pytest.mark.slow
@pytest.mark.usefixtures("_nobody_looks")
@pytest.mark.parametrize("rule", ["pair", "mesh"])
def test_news_of_a_roster_reaches_all_and_who_is_added_trades_and_who_is_removed_leaves(tmp_path: Path, rule: str):
    mixing = {"rule": rule, "meetings": 1 if rule == "mesh" else 2}
    paths = write_small_run(tmp_path / "run", *NAMES, tokens=10**6, run={"mixing": mixing})
    run = Islands(paths)
    for name in NAMES:
        run.join(name)
    run.train(24)
    run.tell("asia", add_island(paths.root, "india"))
    run.train_until(lambda: run.versions() == dict.fromkeys(NAMES, 2), "version 2")
    run.join("india")
    run.train_until(lambda: run.met_since("india", 0.0), "a meeting of the new island")
    assert records_of(paths, "india", records.Joined)[-1].how == "adopted"

    run.tell("india", remove_island(paths.root, "europe"))
    run.train_until(lambda: run.islands["europe"].done, "the end of the removed island")
    europe = run.islands.pop("europe")
    europe.finish()
    said = records_of(paths, "europe", records.Finished)[-1]
    assert (said.reason, said.detail) == ("interrupted", "this island is not in version 3 of the roster")
    run.train_until(lambda: run.versions() == dict.fromkeys(("us-east", "asia", "india"), 3), "version 3")
    left_s = said.wall_s

    def met(name: str) -> int:
        return len(records_of(paths, name, records.Meeting))

    before = {name: met(name) for name in run.islands}
    run.train_until(lambda: all(met(name) >= before[name] + 4 for name in run.islands), "meetings without it")
    for name in run.islands:
        assert "europe" not in run.met_since(name, left_s)
        assert name == "india" or rule == "mesh" or not alarms(paths, name)
    run.end()
    assert len({island.digest for island in run.islands.values()}) == 1
    assert not any(island.provisional for island in run.islands.values())
    for island in run.islands.values():
        island.close("done")


@pytest.mark.usefixtures("_nobody_looks")
def test_what_was_trained_counts_once_and_the_step_goes_on_when_the_roster_changes(paths: RunPaths):
    run = Islands(paths)
    for name in NAMES:
        run.join(name)
    run.train(21)
    island, loop = run.islands["asia"], run.loops["asia"]
    tokens, step, cursor = island.tokens, island.step_count, loop.cursor
    run.tell("asia", add_island(paths.root, "india"))
    train(island, loop)
    assert island.engine.plan.roster == 2
    assert (island.step_count, loop.cursor) == (step + 1, cursor + 1)
    assert island.tokens == tokens + tokens // step
    for each in run.islands.values():
        each.close("interrupted")


def test_a_heard_roster_counts_only_if_it_is_newer_of_this_run_and_signed_by_the_owner(paths: RunPaths):
    owner = load_shared(paths.root).run.run.owner
    old, new = two_versions(paths)
    stranger = create_owner_key()
    assert heard_roster(new.model_dump_json(), old, owner=owner) == new
    assert heard_roster(old.model_dump_json(), new, owner=owner) is None
    assert heard_roster(new.model_dump_json(), new, owner=owner) is None
    wrong = {
        "not JSON": "}{",
        "no roster": "{}",
        "another's signature": sign_roster(new, stranger).model_dump_json(),
        "a changed version": new.model_copy(update={"version": 9}).model_dump_json(),
        "no signature": new.model_copy(update={"signature": ""}).model_dump_json(),
        "another run": new.model_copy(update={"run": "0" * 64}).model_dump_json(),
        "an island less": new.model_copy(update={"islands": new.islands[:-1]}).model_dump_json(),
    }
    for what, document in wrong.items():
        assert heard_roster(document, old, owner=owner) is None, what


def test_a_changed_file_is_read_once_it_stands_still_and_only_once(paths: RunPaths):
    file = RosterFile(paths.root, "asia")
    assert file.look() is None
    _, new = two_versions(paths)
    assert file.look() is None  # it may be half written
    assert file.look() == MessageReceived("asia", RosterNews(new.model_dump_json()))
    assert file.look() is None


def test_a_file_that_is_gone_says_nothing_and_a_wrong_one_is_an_alarm_once(paths: RunPaths):
    file, kept = RosterFile(paths.root, "asia"), paths.root / "kept.toml"
    shutil.move(paths.roster, kept)
    assert [file.look() for _ in range(3)] == [None] * 3
    paths.roster.write_text(kept.read_text().replace("version = 1", "version = 7"))
    first, alarm, third = (file.look() for _ in range(3))
    assert first is None and third is None
    assert isinstance(alarm, LinkAlarm)
    assert "roster.toml has changed, and cannot be gone by" in alarm.what and "sign" in alarm.what
    paths.roster.write_text("half of a li")
    found = [file.look() for _ in range(3)]
    assert isinstance(found[1], LinkAlarm) and found[0] is found[2] is None


def test_what_the_file_says_is_heard_on_the_link(paths: RunPaths):
    watch = RosterWatch(RosterFile(paths.root, "asia"), 0.01)
    link: Link = WatchingLink(in_memory(paths)(load_run(paths.root, "asia"), 1), [watch])
    _, new = two_versions(paths)
    heard: list[object] = []
    until(lambda: heard.extend(link.poll()) or heard, "the roster")
    watch.close()
    link.close(timeout_s=0.0)
    assert heard == [MessageReceived("asia", RosterNews(new.model_dump_json()))]
