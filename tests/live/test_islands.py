"""Islands in processes of their own, over real TLS on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.checkpoint import load_exported
from isthmus.cli.main import main
from isthmus.config import RunPaths, load_shared, sign_again
from isthmus.identity import certificate_to_base64, create_identity
from isthmus.observe import records
from small_runs import (
    OWN_MODEL,
    STEP_TOKENS,
    Child,
    Loop,
    alarms,
    change_file,
    children,
    last_step,
    records_of,
    train,
    trainer,
    until,
    write_small_run,
    write_text_run,
)

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
NAMES = ("us-east", "asia")
TOKENS_PER_STEP = 2 * 32
STEPS = 1000

Start = Callable[..., Child]


def text_pair(run_dir: Path) -> RunPaths:
    """A run of two bundled trainers that takes them some ten seconds."""
    return write_text_run(run_dir, *NAMES, tokens=2 * STEPS * TOKENS_PER_STEP, checkpoint={"every_steps": 20})


def start_all(start: Start, paths: RunPaths) -> dict[str, Child]:
    return {name: start(*trainer(paths, name)) for name in NAMES}


def checkpoints(paths: RunPaths, name: str) -> int:
    return len(records_of(paths, name, records.Checkpoint))


def meetings(paths: RunPaths, name: str) -> int:
    return len(records_of(paths, name, records.Meeting))


def assert_one_model(paths: RunPaths) -> None:
    """Both ended with the same weights, which are those that both exported."""
    finished = [records_of(paths, name, records.Finished)[-1] for name in NAMES]
    assert [(each.reason, each.provisional) for each in finished] == [("done", False)] * 2
    assert finished[0].joint_digest == finished[1].joint_digest != ""
    exported = [load_exported(paths.island(name).root / "model.safetensors") for name in NAMES]
    assert [metadata["digest"] for _, metadata in exported] == [finished[0].joint_digest] * 2
    weights = [
        hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in sorted(tensors.items()))).hexdigest()
        for tensors, _ in exported
    ]
    assert weights[0] == weights[1]


def status(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    assert main(["status", str(paths.root), "--json"]) == 0
    return {each["island"]: each["state"] for each in json.loads(capsys.readouterr().out)}


def test_the_example_runs_in_both_forms_as_one_run(tmp_path: Path):
    paths = write_small_run(
        tmp_path / "run", *NAMES, model=OWN_MODEL, tokens=2 * 100 * 32, island={"join": {"wait_s": 60.0}}
    )
    forms = {"us-east": (), "asia": ("--attach",)}
    with children() as start:
        both = [
            start(tmp_path / f"{name}.log", str(EXAMPLE), str(paths.root), name, *form) for name, form in forms.items()
        ]
        for child in both:
            child.ends_well()
    words = [child.said().split() for child in both]
    assert words[0][-1] == words[1][-1] != ""
    finished = [records_of(paths, name, records.Finished)[-1] for name in NAMES]
    assert finished[0].joint_digest == finished[1].joint_digest != ""
    assert not finished[0].provisional
    assert min(meetings(paths, name) for name in NAMES) > 2


def test_one_killed_island_comes_back_while_the_other_trains_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = text_pair(tmp_path / "run")
    with children() as start:
        east, asia = start_all(start, paths).values()
        until(lambda: checkpoints(paths, "asia") and meetings(paths, "us-east"), "a meeting", east, asia)
        asia.kill()
        at = last_step(paths, "us-east")
        until(lambda: last_step(paths, "us-east") > at + 50, "training alone", east)
        assert [change for change in records_of(paths, "us-east", records.PeerChange) if not change.up]
        assert status(paths, capsys) == {"us-east": "training", "asia": "killed"}
        assert main(["report", str(paths.root)]) == 0

        second = start(tmp_path / "second.log", *trainer(paths, "us-east")[1:])
        assert second.ends() == 1
        assert f"process {east.process.pid} on" in second.said()
        assert "Traceback" not in second.said()

        asia = start(*trainer(paths, "asia"))
        for child in (east, asia):
            child.ends_well()
    first, again = records_of(paths, "asia", records.RunStarted)
    assert (first.resumed_from, bool(again.resumed_from)) == (None, True)
    assert_one_model(paths)
    assert status(paths, capsys) == dict.fromkeys(NAMES, "done")
    assert main(["report", str(paths.root)]) == 0


def test_two_killed_islands_go_on_from_their_own_checkpoints(tmp_path: Path):
    paths = text_pair(tmp_path / "run")
    with children() as start:
        both = start_all(start, paths)
        until(
            lambda: all(checkpoints(paths, name) and meetings(paths, name) for name in NAMES),
            "checkpoints",
            *both.values(),
        )
        for child in both.values():
            child.kill()
        reached = {name: last_step(paths, name) for name in NAMES}
        for child in start_all(start, paths).values():
            child.ends_well()
    for name in NAMES:
        resumed = records_of(paths, name, records.RunStarted)[-1]
        assert resumed.resumed_from
        assert 0 < resumed.step <= reached[name]
    assert_one_model(paths)


def test_an_interrupted_island_says_goodbye_and_its_partner_goes_on(tmp_path: Path):
    paths = write_small_run(tmp_path / "run", *NAMES, tokens=10**6)
    east, asia = Loop(0), Loop(1)
    with east.join(paths, "us-east") as island:
        with asia.join(paths, "asia") as other:
            until(lambda: train(island, east) or train(other, asia) or meetings(paths, "us-east"), "a meeting")
            other.request_stop("maintenance")
        until(
            lambda: train(island, east) or [c for c in records_of(paths, "us-east", records.PeerChange) if not c.up],
            "the partner's end",
        )
        at = island.step_count
        train(island, east, 10)
        assert island.step_count == at + 10
        island.request_stop("seen enough")


def trains_on_until(paths: RunPaths, *words: str, stranger: RunPaths) -> str:
    """A healthy us-east trains beside a stranger's asia until both have alarms with ``words``; us-east's alarm."""
    east, asia = Loop(0), Loop(1)

    def said(of: RunPaths, name: str) -> list[str]:
        return [what for what in alarms(of, name) if all(word in what for word in words)]

    with east.join(paths, "us-east") as island, asia.join(stranger, "asia") as other:
        until(lambda: train(island, east) or train(other, asia) or said(paths, "us-east"), f"an alarm on {words}")
        train(island, east, 5)
        assert not records_of(paths, "us-east", records.Meeting)
        island.request_stop("seen enough")
        other.request_stop("seen enough")
    return said(paths, "us-east")[0]


def test_an_island_with_another_key_is_turned_away_by_name_and_the_healthy_one_trains_on(tmp_path: Path):
    paths = write_small_run(tmp_path / "run", *NAMES, tokens=10**6)
    thief = write_small_run(tmp_path / "thief", *NAMES, tokens=10**6)
    adopt_run(thief, paths)
    impostor = create_identity("asia")
    own = thief.island("asia")
    own.key.write_bytes(impostor.key_pem)
    own.certificate.write_bytes(impostor.certificate_pem)
    enter_certificate(thief, "asia", impostor.certificate_pem)
    assert "asia" in trains_on_until(paths, "asia", stranger=thief)


def test_an_island_of_another_run_is_turned_away_and_the_healthy_one_trains_on(tmp_path: Path):
    paths = write_small_run(tmp_path / "run", *NAMES, tokens=10**6)
    other = write_small_run(tmp_path / "other", *NAMES, tokens=10**6)
    adopt_run(other, paths)
    change_file(other.run, ("clip_norm = 1.0", "clip_norm = 2.0"))
    sign_again(other.root)
    assert "asia" in trains_on_until(paths, "run files differ", stranger=other)


def adopt_run(copy: RunPaths, original: RunPaths) -> None:
    """Make one run directory a copy of another, as at another site."""
    for path in original.root.rglob("*"):
        if path.is_file():
            (copy.root / path.relative_to(original.root)).write_bytes(path.read_bytes())


def enter_certificate(paths: RunPaths, name: str, certificate_pem: bytes) -> None:
    (member,) = (member for member in load_shared(paths.root).roster.islands if member.name == name)
    change_file(paths.roster, (member.certificate, certificate_to_base64(certificate_pem)))
    sign_again(paths.root)


def test_an_unreachable_address_is_said_once_and_training_goes_on(tmp_path: Path):
    paths, loop = write_small_run(tmp_path / "run", *NAMES, tokens=10**6), Loop()

    def said() -> list[str]:
        return [what for what in alarms(paths, "us-east") if "asia cannot be reached at 127.0.0.1:" in what]

    with loop.join(paths, "us-east") as island:
        until(lambda: train(island, loop) or said(), "a word on the address")
        assert island.step_count * STEP_TOKENS == island.tokens
        island.request_stop("seen enough")
    assert len(said()) == 1


def test_up_runs_all_islands_to_one_model(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", *NAMES, tokens=2 * 60 * TOKENS_PER_STEP)
    with children() as start:
        child = start(tmp_path / "up.log", "-m", "isthmus", "up", str(paths.root))
        child.ends_well()
        assert "done" in child.said()
    assert_one_model(paths)
