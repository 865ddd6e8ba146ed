"""Islands whose capacity is there in windows only."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.config import LoadedRun, RunPaths, load_shared, set_windows
from isthmus.errors import ConfigError
from isthmus.observe import records
from isthmus.session import Island
from isthmus.transport.link import Link
from small_runs import Loop, in_memory, records_of, train, until, write_small_run

NAMES = ("us-east", "asia", "europe")
LONG_AGO = "2020-01-01T00:00Z/2020-01-02T00:00Z"


def moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat()


def patient_run(run_dir: Path, *names: str) -> RunPaths:
    """One whose islands wait a minute for each other."""
    return write_small_run(run_dir, *names, island={"join": {"wait_s": 60.0}, "leave": {"grace_s": 0.5}})


@pytest.mark.slow
def test_an_island_waits_for_its_window_trains_in_it_and_leaves_before_it_closes(tmp_path: Path, caplog):
    caplog.set_level("INFO")
    paths = patient_run(tmp_path / "run", "solo")
    opens_s = time.time() + 1.0
    set_windows(paths.root, "solo", [f"{moment(opens_s)}/{moment(opens_s + 2.5)}"])
    loop = Loop()
    with loop.join(paths, "solo", open_link=in_memory(paths)) as island:
        assert time.time() >= opens_s
        until(lambda: train(island, loop) or island.done, "the end of the window")
    assert time.time() < opens_s + 2.5
    said = records_of(paths, "solo", records.Finished)[-1]
    assert said.reason == "interrupted"
    assert said.detail.startswith("its window in the roster closes at 20")
    assert "solo: its window in the roster opens at 20" in caplog.text


def test_an_island_leaves_so_long_after_its_start_as_its_window_says(tmp_path: Path):
    paths = patient_run(tmp_path / "run", "solo")
    set_windows(paths.root, "solo", ["PT1S"])
    loop, started_s = Loop(), time.monotonic()
    with loop.join(paths, "solo", open_link=in_memory(paths)) as island:
        until(lambda: train(island, loop) or island.done, "the end of the window")
    assert 0.4 < time.monotonic() - started_s < 30


def test_an_island_none_of_whose_windows_opens_any_more_does_not_start_and_says_so(tmp_path: Path):
    paths = patient_run(tmp_path / "run", "solo")
    set_windows(paths.root, "solo", [LONG_AGO])
    with pytest.raises(ConfigError, match=r"no window of island solo .* any more.*2020.*isthmus roster windows"):
        Loop().join(paths, "solo", open_link=in_memory(paths))


def test_who_is_away_by_its_windows_is_waited_for_neither_at_the_beginning_nor_at_the_end(tmp_path: Path):
    paths = patient_run(tmp_path / "run", *NAMES)
    network, loops, islands = in_memory(paths), {}, dict[str, Island]()

    def open_link(loaded: LoadedRun, incarnation: int) -> Link:
        """A link that lets the other island answer while one waits."""
        link = network(loaded, incarnation)
        link.wait = lambda timeout_s: [other.engine.pump() for other in islands.values()]  # type: ignore[assignment]
        return link

    started_s = time.monotonic()
    for seed, (name, away) in enumerate({"us-east": ["europe", "asia"], "asia": ["europe"]}.items()):
        for other in NAMES:
            set_windows(paths.root, other, [LONG_AGO] if other in away else [])
        loops[name] = Loop(seed)
        islands[name] = loops[name].join(paths, name, open_link=open_link)
    for _ in range(24):
        for name, island in islands.items():
            train(island, loops[name])
    engines = [island.engine for island in islands.values()]
    for engine in engines:
        engine.finish()
    until(lambda: [engine.pump() for engine in engines] and all(e.phase == "done" for e in engines), "the end")
    assert time.monotonic() - started_s < 30
    assert islands["us-east"].digest == islands["asia"].digest
    for name, island in islands.items():
        assert not island.provisional
        assert "europe" not in records_of(paths, name, records.Joined)[-1].waited_for
        island.close("done")


def test_who_says_that_it_leaves_is_not_told_as_lost(tmp_path: Path):
    paths = write_small_run(tmp_path / "run", "us-east", "asia", tokens=10**6)
    network, loops = in_memory(paths), {name: Loop() for name in ("us-east", "asia")}
    islands = {name: loop.join(paths, name, open_link=network) for name, loop in loops.items()}
    for _ in range(10):
        for name, island in islands.items():
            train(island, loops[name])
    islands["asia"].request_stop("its window closes")
    islands["asia"].finish()
    train(islands["us-east"], loops["us-east"], 2)
    gone = [change for change in records_of(paths, "us-east", records.PeerChange) if not change.up]
    assert [(change.peer, change.left, change.reason) for change in gone] == [("asia", True, "its window closes")]
    islands["us-east"].close("interrupted")


def test_windows_are_set_shown_and_taken_away_and_wrong_ones_are_refused(tmp_path: Path, capsys):
    paths = write_small_run(tmp_path / "run", *NAMES)
    assert main(["roster", "windows", str(paths.root), "asia", "22:00/06:00", "PT4H"]) == 0
    assert "asia" in (said := capsys.readouterr().out) and "there 22:00/06:00, PT4H" in said
    roster = load_shared(paths.root).roster
    assert roster.version == 2
    assert roster.find("asia").windows == ("22:00/06:00", "PT4H")
    assert main(["roster", "windows", str(paths.root), "asia", "nights"]) == 2
    assert "22:00/06:00" in (said := capsys.readouterr().err) and "nights" in said
    assert main(["roster", "windows", str(paths.root), "africa", "PT4H"]) == 2
    assert "no such island" in capsys.readouterr().err
    assert main(["roster", "windows", str(paths.root), "asia"]) == 0
    assert "there" not in capsys.readouterr().out
