"""Bits per byte of a model on a run's held-out sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import nn

from isthmus.data import DEFAULT_HELD_OUT, HeldOut, HeldOutSpec, Tokenizer
from isthmus.evals import Passage, Score, bits_per_byte


@dataclass(frozen=True)
class NamedScore:
    """A score, and ``xz -6`` on the same bytes beside it."""

    set_name: str
    score: Score
    xz_bits_per_byte: float


def held_out_specs(names: Iterable[str], root: Path, max_bytes: int | None) -> tuple[HeldOutSpec, ...]:
    """The specs of sets by name; a name that is none of the default sets is a glob of files, relative to ``root``."""
    known = {spec.name for spec in DEFAULT_HELD_OUT}
    return tuple(
        HeldOutSpec(name, globs=() if name in known else (str(root / name),), max_bytes=max_bytes) for name in names
    )


class Scorer:
    """Scores models on held-out sets.

    Args:
        sets: The sets by name.
        tokenizer: Of the model.
        sequence_length: Longest input of one forward, in tokens.
        max_bytes: Of each set, only its first documents that come to so many bytes, but always one.
    """

    def __init__(
        self, sets: Mapping[str, HeldOut], tokenizer: Tokenizer, *, sequence_length: int, max_bytes: int | None = None
    ) -> None:
        self._sequence_length, self._prefix_token = sequence_length, tokenizer.separator
        if max_bytes is not None:
            sets = {name: _beginning(each, max_bytes) for name, each in sets.items()}
        self._passages = {
            name: [
                Passage(tokens[1:], len(text))
                for tokens, text in zip(each.encode(tokenizer), each.documents, strict=True)
            ]
            for name, each in sets.items()
        }
        self._xz = {name: each.xz_bits_per_byte() for name, each in sets.items()}

    def score(self, model: nn.Module) -> list[NamedScore]:
        """Score a model as it is, in fp32; a document's first token is predicted from the separator before it."""
        length, prefix = self._sequence_length, self._prefix_token
        scores = {
            name: bits_per_byte(model, passages, seq_len=length, prefix_token=prefix)
            for name, passages in self._passages.items()
        }
        return [NamedScore(name, score, self._xz[name]) for name, score in scores.items()]


def _beginning(held_out: HeldOut, max_bytes: int) -> HeldOut:
    ends = itertools.accumulate(map(len, held_out.documents))
    count = sum(1 for end in ends if end <= max_bytes)
    return msgspec.structs.replace(held_out, documents=held_out.documents[: max(1, count)])
