"""A mesh of three islands in processes of their own, over real TLS on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.observe import records
from small_runs import children, records_of, trainer, write_text_run

pytestmark = pytest.mark.slow

NAMES = ("us-east", "asia", "europe")


def test_three_islands_average_with_each_other_and_end_with_one_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    paths = write_text_run(tmp_path / "run", *NAMES, tokens=3 * 300 * 64, run={"mixing": {"rule": "mesh"}})
    for part in range(24):
        (tmp_path / "run-texts" / f"train-more{part}.txt").write_text(f"more of part {part}, a quick dog\n" * 100)
    with children() as start:
        for child in [start(*trainer(paths, name)) for name in NAMES]:
            child.ends_well()
    finished = [records_of(paths, name, records.Finished)[-1] for name in NAMES]
    assert [(each.reason, each.provisional) for each in finished] == [("done", False)] * 3
    assert len({each.joint_digest for each in finished}) == 1
    for name in NAMES:
        meetings = records_of(paths, name, records.Meeting)
        assert {meeting.peer for meeting in meetings} == set(NAMES) - {name}
        assert sum(meeting.final for meeting in meetings) == 2 * 2
        assert len(meetings) > 20
    capsys.readouterr()
    assert main(["report", str(paths.root)]) == 0
    summary = json.loads((paths.root / "summary.json").read_text())
    assert summary["complete"]
    assert summary["meetings"]["open"] == 0
    assert summary["meetings"]["completed"] == sum(len(records_of(paths, n, records.Meeting)) for n in NAMES) // 2
