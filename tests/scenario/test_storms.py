"""Whole runs of eight islands through storms of all faults; ``make soak`` runs many more."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from storm import Storm, failure, shrink
from storm_faults import Fault, draw

HERE = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_islands_keep_their_promises_through_two_hundred_storms():
    ran = subprocess.run(
        [sys.executable, HERE / "storm.py", "--schedules", "200", "--any-hits"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr
    assert "200 storms of 8 islands" in ran.stdout


@pytest.mark.slow
def test_a_storm_replays_alike():
    first, second = (failure(draw(11))[1].world for _ in range(2))
    assert first.trace == second.trace
    assert first.now_s == second.now_s
    assert first.hits == second.hits


class _BreaksWhereTwoCome(Storm):
    """Fails where two certain faults are both left."""

    def run(self) -> None:
        kinds = [fault.kind for fault in self.script.faults]
        assert not ("twin" in kinds and "full" in kinds), "both came"


def test_a_failing_storm_is_shrunk_to_the_faults_that_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storm.Storm", _BreaksWhereTwoCome)
    faults = [
        Fault(float(at), kind, ("ash",), 1.0, 0.5) for at, kind in enumerate(["cut"] * 9 + ["twin", "hang", "full"])
    ]
    small = shrink(replace(draw(0), faults=tuple(faults)))
    assert [fault.kind for fault in small.faults] == ["twin", "full"]
