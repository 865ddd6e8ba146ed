"""Bits per byte: how well a model predicts text, whatever its tokens are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from isthmus.errors import DataError


@dataclass(frozen=True)
class Passage:
    """A piece of text that is scored by itself: a document, or a block of one.

    Attributes:
        tokens: (n,), of any integer dtype.
        num_bytes: Length of its text in UTF-8.
    """

    tokens: Tensor
    num_bytes: int


@dataclass(frozen=True)
class Score:
    """Bits per byte over passages.

    Attributes:
        bits_per_byte: All bits over all bytes.
        standard_error: Of ``bits_per_byte``, from its spread over passages; NaN for a single passage.
        num_bytes: Bytes scored.
        num_tokens: Tokens scored, each once.
    """

    bits_per_byte: float
    standard_error: float
    num_bytes: int
    num_tokens: int


@dataclass(frozen=True)
class Window:
    """One forward: the last ``num_scored`` of ``tokens`` are predicted, each from those before it."""

    tokens: Tensor
    num_scored: int


def bits_per_byte(
    model: nn.Module, passages: Iterable[Passage], *, seq_len: int, prefix_token: int, batch_size: int = 16
) -> Score:
    """Score every token of every passage exactly once, in evaluation mode and without gradients.

    Long passages are cut into windows as lm-evaluation-harness's ``loglikelihood_rolling`` does (``rolling_windows``).

    Args:
        model: (batch, length) int64 tokens to (batch, length, vocab) logits; causal.
        passages: What to score.
        seq_len: Longest input of one forward, in tokens.
        batch_size: Windows in one forward; it changes the result by rounding at most.
        prefix_token: What the first token of a passage is predicted from; for bytes the NUL, which no text contains.

    Raises:
        DataError: There is nothing to score.
    """
    scored = [passage for passage in passages if len(passage.tokens)]
    if sum(passage.num_bytes for passage in scored) == 0:
        raise DataError("nothing to evaluate on", got="no bytes", mend="Give at least one non-empty text.")
    windows = [
        (index, window)
        for index, passage in enumerate(scored)
        for window in rolling_windows(passage.tokens, seq_len, prefix_token)
    ]
    windows.sort(key=lambda item: len(item[1].tokens), reverse=True)
    nats = [0.0] * len(scored)
    with _evaluating(model):
        for start in range(0, len(windows), batch_size):
            batch = windows[start : start + batch_size]
            values = _window_nats(model, [window for _, window in batch])
            for (index, _), value in zip(batch, values, strict=True):
                nats[index] += value
    return _score(scored, nats)


def rolling_windows(tokens: Tensor, seq_len: int, prefix_token: int) -> Iterator[Window]:
    """Cut a passage so that every token is scored once.

    The first window starts from ``prefix_token``, each later one from the last token of the one before. The last
    window is as long as the others and scores only what is left: its first tokens are context alone.

    Args:
        tokens: (n,), of any integer dtype.
        seq_len: Longest input, in tokens.
        prefix_token: What the first token is predicted from.
    """
    tokens = torch.cat([tokens.new_tensor([prefix_token]), tokens])
    for start in range(1, len(tokens), seq_len):
        stop = min(start + seq_len, len(tokens))
        yield Window(tokens[max(stop - seq_len - 1, 0) : stop], stop - start)


def _window_nats(model: nn.Module, windows: Sequence[Window]) -> list[float]:
    """Nats of each window's scored tokens; shorter windows are padded on the right, which a causal model cannot see."""
    device = next(model.parameters()).device
    tokens = pad_sequence([window.tokens for window in windows], batch_first=True).to(device, torch.int64)
    logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    rows = losses.view(len(windows), -1).double().cpu()
    ends = [len(window.tokens) - 1 for window in windows]
    return [
        float(row[end - window.num_scored : end].sum()) for row, end, window in zip(rows, ends, windows, strict=True)
    ]


def _score(passages: Sequence[Passage], nats: Sequence[float]) -> Score:
    """The ratio of sums, and its standard error over passages (the usual estimator of a ratio's)."""
    num_bytes = sum(passage.num_bytes for passage in passages)
    ratio = math.fsum(nats) / math.log(2) / num_bytes
    residuals = [value / math.log(2) - ratio * passage.num_bytes for value, passage in zip(nats, passages, strict=True)]
    count = len(passages)
    spread = math.fsum(residual**2 for residual in residuals)
    error = math.sqrt(spread * count / (count - 1)) / num_bytes if count > 1 else math.nan
    return Score(ratio, error, num_bytes, sum(len(passage.tokens) for passage in passages))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module gets back the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training
