from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from isthmus.checkpoint import LocalStorage, export_safetensors, load_exported, load_latest
from isthmus.checkpoint import save as save_state
from isthmus.cli.main import main
from isthmus.config import RunPaths, load_run, resolve_model
from isthmus.data import open_held_out
from isthmus.data.tokenizer import load_tokenizer
from isthmus.errors import CheckpointError
from isthmus.evaluate import load_weights
from isthmus.model import build_model
from isthmus.scoring import Scorer, held_out_specs
from isthmus.session import cut_model
from small_runs import toy_model, write_text_run


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return write_text_run(tmp_path / "run", "solo", tokens=1000)


@pytest.fixture
def island(run: RunPaths) -> Path:
    """An island with a checkpoint whose slow weights are not its fast ones."""
    model = build_model(resolve_model(load_run(run.root, "solo").run.model), seed=1)
    cut = cut_model(model, num_fragments=2, peers=(), embedding_codec="int4")
    fast = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    state = {"trainee": {"model": fast}, "slow": cut.slow.state_dict()}
    own = run.island("solo")
    save_state(LocalStorage(own.checkpoints), 7, state)
    assert load_latest(LocalStorage(own.checkpoints)) is not None
    return own.root


def test_the_slow_weights_of_a_checkpoint_are_what_counts(island: Path):
    for path in (island, island / "checkpoints"):
        weights = load_weights(path)
        wanted = build_model(weights.config, seed=1).state_dict()
        found = weights.model().state_dict()
        for name, tensor in wanted.items():
            if tensor.is_floating_point():
                assert torch.equal(found[name], tensor), name


def test_an_export_holds_the_slow_weights_and_what_rebuilds_their_model(island: Path, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    assert main(["export", str(island), str(out)]) == 0
    tensors, metadata = load_exported(out)
    assert metadata["provisional"] == "true"
    again = load_weights(out)
    assert again.config == load_weights(island).config
    slow = load_weights(island).tensors
    assert all(torch.equal(tensor, slow[name]) for name, tensor in tensors.items())


def test_eval_prints_scores_with_an_error_and_writes_json_beside_the_checkpoint(
    island: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = str(tmp_path / "run-texts" / "held*.txt")
    assert main(["eval", str(island), "--data", data]) == 0
    (row,) = json.loads((island / "eval.json").read_text())
    assert 4 < row["bits_per_byte"] < 12
    assert row["standard_error"] > 0
    assert row["num_bytes"] == sum(path.stat().st_size for path in (tmp_path / "run-texts").glob("held*.txt"))
    assert f"{row['bits_per_byte']:.4f}" in capsys.readouterr().out
    out = tmp_path / "out.safetensors"
    assert main(["export", str(island), str(out)]) == 0
    assert main(["eval", str(out), "--data", data]) == 0
    assert json.loads(out.with_suffix(".eval.json").read_text()) == [row]


def test_a_single_document_has_a_score_and_no_standard_error(island: Path, tmp_path: Path):
    assert main(["eval", str(island), "--data", str(tmp_path / "run-texts" / "held0.txt")]) == 0
    text = (island / "eval.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)[0]["standard_error"] is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "holds no checkpoint"),
        (lambda path: path.mkdir(), "holds no checkpoint"),
        (lambda path: path.write_bytes(b"nonsense"), "safetensors"),
        (lambda path: export_safetensors(path, toy_model().state_dict(), {}), "does not say what model it is of"),
    ],
    ids=["nothing", "an empty directory", "not safetensors", "another program's file"],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, make, said: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "given"
    make(path)
    assert main(["eval", str(path), "--data", "python code"]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_checkpoints_outside_a_run_are_refused(island: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.move(island / "checkpoints", tmp_path / "elsewhere")
    assert main(["eval", str(tmp_path / "elsewhere"), "--data", "python code"]) in (1, 2)
    assert "run.toml" in capsys.readouterr().err


def test_weights_of_a_loops_own_model_can_be_exported_by_that_loop_only(tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_weights(tmp_path)


def test_a_quick_score_takes_the_first_documents_that_fit_and_at_least_one(run: RunPaths, tmp_path: Path):
    specs = held_out_specs((str(tmp_path / "run-texts" / "held*.txt"),), run.root, None)
    sets, tokenizer = open_held_out(specs), load_tokenizer(None)
    sizes = [len(text) for each in sets.values() for text in each.documents]
    model = build_model(resolve_model(load_run(run.root, "solo").run.model), seed=0)
    for max_bytes, wanted in ((1, sizes[0]), (sizes[0] + sizes[1], sizes[0] + sizes[1]), (None, sum(sizes))):
        (named,) = Scorer(sets, tokenizer, sequence_length=32, max_bytes=max_bytes).score(model)
        assert named.score.num_bytes == wanted
