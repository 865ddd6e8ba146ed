"""Means and paired differences over seeds, put in words that their intervals decide. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from isthmus.errors import IsthmusError

CONFIDENCE = 0.95
"""Of the interval of a difference; its claim is decided by it."""
EQUIVALENCE_LEVEL = 0.05
"""Of each of the two one-sided tests of equivalence; together they are a 90 % interval inside the margin."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over ``n`` seeds; None where there is none, or it is not to be told."""

    n: int
    mean: float | None = None
    standard_error: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Bits per byte of an arm against the control, paired over the seeds that both have.

    Differences are of logarithms, and given as a ratio less one: -0.01 is 1 % fewer bits. Lower is better.

    Attributes:
        n: Common seeds.
        mean: Ratio less one.
        standard_error: Of the ratio.
        low: Lower end of the 95 % t-interval.
        high: Its upper end.
        p: Two-sided, that there is no difference; of a paired t-test of the logarithms.
        p_holm: The same, adjusted by Holm for all comparisons of the study.
        equivalence_low: Lower end of the 90 % t-interval.
        equivalence_high: Its upper end.
        equivalence_p: The larger of two one-sided tests that the difference reaches the margin.
        smallest_margin: The least margin at which both tests would pass.
        claim: What may be said.
    """

    claim: str
    n: int
    mean: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    equivalence_low: float | None = None
    equivalence_high: float | None = None
    equivalence_p: float | None = None
    smallest_margin: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error; of one value there is no error."""
    n = len(values)
    if n == 0:
        return Estimate(n=0)
    mean = math.fsum(values) / n
    return Estimate(n=n, mean=mean, standard_error=_standard_error(values, mean))


def paired_difference(arm: Mapping[int, float], control: Mapping[int, float], margin: float) -> Difference:
    """An arm against the control.

    Args:
        arm: Bits per byte by seed.
        control: The control's.
        margin: Largest relative difference that counts as none, such as 0.005.

    Raises:
        IsthmusError: The package scipy is missing.
    """
    logs = [math.log(arm[seed] / control[seed]) for seed in sorted(arm.keys() & control.keys())]
    n = len(logs)
    if n == 0:
        return Difference(n=0, claim=undecided("no common seed"))
    mean = math.fsum(logs) / n
    error = _standard_error(logs, mean)
    if error is None:
        return Difference(n=n, mean=math.expm1(mean), claim=undecided("one seed"))
    low, high = _interval(mean, error, n, 1 - CONFIDENCE)
    inner_low, inner_high = _interval(mean, error, n, 2 * EQUIVALENCE_LEVEL)
    smallest = max(abs(inner_low), abs(inner_high))
    return Difference(
        n=n,
        mean=math.expm1(mean),
        standard_error=math.exp(mean) * error,
        low=low,
        high=high,
        p=2 * _tail(abs(mean), error, n),
        equivalence_low=inner_low,
        equivalence_high=inner_high,
        equivalence_p=max(_tail(mean - math.log1p(-margin), error, n), _tail(math.log1p(margin) - mean, error, n)),
        smallest_margin=smallest,
        claim=_claim(low, high, smallest, margin),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each of several tests: at most a share of that size of studies finds anything by chance."""
    adjusted = [1.0] * len(ps)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = least
    return adjusted


def undecided(why: str = "") -> str:
    """The claim where nothing may be said."""
    return f"undecided ({why})" if why else "undecided"


def _claim(low: float, high: float, smallest_margin: float, margin: float) -> str:
    claims = [word for word, holds in (("better", high < 0), ("worse", low > 0)) if holds]
    if smallest_margin <= margin:
        claims.append(f"equivalent within {100 * margin:.3g} %")
    return ", ".join(claims) or undecided()


def _standard_error(values: Sequence[float], mean: float) -> float | None:
    n = len(values)
    if n < 2:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def _interval(mean: float, error: float, n: int, outside: float) -> tuple[float, float]:
    """Ends of the t-interval, as ratios less one, that leaves out the given share."""
    reach = float(_special().stdtrit(n - 1, 1 - outside / 2)) * error
    return math.expm1(mean - reach), math.expm1(mean + reach)


def _tail(distance: float, error: float, n: int) -> float:
    """Chance of a t-value beyond a distance in the mean's units; all on one side where seeds do not differ."""
    if error == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(_special().stdtr(n - 1, -distance / error))


def require_scipy() -> None:
    """Make sure, before anything takes time, that intervals can be had.

    Raises:
        IsthmusError: The package scipy is missing.
    """
    _special()


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise IsthmusError(
            "intervals over seeds need the package scipy", mend="Run: pip install 'isthmus[lab]'."
        ) from error
    return special
