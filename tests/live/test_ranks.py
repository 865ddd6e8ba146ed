"""Islands of several ranks, over real TLS on loopback: what a user starts with torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from isthmus.checkpoint import load_exported
from isthmus.config import RunPaths
from isthmus.evaluate import load_weights
from isthmus.observe import records
from small_runs import Child, alarms, change_file, children, last_step, records_of, trainer, until, write_text_run

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_sites_torchrun.sh"
TWO_HEADS = {"model": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8}}


@pytest.fixture
def start():
    with children() as start:
        yield start


def lay_out(paths: RunPaths, name: str, *changes: tuple[str, str]) -> None:
    change_file(paths.island(name).root / "island.toml", *changes)


def run_of_two(run_dir: Path, *, tokens: int = 40_000, west: str = "fsdp = 2", east: str = "") -> RunPaths:
    paths = write_text_run(run_dir, "west", "east", tokens=tokens, run=TWO_HEADS, island={"batch_size": 4})
    for name, layout in (("west", west), ("east", east)):
        if layout:
            lay_out(paths, name, (layout.replace("2", "1"), layout))
    return paths


def assert_one_model(paths: RunPaths) -> None:
    finished = [records_of(paths, name, records.Finished)[-1] for name in ("west", "east")]
    assert [(each.reason, each.provisional) for each in finished] == [("done", False)] * 2
    assert finished[0].joint_digest == finished[1].joint_digest != ""
    exported = {
        sha256((paths.island(name).root / "model.safetensors").read_bytes()).hexdigest() for name in ("west", "east")
    }
    assert len(exported) == 1


def test_two_sites_with_other_layouts_precisions_and_batches_train_one_model(tmp_path: Path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = ["sh", str(EXAMPLE), str(tmp_path / "run"), "150000"]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    paths = RunPaths(tmp_path / "run")
    assert_one_model(paths)
    meetings = [records_of(paths, name, records.Meeting) for name in ("west", "east")]
    assert all(len(each) > 4 for each in meetings)
    (joined,) = records_of(paths, "west", records.Joined)
    assert joined.waited_s < 60
    losses = [record.loss_nats for record in records_of(paths, "west", records.StepDone)]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("east", ["", "tp = 2"], ids=["ddp", "tp"])
def test_two_islands_of_two_ranks_end_with_one_model(tmp_path: Path, start: Callable[..., Child], east: str):
    paths = run_of_two(tmp_path / "run", east=east)
    both = [start(*trainer(paths, name, 2)) for name in ("west", "east")]
    for child in both:
        child.ends_well()
    assert_one_model(paths)


def test_a_lost_rank_takes_its_island_down_and_the_other_goes_on(tmp_path: Path, start: Callable[..., Child]):
    paths = run_of_two(tmp_path / "run", tokens=10_000_000)
    west, east = start(*trainer(paths, "west", 2)), start(*trainer(paths, "east"))
    until(lambda: len(records_of(paths, "east", records.Meeting)) > 4, "meetings", west, east)
    os.kill(west.workers()[-1], 9)
    assert west.ends() != 0
    assert "another rank of this island was lost" in west.said()
    step = last_step(paths, "east")
    until(lambda: last_step(paths, "east") > step + 50, "steps alone", east)
    assert [change.up for change in records_of(paths, "east", records.PeerChange)][-1] is False


def test_torchrun_starts_an_island_again_from_its_checkpoint(tmp_path: Path, start: Callable[..., Child]):
    paths = run_of_two(tmp_path / "run", tokens=80_000)
    lay_out(paths, "west", ("every_steps = 100", "every_steps = 10"))
    west = start(*trainer(paths, "west", 2, "--max-restarts=1"))
    east = start(*trainer(paths, "east"))
    until(lambda: len(records_of(paths, "west", records.Checkpoint)) > 1, "checkpoints", west, east)
    os.kill(west.workers()[0], 9)
    for child in (west, east):
        child.ends_well()
    assert_one_model(paths)
    first, second = records_of(paths, "west", records.RunStarted)
    assert first.resumed_from is None
    assert second.resumed_from is not None
    assert records_of(paths, "west", records.Joined)[-1].how == "checkpoint"
    own = paths.island("west").root
    exported, _ = load_exported(own / "model.safetensors")
    saved = load_weights(own)
    assert all(torch.equal(saved.tensors[name], tensor) for name, tensor in exported.items() if name[-5:] != ".load")


def test_sigterm_lets_all_ranks_leave_at_one_step(tmp_path: Path, start: Callable[..., Child]):
    paths = run_of_two(tmp_path / "run", tokens=10_000_000)
    lay_out(paths, "west", ("wait_s = 20.0", "wait_s = 1.0"))
    west = start(*trainer(paths, "west", 2))
    until(lambda: last_step(paths, "west") > 20, "steps", west)
    west.signal(signal.SIGTERM)
    west.ends()
    (finished,) = records_of(paths, "west", records.Finished)
    assert (finished.reason, finished.detail) == ("interrupted", "SIGTERM")
    (saved,) = records_of(paths, "west", records.Checkpoint)
    assert saved.step == finished.step
    assert "Traceback" not in west.said().partition("torch/distributed/elastic")[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((("fsdp = 1", "fsdp = 3"),), "2 ranks are no multiple of fsdp x tp x ep = 3"),
        ((("ep = 1", "ep = 2"), ("batch_size = 4", "batch_size = 3")), "a batch of 3 sequences cannot be divided"),
    ],
)
def test_what_ranks_cannot_divide_is_said_by_each_of_them_before_training(
    tmp_path: Path, start: Callable[..., Child], changes: tuple[tuple[str, str], ...], says: str
):
    paths = run_of_two(tmp_path / "run", west="")
    lay_out(paths, "west", *changes)
    west = start(*trainer(paths, "west", 2))
    assert west.ends() != 0
    assert west.said().count(says) == 2
    assert "exitcode  : 2" in west.said()
    assert not alarms(paths, "west")
