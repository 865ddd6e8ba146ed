"""Scores on held-out sets: what a document's first token is predicted from."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from isthmus.data import HeldOut, load_tokenizer
from isthmus.scoring import Scorer


class KnowsWhatFollows(nn.Module):
    """Certain that ``first`` comes after ``before``, and sure of nothing else."""

    def __init__(self, before: int, first: int, vocab_size: int) -> None:
        super().__init__()
        logits = torch.zeros(vocab_size, vocab_size)
        logits[before, first] = 100.0
        self.table = nn.Parameter(logits)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


class ShiftedBytes:
    """Bytes behind 100 special tokens, the last of which separates documents."""

    name, vocab_size, separator, dtype = "shifted", 356, 99, load_tokenizer(None).dtype

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8).astype(np.int64) + 100

    def decode(self, ids: np.ndarray) -> bytes:
        return bytes(token - 100 for token in ids)


def test_a_documents_first_token_is_predicted_from_the_tokenizers_separator():
    tokenizer = ShiftedBytes()
    held_out = HeldOut(name="set", source="here", documents=(b"a",), digest="d")
    model = KnowsWhatFollows(tokenizer.separator, ord("a") + 100, tokenizer.vocab_size)
    (named,) = Scorer({"set": held_out}, tokenizer, sequence_length=8).score(model)
    assert named.score.bits_per_byte < 1e-6
    lost = KnowsWhatFollows(0, ord("a") + 100, tokenizer.vocab_size)
    (named,) = Scorer({"set": held_out}, tokenizer, sequence_length=8).score(lost)
    assert math.isclose(named.score.bits_per_byte, math.log2(356), rel_tol=1e-6)
