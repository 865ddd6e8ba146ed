from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from isthmus.errors import DataError
from isthmus.evals import Passage, bits_per_byte, rolling_windows
from isthmus.model import build_model, preset


class Bigram(nn.Module):
    """Logits of the next token that depend on the last one alone, so that windows cannot matter."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def _passage(text: bytes) -> Passage:
    return Passage(torch.tensor(list(text), dtype=torch.uint8), len(text))


def _random_bigram() -> Bigram:
    return Bigram(torch.randn(256, 256, generator=torch.Generator().manual_seed(0)))


def test_a_model_that_knows_nothing_scores_exactly_eight_bits_per_byte() -> None:
    score = bits_per_byte(
        Bigram(torch.zeros(256, 256)), [_passage(b"to be or"), _passage(b"not to be")], seq_len=4, prefix_token=0
    )
    assert score.bits_per_byte == pytest.approx(8.0, abs=1e-6)
    assert score.standard_error == pytest.approx(0.0, abs=1e-6)
    assert (score.num_bytes, score.num_tokens) == (17, 17)


@given(length=st.integers(1, 40), seq_len=st.integers(1, 12))
def test_windows_score_every_token_once_in_order_with_the_one_before_it_in_sight(length: int, seq_len: int) -> None:
    tokens = torch.arange(100, 100 + length)
    windows = list(rolling_windows(tokens, seq_len, 0))
    scored = torch.cat([window.tokens[-window.num_scored :] for window in windows])
    assert scored.equal(tokens)
    assert all(window.num_scored < len(window.tokens) <= seq_len + 1 for window in windows)
    assert windows[0].tokens[0] == 0
    whole = torch.cat([torch.tensor([0]), tokens])
    assert all(len(window.tokens) == min(seq_len + 1, len(whole)) for window in windows)


@pytest.mark.parametrize("seq_len", [1, 3, 8, 100])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_score_is_the_sum_over_all_bytes_however_they_are_cut(seq_len: int, batch_size: int) -> None:
    texts = [b"a", b"the quick brown fox", b"jumps over", b""]
    model = _random_bigram()
    logs = model.table.detach().double().log_softmax(-1)
    nats = [-sum(float(logs[before, byte]) for before, byte in zip(b"\0" + text, text, strict=False)) for text in texts]
    score = bits_per_byte(
        model, [_passage(text) for text in texts], seq_len=seq_len, prefix_token=0, batch_size=batch_size
    )
    assert score.num_bytes == 30
    assert score.bits_per_byte == pytest.approx(sum(nats) / math.log(2) / 30, rel=1e-5)


def test_bits_are_divided_by_bytes_not_by_tokens() -> None:
    tokens = torch.tensor([5, 9, 200])
    by_token = bits_per_byte(_random_bigram(), [Passage(tokens, 3)], seq_len=8, prefix_token=0)
    by_byte = bits_per_byte(_random_bigram(), [Passage(tokens, 12)], seq_len=8, prefix_token=0)
    assert by_byte.bits_per_byte == pytest.approx(by_token.bits_per_byte / 4)
    assert (by_byte.num_bytes, by_byte.num_tokens) == (12, 3)


def test_the_standard_error_shrinks_with_the_root_of_the_passages() -> None:
    passages = [_passage(bytes([i % 7, 3 * i % 251, i % 11])) for i in range(50)]
    few = bits_per_byte(_random_bigram(), passages, seq_len=8, prefix_token=0)
    many = bits_per_byte(_random_bigram(), passages * 4, seq_len=8, prefix_token=0)
    assert many.bits_per_byte == pytest.approx(few.bits_per_byte)
    assert many.standard_error == pytest.approx(few.standard_error / 2, rel=0.02)
    assert few.standard_error > 0


def test_the_first_token_is_predicted_from_the_prefix_token() -> None:
    model = _random_bigram()
    nats = -float(model.table[7].detach().log_softmax(-1)[65])
    score = bits_per_byte(model, [_passage(b"A")], seq_len=8, prefix_token=7)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2))


def test_a_single_passage_has_no_standard_error() -> None:
    assert math.isnan(bits_per_byte(_random_bigram(), [_passage(b"abc")], seq_len=8, prefix_token=0).standard_error)


@pytest.mark.parametrize("passages", [[], [_passage(b"")]])
def test_nothing_to_score_is_an_error(passages: list[Passage]) -> None:
    with pytest.raises(DataError, match="nothing to evaluate"):
        bits_per_byte(_random_bigram(), passages, seq_len=8, prefix_token=0)


def test_scoring_leaves_the_model_as_it_was() -> None:
    model = build_model(preset("micro"), seed=0)
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = bits_per_byte(model, [_passage(b"def f(x):"), _passage(b"    return x\n")], seq_len=8, prefix_token=0)
    assert [module.training for module in model.modules()] == modes
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert first == bits_per_byte(
        model, [_passage(b"def f(x):"), _passage(b"    return x\n")], seq_len=8, prefix_token=0
    )
