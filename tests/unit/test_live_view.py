from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console, RenderableType

from isthmus.clock import VirtualClock
from isthmus.observe import View
from isthmus.observe.events import describe
from isthmus.observe.records import Alarm, Departure, Meeting, PeerChange, Waiting
from synthetic_run import START_WALL_S, Island, joint_islands, write_run


def screen(view: View, width: int = 150) -> str:
    return text_of(view.render(), width)


def text_of(shown: RenderableType, width: int) -> str:
    console = Console(width=width, color_system=None, force_terminal=False, record=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def until(island: Island, now_s: float) -> Island:
    island.records = [r for r in island.records if r.wall_s <= START_WALL_S + now_s]
    return island


def append(run_dir: Path, island: Island, *records) -> None:
    with (run_dir / "islands" / island.name / "records.jsonl").open("ab") as file:
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


def at(now_s: float) -> VirtualClock:
    return VirtualClock(START_WALL_S + now_s)


def test_an_empty_directory_waits_for_its_first_record(tmp_path):
    assert "waiting for the first record" in screen(View(tmp_path, at(0)))
    assert View(tmp_path, at(0)).lines() == []


def test_both_islands_are_shown_with_progress_and_link_use(tmp_path):
    for island in joint_islands(finished=False):
        until(island, 50).save(tmp_path)
    text = screen(View(tmp_path, at(50)))
    assert "1.1" in text.splitlines()[0]
    assert "3.93 M tokens" in text
    assert "left" in text.splitlines()[0]
    assert "training" in row(text, "us-east")
    assert "kbit/s of 960 kbit/s" in row(text, "us-east")
    assert "● asia 181 ms" in row(text, "us-east")


def test_a_killed_island_is_down_as_soon_as_its_peer_says_so(tmp_path):
    for island in joint_islands(finished=False):
        until(island, 67).save(tmp_path)
    text = screen(View(tmp_path, at(67)))
    assert "down" in row(text, "asia")
    assert "training" in row(text, "us-east")
    assert "WARNING: lost asia" in text


def test_an_island_that_falls_silent_beyond_its_habit_is_down(tmp_path):
    (east, _) = joint_islands(finished=False, restart=False)
    until(east, 30).save(tmp_path)
    assert "training" in row(screen(View(tmp_path, at(38))), "us-east")
    assert "down 1" in row(screen(View(tmp_path, at(42))), "us-east")


def test_a_waiting_island_says_for_whom(tmp_path):
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    island.records.append(Waiting(**island.at(1.0, 0), peers=("asia",), reason="hello", at_most_s=30.0))
    island.save(tmp_path)
    view = View(tmp_path, at(4))
    text = screen(view)
    assert "waiting 3.0 s for asia" in row(text, "us-east")
    assert "waiting for asia: hello, for at most 30.0 s" in text


def test_the_baseline_has_a_row_and_a_bar_of_its_own(tmp_path):
    text = screen(View(write_run(tmp_path, 4, restart=False), at(500)))
    assert "done" in row(text, "standard ")
    assert "standard, one place" in text


def test_a_narrow_terminal_gets_fewer_columns_and_no_wrapped_rows(tmp_path):
    write_run(tmp_path, 4, restart=False)
    text = screen(View(tmp_path, at(30)), width=80)
    assert "PEERS" not in text
    assert all(title in text for title in ("STEP", "TOK/S", "LOSS", "OPEN", "SENT", "LINK", "BLOCKED"))
    assert max(map(len, text.splitlines())) <= 80


def test_one_line_is_told_per_island_and_round(tmp_path):
    _, asia = joint_islands(5, restart=False)
    asia.save(tmp_path)
    lines = View(tmp_path, at(0)).lines()
    rounds = [line for line in lines if ": round " in line]
    assert [line.split(": round ")[1].split(",")[0] for line in rounds] == ["1", "2", "3", "4", "5"]
    assert lines[-1].endswith("asia: done")


def test_a_round_is_told_when_its_last_fragment_departs(tmp_path):
    east, _ = joint_islands(2, restart=False)
    records = sorted(east.records, key=lambda r: r.wall_s)
    last = [k for k, r in enumerate(records) if isinstance(r, Departure) and r.round == 0][-1]
    later, east.records = records[last:], records[:last]
    east.save(tmp_path)
    view = View(tmp_path, at(5))
    assert not [line for line in view.lines() if ": round" in line]
    append(tmp_path, east, later[0])
    (line,) = view.lines()
    assert "us-east: round 1, step 12" in line
    assert view.lines() == []


def test_rounds_that_a_restart_repeats_are_told_once(tmp_path):
    _, asia = joint_islands(20)
    asia.save(tmp_path)
    rounds = [line for line in View(tmp_path, at(0)).lines() if ": round " in line]
    assert len(rounds) == 20


def test_alarms_and_peer_changes_are_told_in_order_and_late_meetings_are_not(tmp_path):
    for island in joint_islands():
        island.save(tmp_path)
    lines = View(tmp_path, at(0)).lines()
    assert lines == sorted(lines, key=lambda line: line[:8])
    assert any("us-east: WARNING: lost asia: no byte for 2 s" in line for line in lines)
    assert any("us-east: WARNING: rms 3.4 times its running median (asia)" in line for line in lines)
    assert not any("late:" in line for line in lines)


def test_a_flood_of_late_meetings_leaves_the_alarms_on_the_screen(tmp_path):
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    island.records.append(Alarm(**island.at(1.0, 1), what="look here"))
    island.records += [
        Meeting(
            **island.at(2.0 + k, 2), fragment=0, peer="asia", epoch=0, version=k, publication=k + 1,
            peer_publication=k + 1, weight=0.5, peer_weight=0.5, departed_step=1, arrived_step=9, age_s=3.0,
            late=True, reference="ab",
        )
        for k in range(30)
    ]  # fmt: skip
    island.save(tmp_path)
    text = screen(View(tmp_path, at(31)))
    assert "look here" in text
    assert text.count("late: 8 steps") == 1


def test_records_cannot_drive_the_terminal(tmp_path):
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    evil = "\x1b[2J\x1b]0;owned\x07[red]bold[/red]\nnext line"
    island.records += [
        Alarm(**island.at(1.0, 1), what=evil, severity="error"),
        PeerChange(**island.at(1.0, 1), peer=evil, up=True, rtt_s=0.1),
    ]
    island.save(tmp_path)
    text = screen(View(tmp_path, at(2)))
    (line,) = [line for line in View(tmp_path, at(2)).lines() if "ERROR" in line]
    for shown in (text, line):
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "[red]bold[/red]" in shown
    assert "\n" not in line


def test_a_view_is_finished_when_every_island_has_written_its_last_record(tmp_path):
    east, asia = joint_islands(2, restart=False)
    east.save(tmp_path)
    until(asia, 3).save(tmp_path)
    view = View(tmp_path, at(5))
    view.render()
    assert not view.finished
    _, whole = joint_islands(2, restart=False)
    append(tmp_path, asia, *[r for r in sorted(whole.records, key=lambda r: r.wall_s) if r.wall_s > START_WALL_S + 3])
    view.render()
    assert view.finished


def test_a_peer_that_has_ended_and_left_is_no_warning():
    island = Island("us-east", "asia", 1, 0)
    told = describe(PeerChange(**island.at(1.0, 1), peer="asia", up=False, ended=True))
    assert (told.severity, told.text) == ("info", "asia has ended and left")
