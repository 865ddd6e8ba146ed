"""A whole study by its command, in processes: done, listed, killed and gone on with."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgspec
import pytest

from isthmus.cli.main import main
from isthmus.lab.table import RunRow, read_table
from lab_studies import write_study
from small_runs import children, until

pytestmark = pytest.mark.slow

TUNED = 'tune."run.train.learning_rate" = [5e-3, 1e30]'
TIMES = {"cpu_s": 0.0, "train_cpu_s": 0.0, "score_cpu_s": 0.0}


def rows_of(out: Path) -> list[RunRow]:
    return [msgspec.structs.replace(row, **TIMES) for row in read_table(out / "table.jsonl")]


def command(study: Path, out: Path, *more: str) -> list[str]:
    return ["lab", str(study), "--out", str(out), *more]


def test_a_study_tunes_compares_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = write_study(tmp_path, tokens=1500, study="tuning_seeds = [1]", two=TUNED), tmp_path / "out"
    assert main(command(study, out, "--list")) == 0
    listed = capsys.readouterr().out
    assert listed.count("to do") == 4
    assert "and 2 that compare, when values have been chosen" in listed
    assert main(command(study, out, "--jobs", "2")) == 0
    said = capsys.readouterr().out
    rows = rows_of(out)
    assert [(row.stage, row.arm, row.seed) for row in rows] == [
        ("tune", "two", 1),
        ("tune", "two", 1),
        ("compare", "one", 11),
        ("compare", "two", 11),
        ("compare", "one", 12),
        ("compare", "two", 12),
    ]
    assert [row.outcome for row in rows[:2]] == ["done", "diverged"], "one that diverges does not stop the others"
    assert {row.outcome for row in rows[2:]} == {"done"}
    assert all(row.values == {"run.train.learning_rate": 5e-3} for row in rows if row.arm == "two" and row.seed > 1)
    assert "[6/6]" in said
    assert "diverged" in said
    report = json.loads((out / "report.json").read_text())
    assert report["missing"] == 0
    assert "two" in (out / "report.md").read_text()
    assert "<html" in (out / "report.html").read_text()
    before = (out / "table.jsonl").read_bytes()
    assert main(command(study, out)) == 0
    assert (out / "table.jsonl").read_bytes() == before, "what was run is not run again"


def test_a_killed_study_goes_on_to_the_same_table_and_leaves_no_process(tmp_path: Path) -> None:
    study = write_study(tmp_path, tokens=20_000)
    study.write_text(study.read_text().replace("seeds = [11, 12]", "seeds = [11]"))
    with children() as start:
        line = ["-m", "isthmus", *command(study, tmp_path / "killed", "--jobs", "2")]
        first = start(tmp_path / "first.log", *line)
        until(lambda: len(list(tmp_path.glob("killed/cells/*/islands/*/records.jsonl"))) == 3, "both runs", first)
        first.kill()
        kept = ("snapshots/*.json", "row.json")
        until(lambda: sum(len(list(tmp_path.glob(f"killed/cells/*/{each}"))) for each in kept) == 2, "orphans to save")
        assert not (tmp_path / "killed/table.jsonl").exists()
        again = start(tmp_path / "again.log", *line)
        again.ends_well()
        whole = start(tmp_path / "whole.log", "-m", "isthmus", *command(study, tmp_path / "whole", "--jobs", "2"))
        whole.ends_well()
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    assert len(rows_of(tmp_path / "whole")) == 2


def test_ctrl_c_stops_a_study_with_all_runs_saved(tmp_path: Path) -> None:
    study = write_study(tmp_path, tokens=400_000)
    with children() as start:
        child = start(tmp_path / "log", "-m", "isthmus", *command(study, tmp_path / "out", "--jobs", "1"))
        until(lambda: list(tmp_path.glob("out/cells/*/islands/*/records.jsonl")), "a run", child)
        child.signal(signal.SIGTERM)
        assert child.ends() == 130
        assert "the same command goes on" in child.said()
    assert len(list(tmp_path.glob("out/cells/*/snapshots/*.json"))) == 1


def test_two_commands_do_not_run_one_study_at_once(tmp_path: Path) -> None:
    study = write_study(tmp_path, tokens=400_000)
    with children() as start:
        child = start(tmp_path / "log", "-m", "isthmus", *command(study, tmp_path / "out", "--jobs", "1"))
        until(lambda: list(tmp_path.glob("out/cells/*")), "a run", child)
        second = start(tmp_path / "second.log", "-m", "isthmus", *command(study, tmp_path / "out"))
        assert second.ends() == 1
        assert "another process holds this study" in second.said()
        child.signal(signal.SIGTERM)
        assert child.ends() == 130


def test_a_wrong_key_anywhere_refuses_the_whole_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, two="run.mixing.windw_steps = 3")
    assert main(command(study, tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert "windw_steps" in said
    assert "window_steps" in said
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = write_study(tmp_path, tokens=1500, two='island.data.sources = ["texts/none*.txt"]'), tmp_path / "out"
    assert main(command(study, out, "--jobs", "2")) == 1
    assert "none*.txt" in capsys.readouterr().out
    assert {row.arm for row in rows_of(out)} == {"one"}
