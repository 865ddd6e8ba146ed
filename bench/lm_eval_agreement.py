"""Bits per byte on the same text, by isthmus and by lm-evaluation-harness: they have to agree.

    pip install lm-eval tokenizers
    python bench/lm_eval_agreement.py                              # fresh models from a seed
    python bench/lm_eval_agreement.py --export model.safetensors   # and an exported one

Both see twelve held-out documents of networkx: shorter and longer than a window, cut right at a window's edges, ASCII
and not. lm-eval runs offline on a task of its own kind (``loglikelihood_rolling``, ``bits_per_byte``); its side shares
with isthmus's the model and the separator before a document, but neither tokenization, windows, batches nor sums. The
control scores the same tokens in windows that start without context: how much a wrong cut would show. Differences are
relative.

Exit status 1 if any relative difference exceeds the tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # read when lm-eval is imported

import tokenizers
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from rich.console import Console
from rich.table import Table
from torch import nn

from isthmus.config import BYTE_TOKENS
from isthmus.data import PYTHON_CODE, HeldOut, HeldOutSpec, load_tokenizer, open_held_out
from isthmus.data.documents import document
from isthmus.data.held_out import make_held_out
from isthmus.evaluate import load_weights
from isthmus.model import build_model, preset
from isthmus.scoring import Scorer

TASK = "held_out"
END_OF_TEXT = "<|endoftext|>"
WHOLE_DOCUMENTS, MAX_WHOLE_BYTES = 6, 6_000
CUT_BYTES = (1, 256, 257, 512)
"""Lengths of the documents that are cut, beside the window of 256 that the byte models have."""


@dataclass(frozen=True)
class Subject:
    """A model to score; ``tokenizer`` is its file, None for bytes."""

    name: str
    model: nn.Module
    tokenizer: Path | None
    seq_len: int


class RollingModel(LM):
    """A subject as lm-eval asks for it: one forward a window, tokenized and summed apart from isthmus's code."""

    def __init__(self, subject: Subject, *, with_context: bool = True) -> None:
        super().__init__()
        self._model = subject.model.eval()
        self._file = None if subject.tokenizer is None else tokenizers.Tokenizer.from_file(str(subject.tokenizer))
        self._prefix = load_tokenizer(subject.tokenizer).separator
        self._seq_len = subject.seq_len
        self._with_context = with_context

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        return [self._log_likelihood(*request.args) for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("only whole documents are scored here")

    def generate_until(self, requests: list[Instance]) -> list[str]:
        raise NotImplementedError("only whole documents are scored here")

    def _log_likelihood(self, text: str) -> float:
        windows = get_rolling_token_windows(self._encode(text), self._prefix, self._seq_len, context_len=1)
        return math.fsum(self._score(*make_disjoint_window(window)) for window in windows)

    def _encode(self, text: str) -> list[int]:
        return list(text.encode()) if self._file is None else self._file.encode(text, add_special_tokens=False).ids

    @torch.inference_mode()
    def _score(self, context: Sequence[int], scored: Sequence[int]) -> float:
        context = context if self._with_context else [self._prefix]
        tokens = torch.tensor([*context, *scored])
        log_p = self._model(tokens[None, :-1])[0].double().log_softmax(-1)[-len(scored) :]
        return float(log_p.gather(-1, tokens[-len(scored) :, None]).sum())


def main() -> int:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    rest, documents = split_held_out()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tasks = write_task(root, documents)
        subjects = fresh_subjects(train_tokenizer(root / "tokenizer.json", rest), args.seed)
        subjects += [exported_subject(path) for path in args.export]
        rows = [compare(subject, documents, tasks) for subject in subjects]
    print_table(rows)
    largest = max(row["relative_difference"] for row in rows)
    packages = {name: version(name) for name in ("lm-eval", "torch", "tokenizers", "networkx")}
    sizes = [len(text) for text in documents.documents]
    report = {"versions": packages, "document_bytes": sizes, "rows": rows, "agrees": largest <= args.tolerance}
    print(json.dumps(report))
    return 0 if report["agrees"] else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, nargs="*", default=[], help="files that isthmus export wrote")
    parser.add_argument("--seed", type=int, default=0, help="of the fresh models")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest relative difference")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def split_held_out() -> tuple[tuple[bytes, ...], HeldOut]:
    """The documents that are not scored, and a set of the twelve that are."""
    whole = open_held_out([HeldOutSpec(PYTHON_CODE)])[PYTHON_CODE]
    shortest = min(whole.documents, key=len)
    accented = min((text for text in whole.documents if not text.isascii()), key=len)
    plain = [text for text in whole.documents if text.isascii() and max(CUT_BYTES) <= len(text) <= MAX_WHOLE_BYTES]
    plain, to_cut = plain[:WHOLE_DOCUMENTS], plain[WHOLE_DOCUMENTS]
    chosen = (shortest, accented, *plain, *(to_cut[:length] for length in CUT_BYTES))
    rest = tuple(text for text in whole.documents if text not in chosen)
    return rest, make_held_out(TASK, whole.source, (document(whole.source, TASK, text) for text in chosen))


def train_tokenizer(path: Path, texts: Iterable[bytes]) -> Path:
    """A byte-level BPE whose separator, as in most published files, is its last token and not 0."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator((text.decode() for text in texts), trainer)
    bpe.add_special_tokens([END_OF_TEXT])
    bpe.save(str(path))
    return path


def fresh_subjects(tokenizer: Path, seed: int) -> list[Subject]:
    """Untrained models on bytes and on the tokenizer's tokens."""
    subjects = []
    for name, path in (("fresh, bytes", None), ("fresh, BPE", tokenizer)):
        config = dataclasses.replace(preset("nano"), vocab_size=load_tokenizer(path).vocab_size)
        model = build_model(config, seed)
        subjects.append(Subject(name, model, path, config.max_seq_len))
    return subjects


def exported_subject(path: Path) -> Subject:
    weights = load_weights(path)
    tokenizer = weights.metadata.get("tokenizer", BYTE_TOKENS)
    file = None if tokenizer == BYTE_TOKENS else (weights.run_dir or Path()) / tokenizer
    seq_len = int(weights.metadata.get("sequence_length", weights.config.max_seq_len))
    return Subject(f"exported, {tokenizer}", weights.model(), file, seq_len)


def write_task(root: Path, documents: HeldOut) -> TaskManager:
    """The documents as JSON lines, and a task of lm-eval that scores them."""
    data = root / "documents.jsonl"
    lines = [json.dumps({"text": text.decode()}) + "\n" for text in documents.documents]
    data.write_text("".join(lines), encoding="utf-8")
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(root / "cache")},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
    }
    tasks = root / "tasks"
    tasks.mkdir()
    (tasks / f"{TASK}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    return TaskManager(include_path=str(tasks), include_defaults=False)


def compare(subject: Subject, documents: HeldOut, tasks: TaskManager) -> dict[str, Any]:
    scorer = Scorer({TASK: documents}, load_tokenizer(subject.tokenizer), sequence_length=subject.seq_len)
    [named] = scorer.score(subject.model)
    theirs, control = (harness_score(RollingModel(subject, with_context=each), tasks) for each in (True, False))
    return {
        "model": subject.name,
        "num_tokens": named.score.num_tokens,
        "num_bytes": named.score.num_bytes,
        "isthmus": named.score.bits_per_byte,
        "lm_eval": theirs,
        "relative_difference": abs(named.score.bits_per_byte / theirs - 1),
        "control_difference": abs(control / theirs - 1),
    }


def harness_score(model: LM, tasks: TaskManager) -> float:
    report = simple_evaluate(model=model, tasks=[TASK], task_manager=tasks, bootstrap_iters=0, log_samples=False)
    return float(report["results"][TASK]["bits_per_byte,none"])


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    table = Table()
    for column in ("model", "tokens", "bytes", "isthmus", "lm-eval", "difference", "control"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        sizes = (f"{row['num_tokens']:,}", f"{row['num_bytes']:,}")
        scores = (f"{row['isthmus']:.5f}", f"{row['lm_eval']:.5f}")
        differences = (f"{row['relative_difference']:.1e}", f"{row['control_difference']:.1e}")
        table.add_row(row["model"], *sizes, *scores, *differences)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
