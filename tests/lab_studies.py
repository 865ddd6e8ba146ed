"""Small studies on disk: tiny models on texts of their own, so that a run takes a second."""

from __future__ import annotations

from pathlib import Path

from isthmus.lab.grid import Cell, comparison_cells
from isthmus.lab.study import load_study

STUDY = """
[study]
name = "small"
control = "one"
controls = false
seeds = [11, 12]
{study}

[base]
step_s = 1.0

[base.run.run]
token_budget = {tokens}

[base.run.model]
preset = "micro"
d_model = 16
num_layers = 1
num_heads = 1
num_kv_heads = 1
head_dim = 16
num_experts = 4
expert_hidden = 8
shared_hidden = 16

[base.run.mixing]
window_steps = 6
fragments = 2
flight_steps = 2

[base.run.train]
sequence_length = 32
learning_rate = 5e-3

[base.run.data]
evaluate = ["texts/held*.txt"]
evaluate_bytes = 2000

[base.run.eval]
every_tokens = 1000

[base.island.island]
batch_size = 2

[base.island.data]
sources = ["texts/train*.txt"]

[base.link]
rtt_ms = 180
rate_mbit = 10

[[arm]]
name = "one"
islands = 1
{one}

[[arm]]
name = "two"
islands = 2
{two}
"""


def write_study(folder: Path, *, tokens: int = 3000, study: str = "", one: str = "", two: str = "") -> Path:
    """A study of one island and two; the strings add lines to its tables."""
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for part in range(8):
        lines = [f"line {part} {number}: {'the quick brown fox jumps'[: number % 25]}\n" for number in range(100)]
        (texts / f"train{part}.txt").write_text("".join(lines))
    for part in range(4):
        (texts / f"held{part}.txt").write_text("".join(f"held out {part}.{n}, a lazy dog\n" for n in range(12)))
    path = folder / "study.toml"
    path.write_text(STUDY.format(tokens=tokens, study=study, one=one, two=two))
    return path


def cell_of(path: Path, arm: str, seed: int = 11) -> Cell:
    """The comparing run of an arm that is not tuned."""
    return next(cell for cell in comparison_cells(load_study(path), {}) if (cell.arm, cell.seed) == (arm, seed))
