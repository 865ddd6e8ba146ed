from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import __version__
from isthmus.cli.main import main
from isthmus.cli.sizes import run_sizes
from isthmus.cli.status import island_status
from isthmus.clock import VirtualClock
from isthmus.config import RunPaths
from isthmus.config.run import MixingTable
from isthmus.model import preset
from isthmus.observe.journal import RecordWriter
from isthmus.observe.records import Finished, PeerChange, RunStarted, StepDone


@pytest.fixture
def run_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["init", str(tmp_path / "pair")]) == 0
    capsys.readouterr()
    return tmp_path / "pair"


def exit_code(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


def test_help_and_version_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert __version__ in capsys.readouterr().out
    for command in (
        "init",
        "demo",
        "train",
        "up",
        "status",
        "report",
        "eval",
        "export",
        "roster",
        "plan",
        "lab",
        "shape",
    ):
        assert exit_code(command, "--help") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("asked", "got"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_leave_cores_to_others_unless_asked_not_to(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, got: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", asked or "")
    if asked is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    exit_code("--version")
    assert os.environ["OMP_WAIT_POLICY"] == got


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("sail",),
        ("lab",),
        ("lab", "study.toml", "--jobs", "0"),
        ("train", "somewhere"),
        ("plan", "--surprise"),
        ("plan", "--islands", "0"),
        ("demo", "--rtt-ms", "-1"),
        ("demo", "--rate-mbit", "inf"),
        ("init", "somewhere", "--addresses", "nowhere"),
        ("init", "somewhere", "--tokens", "some"),
        ("roster",),
        ("eval", "somewhere"),
        ("shape",),
        ("shape", "--to", "127.0.0.1:1", "--surprise"),
    ],
)
def test_bad_arguments_exit_with_two(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*argv) == 2
    assert capsys.readouterr().err.startswith("usage: isthmus")


def test_init_says_what_it_wrote_and_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "three"
    argv = ["init", str(path), "--islands", "a,b,c", "--preset", "micro", "--addresses", "b=b.example.net:7000"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert f"isthmus up {path}" in out
    assert f"isthmus train {path} --island a" in out
    assert main(["roster", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "slot  1  b  b.example.net:7000" in out
    assert "trades with b, c" in out


def test_init_refuses_to_overwrite_with_a_message_and_code_two(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run_dir / "owner.key").read_bytes()
    assert main(["init", str(run_dir)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("isthmus: a new run would overwrite what is there")
    assert "Traceback" not in err
    assert (run_dir / "owner.key").read_bytes() == before


def test_init_refuses_what_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["init", str(tmp_path / "run"), "--islands", "Ünder,b", "--preset", "nanoo"]
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "Did you mean nano?" in err
    assert "island.name: got 'Ünder'" in err


def test_a_wrong_config_exits_with_two_and_no_traceback(run_dir: Path) -> None:
    path = run_dir / "run.toml"
    path.write_text(path.read_text().replace("fragments = 4", "fragments = 400"))
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", "roster", "show", str(run_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("isthmus: 1 mistake in the files of the run:")
    assert "mixing.window_steps: got 50; wanted at least mixing.fragments = 400" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_changed_run_is_signed_again(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "run.toml"
    path.write_text(path.read_text().replace("fragments = 4", "fragments = 5"))
    assert main(["roster", "show", str(run_dir)]) == 2
    assert f"isthmus roster sign {run_dir}" in capsys.readouterr().err
    assert main(["roster", "sign", str(run_dir)]) == 0
    assert "roster version 2" in capsys.readouterr().out
    assert main(["roster", "show", str(run_dir)]) == 0


def test_an_interrupt_exits_with_130_and_one_line(run_dir: Path) -> None:
    lock = RunPaths(run_dir).island("asia").lock
    os.mkfifo(lock)
    # A shell that starts a job in the background lets it ignore SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "isthmus", "status", str(run_dir)], stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with child, lock.open("w"):
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == "isthmus: interrupted\n"


def test_a_reader_that_leaves_early_is_no_traceback(run_dir: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    argv = [sys.executable, "-m", "isthmus", "status", str(run_dir)]
    done = subprocess.run(argv, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_link_that_cannot_be_shaped_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shape", "--to", "127.0.0.1:1", "--rtt-ms", "-1"]) == 2
    assert capsys.readouterr().err.startswith("isthmus: a link cannot be shaped so")


def test_a_report_without_records_is_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_dir)]) == 1
    assert capsys.readouterr().err.startswith("isthmus: no records in")


def write_records(path: Path, clock: VirtualClock, *, ended: bool = False) -> None:
    with RecordWriter(path, clock) as writer:
        started = RunStarted(
            **writer.stamp(island="asia", step=0, tokens=0),
            run="0" * 64,
            isthmus_version="0",
            torch_version="0",
            python_version="0",
            slot=1,
            incarnation=1,
            batch_sequences=1,
            batch_tokens=100,
            precision="fp32",
            codec="int4",
            window_steps=10,
            num_fragments=2,
            num_parameters=10,
            token_budget=1000,
            manifest_digest="",
        )
        writer.write(started)
        writer.write(PeerChange(**writer.stamp(island="asia", step=0, tokens=0), peer="us-east", up=True))
        clock.advance_to(10.0)
        done = StepDone(
            **writer.stamp(island="asia", step=3, tokens=300),
            loss_nats=1.0,
            step_tokens=100,
            step_s=0.5,
            sync_s=0.0,
            blocked_s=0.0,
            learning_rate=0.1,
            progress_tokens=500,
        )
        writer.write(done)
        if ended:
            writer.write(Finished(**writer.stamp(island="asia", step=3, tokens=300), reason="done"))


def test_status_tells_a_running_island_from_a_killed_and_a_finished_one(run_dir: Path) -> None:
    paths = RunPaths(run_dir).island("asia")
    write_records(paths.records, VirtualClock())
    paths.lock.write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
    running = island_status(paths, now_s=14.0)
    assert (running.state, running.process) == ("training", str(os.getpid()))
    assert (running.step, running.tokens, running.run_share) == (3, 300, 0.5)
    assert (running.peers_up, running.last_word_s, running.tokens_per_s) == (("us-east",), 4.0, 200.0)
    paths.lock.write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
    assert island_status(paths, now_s=14.0).process == "7 on elsewhere"
    paths.lock.write_text("")
    killed = island_status(paths, now_s=14.0)
    assert (killed.state, killed.process, killed.tokens_per_s) == ("killed", "none", 0.0)
    write_records(paths.records, VirtualClock(), ended=True)
    assert island_status(paths, now_s=14.0).state == "done"


def test_a_process_that_has_ended_holds_no_island(run_dir: Path) -> None:
    paths = RunPaths(run_dir).island("asia")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for text in (json.dumps({"pid": child.pid, "host": platform.node()}), "[]", "{", '{"pid": "x", "host": 1}'):
        paths.lock.write_text(text)
        assert island_status(paths, now_s=0.0).process == "none"


def test_status_prints_a_row_an_island_or_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["island", "asia", "us-east"]
    assert main(["status", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not started"


def test_status_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 2
    assert "isthmus init DIR" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_says_parameters_fragments_memory_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--preset", "nano", "--step-s", "0.5", "--islands", "8"]) == 0
    out = capsys.readouterr().out
    assert "parameters: 699 k (699,008)" in out
    assert "memory of one of 8 islands" in out
    assert "each way at 0.5 s a step" in out
    assert main(["plan", "--params", "--preset", "nano"]) == 0
    assert "memory" not in capsys.readouterr().out


def test_a_plan_of_a_run_follows_its_files(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--run-dir", str(run_dir), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["islands"] == 2
    assert len(plan["fragments"]) == plan["mixing"]["fragments"] == 4
    assert plan["window_bytes"] == sum(fragment["payload_bytes"] for fragment in plan["fragments"])
    assert plan["link_bits_per_s"] == plan["window_bytes"] * 8 / 50


def test_a_plan_of_many_islands_has_meetings_that_reach_all_and_their_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    plans = {}
    for islands in (2, 8, 64):
        assert main(["plan", "--islands", str(islands), "--json"]) == 0
        plans[islands] = json.loads(capsys.readouterr().out)
    assert [plan["mixing"]["meetings"] for plan in plans.values()] == [1, 3, 6]
    assert plans[64]["window_bytes"] == 2 * plans[8]["window_bytes"] == 6 * plans[2]["window_bytes"]


def test_a_plan_of_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--preset", "nanoo"]) == 2
    assert "32b" in capsys.readouterr().err


def test_sizes_count_every_traded_element_once_and_a_reference_per_edge() -> None:
    model, mixing = preset("nano"), MixingTable()
    two, nine = (run_sizes(model, mixing, islands=islands, optimizer="adamw") for islands in (2, 9))
    elements = sum(fragment.elements for fragment in two.fragments)
    assert elements >= two.parameters > two.active_parameters
    assert two.memory.mixing_bytes == 4 * elements * 3
    assert nine.memory.mixing_bytes == 4 * elements * 6
    lossless = run_sizes(model, MixingTable(codec="fp32"), islands=2, optimizer="adamw")
    assert lossless.window_bytes == 4 * elements


def test_an_island_of_a_mesh_sends_to_all_others_and_holds_one_reference() -> None:
    model = preset("nano")
    pair, mesh = (run_sizes(model, MixingTable(rule=rule), islands=8, optimizer="adamw") for rule in ("pair", "mesh"))
    assert mesh.window_bytes == 7 * pair.window_bytes
    assert mesh.memory.open_bytes == 4 * pair.memory.open_bytes
    assert mesh.memory.mixing_bytes == pair.memory.mixing_bytes * 3 // 5
