"""``isthmus eval`` and ``isthmus export``: what comes out of a run, from a checkpoint or an export."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

from isthmus.checkpoint import LocalStorage, export_safetensors, load_exported, load_latest
from isthmus.config import BYTE_TOKENS, RunPaths, load_shared, resolve_model
from isthmus.data import load_tokenizer, open_held_out
from isthmus.errors import CheckpointError
from isthmus.model import Decoder, ModelConfig, build_model
from isthmus.parts import Part, Source, fill
from isthmus.scoring import Scorer, held_out_specs

MODEL_NAME = "model.safetensors"


@dataclass(frozen=True)
class Weights:
    """Slow weights, and what rebuilds their model.

    ``tensors`` is a model's whole state; ``metadata`` is what an export carries.
    """

    tensors: Mapping[str, Tensor]
    config: ModelConfig
    metadata: Mapping[str, str]
    run_dir: Path | None

    def model(self) -> Decoder:
        """The model with these weights."""
        model = build_model(self.config, seed=0)
        model.load_state_dict(dict(self.tensors))
        return model


def run_eval(checkpoint: Path, data: tuple[str, ...], *, num_bytes: int | None) -> int:
    """Print bits per byte of slow weights on held-out sets or globs, with a standard error; JSON goes beside them."""
    weights = load_weights(checkpoint)
    name = weights.metadata.get("tokenizer", BYTE_TOKENS)
    tokenizer = load_tokenizer(None if name == BYTE_TOKENS else (weights.run_dir or Path()) / name)
    sets = open_held_out(held_out_specs(data, Path(), num_bytes))
    length = int(weights.metadata.get("sequence_length", weights.config.max_seq_len))
    scores = Scorer(sets, tokenizer, sequence_length=length).score(weights.model())
    table = Table()
    for column in ("set", "bits per byte", "standard error", "bytes", "xz -6", "digest"):
        table.add_column(column, justify="left" if column == "set" else "right")
    rows = []
    for named in scores:
        score, digest = named.score, sets[named.set_name].digest[:12]
        numbers = {key: value if math.isfinite(value) else None for key, value in dataclasses.asdict(score).items()}
        rows.append({"set": named.set_name, **numbers, "xz": named.xz_bits_per_byte, "digest": digest})
        values = (f"{score.bits_per_byte:.4f}", f"{score.standard_error:.4f}", f"{score.num_bytes:,}")
        table.add_row(named.set_name, *values, f"{named.xz_bits_per_byte:.3f}", digest)
    beside = checkpoint / "eval.json" if checkpoint.is_dir() else checkpoint.with_suffix(".eval.json")
    beside.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    console = Console()
    console.print(table)
    console.print(f"also in {beside}", highlight=False, soft_wrap=True)
    return 0


def run_export(checkpoint: Path, out: Path) -> int:
    """Write the slow weights of a checkpoint as safetensors, with what rebuilds the model in its metadata."""
    weights = load_weights(checkpoint)
    export_safetensors(out, weights.tensors, weights.metadata)
    Console().print(f"wrote {out}", highlight=False, soft_wrap=True)
    return 0


def load_weights(path: Path) -> Weights:
    """Slow weights from an export, an island's directory, or its directory of checkpoints.

    Raises:
        CheckpointError: There is nothing of the kind, or it cannot be used.
    """
    if path.is_file():
        return _from_export(path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = load_latest(LocalStorage(folder)) if folder.is_dir() else None
    if found is None:
        raise CheckpointError(
            f"{path} holds no checkpoint",
            wanted="an island's directory, its checkpoints directory, or an exported .safetensors file",
            mend="An island writes its first checkpoint after checkpoint.every_steps steps.",
        )
    state, info = found
    run_dir = folder.resolve().parent.parent.parent
    shared = load_shared(run_dir)
    config = resolve_model(shared.run.model)
    model = build_model(config, seed=0)
    tensors = model.state_dict()
    _take(state["trainee"]["model"], tensors)
    _take(state["slow"]["slow"], tensors)  # one name of a tied weight stands for all
    metadata = {
        "run": shared.run.hash,
        "model": json.dumps(dataclasses.asdict(config)),
        "checkpoint": info.name,
        "provisional": "true",
        "tokenizer": shared.run.data.tokenizer,
        "sequence_length": str(shared.run.train.sequence_length),
    }
    return Weights(tensors, config, metadata, RunPaths(run_dir).root)


def _take(stored: Mapping[str, Source], tensors: Mapping[str, Tensor]) -> None:
    """Fill a model's tensors from stored ones, which may be their rows."""
    pairs = []
    for name, source in stored.items():
        own = tensors.get(name)
        if own is None:
            raise CheckpointError("the checkpoint is not of the bundled model", got=f"a tensor named {name!r}")
        shape = tuple(source.shape)
        pairs.append((source, Part.whole(own if shape == tuple(own.shape) else own.view(-1, shape[-1]))))
    fill(pairs)


def _from_export(path: Path) -> Weights:
    tensors, metadata = load_exported(path)
    try:
        config = ModelConfig(**json.loads(metadata["model"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not say what model it is of", got=error, wanted="an export of a run's bundled model"
        ) from error
    return Weights(tensors, config, metadata, path.resolve().parent.parent.parent)
