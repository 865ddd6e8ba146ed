"""A drill on real islands: struck, measured, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.observe import records
from small_runs import change_file, records_of, write_text_run

pytestmark = pytest.mark.slow


def test_a_drill_kills_and_cuts_off_real_islands_and_says_what_that_cost(tmp_path: Path, capsys):
    paths = write_text_run(tmp_path / "run", "us-east", "asia", tokens=10_000_000, checkpoint={"every_steps": 10})
    drill = ["--seed", "14", "--minutes", "0.4", "--every-s", "12", "--step-s", "0.1"]  # a kill, then a cut
    assert main(["chaos", str(paths.root), *drill]) == 0
    said = capsys.readouterr().out
    assert "kill asia for 7 s" in said and "cut asia and us-east for 7 s" in said
    report = json.loads((paths.root / "chaos.json").read_text())
    assert [strike["kind"] for strike in report["strikes"]] == ["kill", "cut"]
    assert not report["failed"]
    assert 0.5 < report["goodput"] <= 1.05
    assert report["islands"]["us-east"]["lost_tokens"] == 0
    assert report["islands"]["asia"]["possible_tokens"] < report["islands"]["us-east"]["possible_tokens"]
    first, again = records_of(paths, "asia", records.RunStarted)
    assert again.resumed_from is not None and again.incarnation > first.incarnation
    assert any(not event.up for event in records_of(paths, "us-east", records.PeerChange))
    for name in ("us-east", "asia"):
        assert records_of(paths, name, records.Finished)[-1].reason == "interrupted"
        assert records_of(paths, name, records.Meeting)


def test_a_drill_says_which_island_cannot_train(tmp_path: Path, capsys):
    paths = write_text_run(tmp_path / "run", "us-east", "asia", tokens=10_000)
    texts = next(line for line in paths.island("asia").config.read_text().splitlines() if "train*" in line)
    change_file(paths.island("asia").config, (texts, 'sources = ["nothing/*.txt"]'))
    assert main(["chaos", str(paths.root), "--minutes", "1"]) == 1
    said = capsys.readouterr().err
    assert "asia ended before it trained" in said and "nothing/*.txt" in said
