"""One run of a study: the same whether it was stopped or not, its faults survived, its divergence noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from isthmus.lab.grid import Cell
from isthmus.lab.joint import mean_weights
from isthmus.lab.run import LabRun
from isthmus.lab.table import RunRow
from isthmus.observe import records
from isthmus.observe.journal import read_records
from isthmus.observe.report import write_report
from lab_studies import cell_of, write_study

TIMES = {"cpu_s": 0.0, "train_cpu_s": 0.0, "score_cpu_s": 0.0}


def finish(cell: Cell, folder: Path, cache: Path) -> RunRow:
    row = LabRun(cell, folder, cache, tick_s=0.0).run(lambda: False, lambda progress: None)
    assert row is not None
    return row


def stop_after(events: int) -> Callable[[], bool]:
    """Says stop once it was asked ``events`` times, and from then on."""
    asked = iter(range(events))
    return lambda: next(asked, None) is None


def without_times(row: RunRow) -> RunRow:
    return msgspec.structs.replace(row, **TIMES)


def record_files(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("islands/*/records.jsonl"))}


@pytest.mark.slow
def test_a_run_trains_scores_on_the_way_and_ends_with_its_row(tmp_path: Path) -> None:
    cell = cell_of(write_study(tmp_path), "two")
    row = finish(cell, tmp_path / "run", tmp_path / "cache")
    assert (row.outcome, row.arm, row.seed, row.islands) == ("done", "two", 11, 2)
    assert row.tokens >= 3000
    assert row.steps["a"] == row.steps["b"] > 20
    assert [score.run_tokens >= 1000 * (n + 1) for n, score in enumerate(row.scores) if not score.final] == [True] * 3
    (name,) = {score.set_name for score in row.scores}
    assert 0 < row.final_scores("joint")[name] < row.scores[0].bits_per_byte < 9
    assert row.final_scores("first")[name] == pytest.approx(row.final_scores("joint")[name], rel=1e-5)
    assert row.meetings > 8
    assert row.sent_bytes > 10_000
    assert 0 < row.train_cpu_s < row.cpu_s


@pytest.mark.slow
def test_an_arm_with_one_island_trains_as_much_and_sends_nothing(tmp_path: Path) -> None:
    row = finish(cell_of(write_study(tmp_path), "one"), tmp_path / "run", tmp_path / "cache")
    assert (row.outcome, row.meetings, row.sent_bytes) == ("done", 0, 0)
    assert 3000 <= row.tokens < 3100


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["", 'faults = "faults.toml"'])
def test_a_run_that_is_stopped_and_gone_on_with_is_the_same_run(tmp_path: Path, faults: str) -> None:
    (tmp_path / "faults.toml").write_text(
        '[[fault]]\nat_s = 9.5\nkind = "crash"\nisland = "b"\nfor_s = 4\n'
        '[[fault]]\nat_s = 20.0\nkind = "cut"\nbetween = ["a", "b"]\nfor_s = 5\n'
        '[[fault]]\nat_s = 30.0\nkind = "hang"\nisland = "a"\nfor_s = 3\n'
    )
    checkpoints = "island.checkpoint.every_steps = 4" if faults else ""
    cell = cell_of(write_study(tmp_path, tokens=5000, two=f"{faults}\n{checkpoints}"), "two")
    whole = finish(cell, tmp_path / "whole", tmp_path / "cache")
    stops, row = 0, None
    while row is None:
        run = LabRun(cell, tmp_path / "parts", tmp_path / "cache", tick_s=0.0)
        row = run.run(stop_after(37), lambda progress: None)
        stops += row is None
    assert stops > 3
    assert without_times(row) == without_times(whole)
    assert record_files(tmp_path / "parts") == record_files(tmp_path / "whole")
    if faults:
        starts = [
            r for r in read_records(tmp_path / "whole/islands/b/records.jsonl") if isinstance(r, records.RunStarted)
        ]
        assert len(starts) == 2
        assert starts[1].resumed_from is not None


def test_a_run_that_is_stopped_after_its_first_step_is_the_same_run(tmp_path: Path) -> None:
    cell = cell_of(write_study(tmp_path, tokens=2000), "one")
    whole = finish(cell, tmp_path / "whole", tmp_path / "cache")
    first = LabRun(cell, tmp_path / "parts", tmp_path / "cache", tick_s=0.0)
    assert first.run(lambda: first.tokens > 0, lambda progress: None) is None
    row = LabRun(cell, tmp_path / "parts", tmp_path / "cache").run(lambda: False, lambda progress: None)
    assert row is not None
    assert without_times(row) == without_times(whole)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_snapshot_whatever_it_wrote_after_it(tmp_path: Path) -> None:
    cell = cell_of(write_study(tmp_path), "two")
    whole = finish(cell, tmp_path / "whole", tmp_path / "cache")

    def die_at(progress: float) -> None:
        if progress > 0.6:
            raise SystemExit

    run = LabRun(cell, tmp_path / "killed", tmp_path / "cache", tick_s=0.0, save_every_s=0.0)
    with pytest.raises(SystemExit):
        run.run(lambda: False, die_at)
    row = finish(cell, tmp_path / "killed", tmp_path / "cache")
    assert without_times(row) == without_times(whole)
    assert record_files(tmp_path / "killed") == record_files(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_whose_loss_is_not_finite_has_diverged(tmp_path: Path) -> None:
    cell = cell_of(write_study(tmp_path, two="run.train.learning_rate = 1e30"), "two")
    row = finish(cell, tmp_path / "run", tmp_path / "cache")
    assert row.outcome == "diverged"
    assert "not finite" in row.detail or "worse than no model" in row.detail
    assert not any(score.final and math.isfinite(score.bits_per_byte or 0) for score in row.scores) or row.detail


@pytest.mark.slow
def test_a_runs_folder_is_a_run_directory_with_a_report(tmp_path: Path) -> None:
    finish(cell_of(write_study(tmp_path), "two"), tmp_path / "run", tmp_path / "cache")
    assert "a" in write_report(tmp_path / "run").read_text()
    kinds = {type(record) for record in read_records(tmp_path / "run/islands/a/records.jsonl")}
    assert kinds >= {records.RunStarted, records.StepDone, records.Departure, records.Meeting, records.Evaluation}
    assert not list((tmp_path / "run").rglob("*.key")), "keys of a virtual run never leave the process"


def test_the_joint_weights_are_the_mean_by_tokens() -> None:
    one, other = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([5.0, 2.0])}
    assert torch.allclose(mean_weights([(300, one), (100, other)])["w"], torch.tensor([2.0, 2.0]))
    assert torch.allclose(mean_weights([(0, one), (0, other)])["w"], torch.tensor([3.0, 2.0]))
