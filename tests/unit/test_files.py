"""Files replaced as a whole or not at all."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from isthmus.files import replacing, write_file_atomic, write_text_atomic
from isthmus.observe import write_report, write_summary
from synthetic_run import write_run


def test_of_two_writers_at_once_the_last_to_end_wins_and_neither_fails(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as first:
        first.write(b"first")
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_one_writer_leaves_what_another_wrote(tmp_path):
    path = tmp_path / "a"

    def pieces():
        yield b"half"
        write_text_atomic(path, "whole")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file_atomic(path, pieces())
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_islands_that_end_together_write_their_runs_summary_and_report_together(tmp_path):
    run_dir = write_run(tmp_path)
    jobs = [write_summary, write_report] * 8
    with ThreadPoolExecutor(len(jobs)) as pool:
        written = {done.result() for done in [pool.submit(job, run_dir) for job in jobs]}
    assert {path.name for path in written} == {"summary.json", "report.html"}
    assert json.loads((run_dir / "summary.json").read_text())["complete"]
    assert not list(run_dir.glob("*.tmp")) + list(run_dir.glob(".*.tmp"))
