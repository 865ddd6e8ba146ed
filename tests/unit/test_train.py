from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from isthmus.checkpoint import load_exported
from isthmus.cli.main import main
from isthmus.config import RunPaths, load_run, resolve_model
from isthmus.errors import ConfigError
from isthmus.island import Layout, Precision
from isthmus.model import build_model
from isthmus.observe import records
from isthmus.optim import build_optimizer
from isthmus.train import (
    Trainer,
    base_learning_rate,
    open_stream,
    pick_device,
    pick_precision,
    set_learning_rate,
    train_spec,
    train_step,
)
from small_runs import change_file, children, last_step, records_of, trainer, until, write_text_run

TOKENS_PER_STEP = 2 * 32


@pytest.fixture
def _process_as_before() -> Iterator[None]:
    """A trainer that runs in this process leaves its signal handlers and random numbers behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    random = torch.get_rng_state()
    yield
    torch.set_rng_state(random)
    for number, handler in before.items():
        signal.signal(number, handler)


def train_here(paths: RunPaths, name: str = "solo") -> int:
    return main(["train", str(paths.root), "--island", name])


@pytest.mark.slow
@pytest.mark.usefixtures("_process_as_before")
def test_a_lone_island_trains_evaluates_and_exports_its_slow_weights(tmp_path: Path):
    evaluated = {"eval": {"every_tokens": 10 * TOKENS_PER_STEP}}
    paths = write_text_run(tmp_path / "run", "solo", tokens=40 * TOKENS_PER_STEP, run=evaluated)
    assert train_here(paths) == 0
    (finished,) = records_of(paths, "solo", records.Finished)
    assert (finished.reason, finished.provisional) == ("done", False)
    scores = records_of(paths, "solo", records.Evaluation)
    assert [score.final for score in scores] == [False] * 3 + [True]
    assert 0 < scores[-1].bits_per_byte < scores[0].bits_per_byte
    tensors, metadata = load_exported(paths.island("solo").root / "model.safetensors")
    assert metadata["digest"] == finished.joint_digest
    assert (metadata["run"], metadata["provisional"]) == (load_run(paths.root, "solo").run.hash, "false")
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    summary = json.loads((paths.root / "summary.json").read_text())
    assert summary["islands"]["solo"]["steps"] == 40
    losses = [record.loss_nats for record in records_of(paths, "solo", records.StepDone)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_signals_save_and_leave_with_code_zero_and_the_next_start_resumes(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10**9)
    with children() as start:
        for number in (signal.SIGTERM, signal.SIGINT):
            before = last_step(paths, "solo")
            child = start(*trainer(paths, "solo"))
            until(lambda before=before: last_step(paths, "solo") > before + 5, "training", child)
            child.signal(number)
            child.ends_well()
            finished = records_of(paths, "solo", records.Finished)[-1]
            assert (finished.reason, finished.detail) == ("interrupted", number.name)
    started, again = records_of(paths, "solo", records.RunStarted)
    assert (started.resumed_from, bool(again.resumed_from)) == (None, True)
    steps = [record.step for record in records_of(paths, "solo", records.StepDone)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.usefixtures("_process_as_before")
@pytest.mark.parametrize(
    ("break_it", "code", "said"),
    [
        (lambda paths: change_file(paths.island("solo").config, ("train*.txt", "nothing*.txt")), 1, "no file matches"),
        (lambda paths: change_file(paths.island("solo").config, ("train*.txt", "held*.txt")), 1, "no text"),
        (
            lambda paths: change_file(paths.island("solo").config, ("batch_size = 2", "batch_size = -2")),
            2,
            "batch_size",
        ),
        (lambda paths: change_file(paths.island("solo").config, ("[join]", "[joyn]")), 2, "join"),
        (lambda paths: change_file(paths.island("solo").config, ("[join]", "[join")), 2, "island.toml"),
        (lambda paths: change_file(paths.run, ("clip_norm = 1.0", "clip_norm = 2.0")), 2, "isthmus roster sign"),
        (lambda paths: paths.island("solo").key.unlink(), 2, "identity.key"),
    ],
    ids=["no data", "held out only", "negative batch", "unknown table", "broken TOML", "changed run", "no key"],
)
def test_what_is_wrong_is_said_in_words_with_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], break_it, code: int, said: str
):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10**6)
    break_it(paths)
    assert train_here(paths) == code
    err = capsys.readouterr().err
    assert err.startswith("isthmus: ")
    assert said in err
    assert "Traceback" not in err
    assert not records_of(paths, "solo", records.RunStarted)


@pytest.mark.usefixtures("_process_as_before")
def test_an_empty_held_out_set_is_an_error_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10**6)
    for path in (tmp_path / "run-texts").glob("held*.txt"):
        path.write_text("  \n")
    assert train_here(paths) == 1
    err = capsys.readouterr().err
    assert "is empty" in err
    assert "held*.txt" in err
    assert not records_of(paths, "solo", records.RunStarted)


@pytest.mark.usefixtures("_process_as_before")
def test_a_run_whose_model_a_loop_brings_is_not_for_the_bundled_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["init", str(tmp_path / "own"), "--preset", "own"]) == 0
    assert main(["train", str(tmp_path / "own"), "--island", "asia"]) == 2
    assert "brought by its own training loop" in capsys.readouterr().err


@pytest.mark.usefixtures("_process_as_before")
def test_checkpoints_that_cannot_be_listed_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10**6)
    paths.island("solo").checkpoints.write_text("a file where a directory should be")
    assert train_here(paths) == 1
    assert "checkpoints cannot be read" in capsys.readouterr().err


# -- its parts ---------------------------------------------------------------------------------------------------------


def test_the_learning_rate_follows_the_runs_progress_and_an_islands_own_peak(tmp_path: Path):
    rates = {"train": {"learning_rate": 0.01, "warmup_share": 0.5, "final_lr_share": 0.0, "sequence_length": 32}}
    paths = write_text_run(tmp_path / "run", "solo", tokens=1000, run=rates)
    loaded = load_run(paths.root, "solo")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    found = []
    for progress in (0.25, 0.5, 1.0):
        set_learning_rate(optimizer, loaded, progress)
        found.append(optimizer.param_groups[0]["lr"])
    assert found[0] == pytest.approx(0.005)
    assert found[1] == pytest.approx(0.01)
    assert found[2] == pytest.approx(0.0)
    change_file(paths.island("solo").config, ("# learning_rate = 0.002", "learning_rate = 0.04"))
    assert base_learning_rate(load_run(paths.root, "solo")) == 0.04


def test_a_step_clips_gradients_and_lowers_the_loss(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "solo", tokens=1000)
    model = build_model(resolve_model(load_run(paths.root, "solo").run.model), 0)
    optimizer = build_optimizer(model, "adamw", learning_rate=0.01, weight_decay=0.0)
    batch = torch.randint(256, (2, 33), generator=torch.Generator().manual_seed(1))
    losses = [float(train_step(Layout(model), optimizer, Precision("fp32"), batch, clip_norm=0.5)) for _ in range(10)]
    assert losses[-1] < losses[0]
    norms = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
    assert float(norms.norm()) <= 0.5 + 1e-4


def train_once(paths: RunPaths, *changes: tuple[str, str]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of some steps by the bundled trainer, under changed settings of the island."""
    settings = paths.island("solo").config
    kept = settings.read_text()
    change_file(settings, *changes)
    loaded = load_run(paths.root, "solo")
    settings.write_text(kept)
    trainer_, stream = Trainer(loaded), open_stream(loaded)
    losses = [float(trainer_.step(stream, 0.5)[1]) for _ in range(4)]
    return losses, dict(trainer_.model.named_parameters())


@pytest.mark.parametrize(
    "changes",
    [
        (("parts = 1", "parts = 2"),),
        (("recompute = false", "recompute = true"),),
        pytest.param(
            (("compile = false", "compile = true"),),
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")],  # torch's own, of its compiler
        ),
    ],
    ids=["parts", "recompute", "compile"],
)
def test_however_a_step_is_computed_it_is_the_same_step(tmp_path: Path, changes: tuple[tuple[str, str], ...]):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10_000)
    losses, weights = train_once(paths)
    again, same = train_once(paths, *changes)
    torch.testing.assert_close(again, losses, rtol=0, atol=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(same[name], weight, rtol=1e-3, atol=2e-4)


def test_sequences_that_cannot_be_divided_into_parts_are_refused(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "solo", tokens=10_000, island={"parts": 3})
    with pytest.raises(ConfigError, match="a batch of 2 sequences cannot be divided among 1 ranks and into 3 parts"):
        Trainer(load_run(paths.root, "solo"))


def test_weights_rounded_to_bf16_are_refused_where_fsdp_divides_them(tmp_path: Path):
    own = {"island": {"precision": "bf16-weights"}, "parallel": {"fsdp": 2}}
    paths = write_text_run(tmp_path / "run", "solo", tokens=10_000, **own)
    with pytest.raises(ConfigError, match="bf16-weights cannot be computed on weights that FSDP divides"):
        Trainer(load_run(paths.root, "solo"))


def test_parts_of_the_text_are_as_the_roster_or_the_shares_say(tmp_path: Path):
    paths = write_text_run(tmp_path / "run", "us-east", "asia", tokens=1000)
    specs = [train_spec(load_run(paths.root, name), None, tmp_path) for name in ("us-east", "asia")]
    assert [spec.slot for spec in specs] == [0, 1]
    assert specs[0].shares == specs[1].shares == (1.0, 1.0)
    assert specs[0].globs == (str(tmp_path / "run-texts" / "train*.txt"),)
    for name in ("us-east", "asia"):
        change_file(paths.island(name).config, ("# shares = [3.0, 1.0]", "shares = [3.0, 1.0]"))
    assert train_spec(load_run(paths.root, "asia"), None, tmp_path).shares == (3.0, 1.0)


def test_auto_picks_what_there_is_and_names_are_taken_at_their_word(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    assert pick_device("cpu") == torch.device("cpu")
    wanted = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    assert pick_device("auto") == wanted
    assert pick_precision("bf16-weights", torch.device("cpu")) == "bf16-weights"
    assert pick_precision("auto", torch.device("cpu")) in ("fp32", "bf16-autocast")
