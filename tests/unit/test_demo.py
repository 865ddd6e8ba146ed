"""What the demo says and refuses; the demo itself is run by `make demo`."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from isthmus import demo
from isthmus.checkpoint import IslandLock
from isthmus.config import load_run, resolve_model
from isthmus.demo import scene as setting
from isthmus.demo import words
from isthmus.errors import ConfigError, LockError
from isthmus.model import num_parameters, preset
from isthmus.optim import OPTIMIZERS


def scene(out: Path, **changes: object) -> setting.Scene:
    values = {"steps": 24, "rtt_s": 0.18, "rate_bits_per_s": 4e6, "optimizer": "adamw", "seed": 0}
    return setting.Scene(out=out, **(values | changes))


def options(out: Path, **changes: object) -> dict[str, object]:
    values = {"steps": 1, "baseline": False, "rtt_ms": 180.0, "rate_mbit": None}
    return {"out": out, "optimizer": "adamw", "seed": 0, **values, **changes}


def test_a_directory_that_is_no_earlier_demo_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="no earlier demo"):
        demo.run_demo(**options(tmp_path))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_demo_that_still_runs_is_left_alone(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nname = "demo"\n')
    island = tmp_path / "islands" / "asia"
    island.mkdir(parents=True)
    with IslandLock(island), pytest.raises(LockError):
        demo.run_demo(**options(tmp_path))
    assert (tmp_path / "run.toml").exists()


def test_every_optimizer_has_its_learning_rates_and_another_is_refused_before_anything_is_touched(tmp_path):
    assert set(setting.LEARNING_RATE) == set(OPTIMIZERS)
    (tmp_path / "run.toml").write_text('[run]\nname = "demo"\n')
    with pytest.raises(ConfigError, match="'adam'; wanted one of shampoo, adamw, muon"):
        demo.run_demo(**options(tmp_path, optimizer="adam"))
    assert (tmp_path / "run.toml").exists()


def test_a_file_in_the_demos_place_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="no earlier demo"):
        demo.run_demo(**options(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_another_run_is_left_alone(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nname = "mine"\n')
    with pytest.raises(ConfigError, match="--out"):
        demo.run_demo(**options(tmp_path))
    assert (tmp_path / "run.toml").exists()


def test_the_run_in_one_place_is_plain_training_on_as_many_tokens(tmp_path):
    paths = setting.write_standard(scene(tmp_path), 1000)
    loaded = load_run(paths.root, "standard")
    mixing = loaded.run.mixing
    assert (mixing.outer_lr, mixing.outer_momentum) == (1.0, 0.0)
    assert loaded.run.run.token_budget == 1000
    assert loaded.island.island.batch_size == sum(setting.BATCH.values())
    assert len(loaded.roster.islands) == 1


def test_the_introduction_shows_what_training_in_step_would_cost(tmp_path):
    gradient_bits = 32 * num_parameters(preset(setting.PRESET)).total
    seconds = gradient_bits / 4e6 + 0.18
    assert f"{seconds:.1f} s a step on the link alone" in words.introduction(scene(tmp_path))


def test_the_link_is_so_thin_that_training_in_step_would_be_ten_times_slower(tmp_path):
    summary = {"islands": {"us-east": {"training_seconds": 0.3 * 480, "steps": 480}}}
    times = int(words.in_step(scene(tmp_path), summary).split(" times slower")[0].rsplit(" ", 1)[1])
    assert times >= 10


def test_both_islands_load_the_files_that_the_demo_writes(tmp_path):
    with setting.shaped_run(scene(tmp_path / "run")) as paths:
        names = [island.root.name for island in paths.present()]
        loaded = [load_run(paths.root, name) for name in names]
    assert names == ["asia", "us-east"]
    batches = {each.member.name: each.island.island.batch_size for each in loaded}
    assert batches["us-east"] == 3 * batches["asia"]
    assert len({each.island.island.precision for each in loaded}) == 2
    assert num_parameters(resolve_model(loaded[0].run.model)).total <= 800_000


ENDS = [(["a"], True, True), (["a", "b"], True, False), (["a"], False, False)]


@pytest.mark.parametrize(("digests", "complete", "one"), ENDS)
def test_one_model_means_one_digest_at_islands_that_all_ended(digests, complete, one):
    assert words.is_one_model({"joint_digests": digests, "complete": complete}) is one


def test_the_table_shows_both_scores_and_their_ratio():
    score = {"bits_per_byte": 2.0, "standard_error": 0.1}
    row = {
        "joint": score,
        "standard": score | {"standard_error": None},
        "ratio": {"value": 1.0},
        "xz_bits_per_byte": 1.5,
    }
    console = Console(width=100, record=True)
    console.print(words.score_table({"bits_per_byte": {"python code": row}}))
    text = console.export_text()
    assert "2.0000 ± 0.1000" in text
    assert "1.0000" in text
    assert "1.500" in text
