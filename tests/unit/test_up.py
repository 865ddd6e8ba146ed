from __future__ import annotations

import io
import signal
from pathlib import Path

import pytest
from rich.console import Console

from isthmus.cli.main import main
from isthmus.config import RunPaths
from isthmus.observe import records
from isthmus.up import LOG_NAME, IslandProcesses, report_failures
from small_runs import change_file, children, last_step, records_of, until, write_text_run

NAMES = ("us-east", "asia")


def test_up_without_islands_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_text_run(tmp_path / "run", "solo", tokens=1000)
    paths.island("solo").config.unlink()
    assert main(["up", str(paths.root)]) == 2
    assert "no island has its files in" in capsys.readouterr().err


def test_up_checks_what_islands_share_before_it_starts_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_text_run(tmp_path / "run", "solo", tokens=1000)
    change_file(paths.run, ("clip_norm = 1.0", "clip_norm = 2.0"))
    assert main(["up", str(paths.root)]) == 2
    assert "roster sign" in capsys.readouterr().err
    assert not (paths.island("solo").root / LOG_NAME).exists()


@pytest.mark.slow
def test_an_island_that_fails_is_named_with_its_exit_code_and_last_words(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "solo", tokens=1000)
    change_file(paths.island("solo").config, ("batch_size = 2", "batch_size = 0"))
    processes = IslandProcesses(paths.root, paths.present())
    until(lambda: not processes.running, "its end")
    assert processes.failed() == {"solo": 2}
    console = Console(file=io.StringIO(), width=200)
    assert report_failures(processes, console)
    said = console.file.getvalue()
    assert "solo ended with exit code 2" in said
    assert "batch_size" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_islands_that_are_asked_to_end_save_and_leave(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10**9)
    processes = IslandProcesses(paths.root, paths.present())
    until(lambda: last_step(paths, "solo") > 3 or not processes.running, "training")
    processes.terminate()
    assert processes.failed() == {}
    assert not processes.running
    assert_saved(paths, "solo")


@pytest.mark.slow
def test_a_signal_to_up_lets_all_islands_save_and_leave(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", *NAMES, tokens=10**9)
    with children() as start:
        child = start(tmp_path / "up.log", "-m", "isthmus", "up", str(paths.root))
        until(lambda: all(last_step(paths, name) > 3 for name in NAMES), "training", child)
        child.signal(signal.SIGTERM)  # it is taken for Ctrl-C
        assert child.ends() == 130
        assert "asking all islands to save and leave" in child.said()
    for name in NAMES:
        assert_saved(paths, name)


def assert_saved(paths: RunPaths, name: str) -> None:
    (finished,) = records_of(paths, name, records.Finished)
    assert (finished.reason, finished.detail) == ("interrupted", "SIGTERM")
    assert records_of(paths, name, records.Checkpoint)[-1].step == finished.step
