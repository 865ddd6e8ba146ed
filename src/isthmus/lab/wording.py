"""A study's numbers as its report says them, with the digits that they deserve."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.lab.standings import Runs
from isthmus.lab.statistics import Difference, Estimate
from isthmus.lab.table import Scalar

NONE = "–"


def value_text(value: Scalar) -> str:
    """A setting's value: ``true``, ``2,000,000``, ``0.0003``, ``int4``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:g}" if isinstance(value, float) else value


def settings_text(settings: Mapping[str, Scalar]) -> str:
    """Settings by key: ``train.batch = 8, train.tokens = 2,000,000``."""
    return ", ".join(f"{key} = {value_text(value)}" for key, value in sorted(settings.items()))


def bits_text(value: float | None) -> str:
    """Bits per byte, or an error of it: ``2.0031``."""
    return NONE if value is None else f"{value:.4f}"


def percent_text(share: float | None) -> str:
    """A relative difference: ``+0.31 %``, ``−1.20 %``."""
    return NONE if share is None else f"{_percent(share)} %"


def interval_text(low: float | None, high: float | None) -> str:
    """Ends of an interval of relative differences: ``−1.20 to +0.31 %``."""
    return "" if low is None or high is None else f"{_percent(low)} to {_percent(high)} %"


def share_text(share: float | None) -> str:
    """A part of a whole: ``97.1 %``."""
    return NONE if share is None else f"{100 * share:.1f} %"


def p_text(p: float | None) -> str:
    """A p-value: ``0.012``, ``<0.001``."""
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def margin_text(margin: float | None) -> str:
    """A margin of equivalence: ``0.5 %``; a smallest passing one with two decimals is :func:`percent_text`'s."""
    return NONE if margin is None else f"{100 * margin:.3g} %"


def runs_text(runs: Runs) -> str:
    """How runs ended: ``5``, ``3 of 5, 2 missing``, ``4 of 5, 1 diverged``."""
    total = runs.done + runs.diverged + runs.failed + runs.missing
    parts = [f"{runs.done} of {total}" if total != runs.done else str(runs.done)]
    for count, word in ((runs.diverged, "diverged"), (runs.failed, "failed"), (runs.missing, "missing")):
        parts += [f"{count} {word}"] if count else []
    return ", ".join(parts)


def estimate_text(estimate: Estimate) -> str:
    """A mean with its standard error: ``2.0031 ± 0.0012``."""
    error = "" if estimate.standard_error is None else f" ± {bits_text(estimate.standard_error)}"
    return bits_text(estimate.mean) + error


def chance_text(difference: Difference) -> str:
    """The p-values: ``p 0.012, Holm 0.060``."""
    if difference.p is None:
        return ""
    adjusted = "" if difference.p_holm is None else f", Holm {p_text(difference.p_holm)}"
    return f"p {p_text(difference.p)}{adjusted}".replace("p <", "p < ").replace("Holm <", "Holm < ")


def _percent(share: float) -> str:
    text = f"{100 * share:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")
