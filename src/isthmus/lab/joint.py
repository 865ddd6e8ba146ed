"""Scores of what a virtual run's islands hold together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isthmus.lab.table import Score, Subject
from isthmus.model import Decoder
from isthmus.observe.records import finite
from isthmus.scoring import NamedScore, Scorer

Holding = tuple[int, Mapping[str, Tensor]]
"""Tokens that an island has trained, and its slow weights."""


class JointScorer:
    """Scores the mean of all islands' slow weights, and at the end the lowest slot's own where there are several.

    Two islands end with the same bits. More of them end close to each other, and the mean is what their last meetings
    would come to.

    Args:
        scorer: Scores a model on the held-out sets.
        model: A model to hold the weights; nobody trains it.
    """

    def __init__(self, scorer: Scorer, model: Decoder) -> None:
        self._scorer, self._model = scorer, model

    def score(self, holdings: Sequence[Holding], *, run_tokens: int, final: bool) -> list[tuple[Score, NamedScore]]:
        """Score islands, the lowest slot first; each row of the table beside the score that it was made of."""
        mean = mean_weights(holdings)
        subjects: dict[Subject, Mapping[str, Tensor]] = {"joint": mean}
        if final and len(holdings) > 1:
            subjects["first"] = holdings[0][1]
        apart: dict[Subject, float] = {"joint": disagreement(holdings, mean)}
        return [
            (_row(named, subject, run_tokens, final, apart.get(subject)), named)
            for subject, weights in subjects.items()
            for named in self._score(weights)
        ]

    def _score(self, weights: Mapping[str, Tensor]) -> list[NamedScore]:
        self._model.load_state_dict(dict(weights), strict=False)  # one name of a tied weight stands for all
        return self._scorer.score(self._model)


@torch.no_grad()
def mean_weights(holdings: Sequence[Holding]) -> dict[str, Tensor]:
    """The mean of slow weights, weighted by tokens; all alike where nobody has trained any."""
    total = sum(tokens for tokens, _ in holdings)
    shares = [tokens / total if total else 1 / len(holdings) for tokens, _ in holdings]
    mean = {name: torch.zeros_like(tensor) for name, tensor in holdings[0][1].items()}
    for share, (_, weights) in zip(shares, holdings, strict=True):
        for name, tensor in mean.items():
            tensor.add_(weights[name].to(tensor.device), alpha=share)
    return mean


@torch.no_grad()
def disagreement(holdings: Sequence[Holding], mean: Mapping[str, Tensor]) -> float:
    """Root mean square of what islands differ from ``mean`` by, over that of ``mean``."""
    size = sum(float(tensor.square().sum()) for tensor in mean.values())
    apart = sum(
        float((weights[name].to(tensor.device) - tensor).square().sum())
        for _, weights in holdings
        for name, tensor in mean.items()
    )
    return (apart / len(holdings) / size) ** 0.5 if size else 0.0


def _row(named: NamedScore, subject: Subject, run_tokens: int, final: bool, apart: float | None) -> Score:
    return Score(
        set_name=named.set_name,
        subject=subject,
        run_tokens=run_tokens,
        bits_per_byte=finite(named.score.bits_per_byte),
        standard_error=finite(named.score.standard_error),
        final=final,
        disagreement=None if apart is None else finite(apart),
    )
