from __future__ import annotations

import msgspec
import pytest

from isthmus.clock import VirtualClock
from isthmus.errors import DataError
from isthmus.observe import write_report
from isthmus.observe.charts import charts
from isthmus.observe.records import (
    Alarm,
    Evaluation,
    Finished,
    LinkRate,
    Meeting,
    Note,
    PeerChange,
    RunStarted,
    StepDone,
)
from isthmus.observe.series import MAX_POINTS, Span, busiest, collect, smoothed, thinned
from pages import Page
from synthetic_run import BATCH_TOKENS, START_WALL_S, Island, joint_islands, write_run

SOON = VirtualClock(START_WALL_S + 200)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\u2028&amp;\"'"


def page_of(run_dir, clock=SOON) -> Page:
    return Page(write_report(run_dir, clock).read_text(encoding="utf-8"))


def save(run_dir, *islands: Island):
    for island in islands:
        island.save(run_dir)
    return run_dir


def test_a_whole_run_is_told_on_one_page(tmp_path):
    page = page_of(write_run(tmp_path))
    for words in ("complete", "python code", "1.0", "peer down", "goes on from its own checkpoint", "7f3a91c2d4e5"):
        assert words in page.text
    assert [island["name"] for island in page.data["islands"]] == ["us-east", "asia", "standard"]
    assert [e["set"] for e in page.data["evaluations"]] == ["python code", "technical english"]
    assert len(page.data["link"]) == 2
    assert len(page.data["timeline"]["lanes"]) == 4
    assert any(bar["late"] for bar in page.data["timeline"]["bars"])
    assert {down["half"] for down in page.data["timeline"]["down"]} == {0}


def test_the_page_fetches_nothing_and_runs_only_its_own_scripts(tmp_path):
    page_of(write_run(tmp_path, 4)).assert_closed()


def test_nothing_in_the_records_becomes_markup(tmp_path):
    harmless = page_of(write_run(tmp_path / "harmless", 3, restart=False, baseline=False))
    east, asia = joint_islands(3, restart=False)
    stamp = east.at(3.0, 4)
    extra = [
        Alarm(**stamp, what=HOSTILE, peer=HOSTILE),
        Note(**stamp, text=HOSTILE),
        PeerChange(**stamp, peer=HOSTILE, up=False, reason=HOSTILE),
    ]
    hostile = {"run_name": HOSTILE, "precision": HOSTILE, "command": HOSTILE, "config": {HOSTILE: HOSTILE}}
    renamed = {Meeting: {"peer": HOSTILE}, Evaluation: {"set_name": HOSTILE}, RunStarted: hostile}
    east.records = [
        msgspec.structs.replace(record, island=HOSTILE, **renamed.get(type(record), {}))
        for record in [*east.records, *extra]
    ]
    east.name = "<b onclick=alert(3)>"
    page = page_of(save(tmp_path / "hostile", east, asia))
    assert len(page.scripts) == 3
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in harmless.elements} | {"p"}
    assert not page.attribute("onerror")
    assert not page.attribute("onclick")
    assert "49" not in page.text.split("Repeat it")[1].split("0.1.0")[0]
    assert "<b onclick=alert(3)>" in [island["name"] for island in page.data["islands"]]
    assert HOSTILE in [e["set"] for e in page.data["evaluations"]]


def test_a_run_that_goes_on_and_one_that_was_killed_are_told_apart(tmp_path):
    islands = joint_islands(6, finished=False, restart=False)
    save(tmp_path, *islands)
    last_s = max(record.wall_s for island in islands for record in island.records)
    assert "still going on" in page_of(tmp_path, VirtualClock(last_s + 5)).text
    killed = page_of(tmp_path, VirtualClock(last_s + 600))
    assert "killed, or cut off" in killed.text
    assert "no word since" in killed.text


def test_an_interrupted_island_marks_the_run(tmp_path):
    east, asia = joint_islands(3, restart=False)
    asia.records = [
        msgspec.structs.replace(r, reason="interrupted") if isinstance(r, Finished) else r for r in asia.records
    ]
    assert "done, interrupted" in page_of(save(tmp_path, east, asia)).text


def test_one_island_alone_without_a_step_gives_a_page(tmp_path):
    island = Island("standard", None, 1, 0)
    island.start(0.0, 0)
    page = page_of(save(tmp_path, island))
    assert "No evaluation yet" in page.text
    assert page.data["timeline"]["lanes"] == []
    assert page.data["link"] == []


def test_an_empty_record_file_gives_a_page(tmp_path):
    island = Island("a", None, 1, 0)
    assert "not started" in page_of(save(tmp_path, island)).text


def test_a_scored_baseline_before_the_joint_run_is_scored_gives_a_page(tmp_path):
    write_run(tmp_path, 2, restart=False)
    for path in (tmp_path / "islands").glob("*/records.jsonl"):
        lines = [line for line in path.read_bytes().splitlines(True) if b'"evaluation"' not in line]
        path.write_bytes(b"".join(lines))
    assert "not yet" in page_of(tmp_path).text


def test_unreadable_lines_are_counted_on_the_page(tmp_path):
    write_run(tmp_path, 2, restart=False, baseline=False)
    with (tmp_path / "islands" / "asia" / "records.jsonl").open("a") as file:
        file.write('nonsense\n{"kind": "dream"}\n')
    text = page_of(tmp_path).text
    assert "1 lines could not be read" in text
    assert "1 records of a newer version" in text


def test_a_directory_without_records_is_refused(tmp_path):
    with pytest.raises(DataError, match="isthmus demo"):
        write_report(tmp_path / "nowhere")


def test_the_loss_over_tokens_leaves_out_what_a_restart_undid():
    _, asia = joint_islands()
    island = collect("asia", sorted(asia.records, key=lambda r: r.wall_s))
    tokens = [point.tokens for point in island.lineage()]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == asia.steps
    (again,) = [point for point in island.lineage() if point.tokens == 175 * BATCH_TOKENS["asia"]]
    assert again.wall_s > island.processes[1].start_s
    steps = sum(isinstance(r, StepDone) for r in asia.records)
    (line,) = charts([island], [])["loss_by_time"]
    assert sum(y is not None for y in line["y"]) == steps == asia.steps + 10
    assert line["y"].count(None) == 2


def test_long_series_are_thinned_to_means_and_keep_their_gaps():
    ys: list[float | None] = [1.0] * 7000 + [None] + [3.0] * 7000
    xs, thin = thinned(range(len(ys)), ys)
    assert len(thin) <= MAX_POINTS + 3
    assert thin.count(None) == 1
    assert set(thin) == {1.0, None, 3.0}
    assert xs == sorted(xs)
    assert xs[-1] == len(ys) - 1


def test_smoothing_keeps_a_straight_line_and_does_not_cross_gaps():
    line = [float(k) for k in range(600)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([1.0] * 300 + [None] + [5.0] * 300) == [1.0] * 300 + [None] + [5.0] * 300


def test_the_busiest_window_survives_thinning_and_a_dead_process_has_no_rate():
    processes = [Span(0.0, 400.0), Span(600.0, 1000.0)]
    windows = [(k * 0.1, 9.0 if k == 777 else 1.0) for k in range(4000)]
    starts, rates, bin_s = busiest(windows, processes, 0.1)
    assert len(starts) <= MAX_POINTS
    assert bin_s == pytest.approx(0.5)
    assert max(rate for rate in rates if rate is not None) == 9.0
    assert rates[int(500 / bin_s)] is None
    assert rates[int(700 / bin_s)] == 0.0


@pytest.mark.slow
def test_a_run_of_many_records_stays_a_small_page(tmp_path):
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    base = island.at(0.0, 0)
    for k in range(20_000):
        stamp = base | {"t_s": float(k), "wall_s": START_WALL_S + k, "step": k, "tokens": k}
        island.records.append(
            StepDone(
                **stamp,
                loss_nats=2.0,
                step_tokens=1,
                step_s=1.0,
                sync_s=0.0,
                blocked_s=0.0,
                learning_rate=1e-3,
                progress_tokens=k,
            )
        )
        island.records.append(
            LinkRate(**stamp, window_s=0.1, at_s=(k - 0.5, k - 0.4), sent_bytes=(5, 6), received_bytes=(7, 8))
        )  # fmt: skip
        island.records.append(
            Meeting(**stamp, fragment=k % 8, peer="asia", epoch=0, version=k, publication=k + 1,
                    peer_publication=k + 1, weight=0.5, peer_weight=0.5, departed_step=k, arrived_step=k + 1,
                    age_s=1.0, late=False, reference="ab")
        )  # fmt: skip
    save(tmp_path, island)
    page = page_of(tmp_path)
    assert len(page.data["timeline"]["bars"]) <= 2 * MAX_POINTS
    assert page.data["timeline"]["one_in"] == 5
    assert len((tmp_path / "report.html").read_bytes()) < 2_000_000
