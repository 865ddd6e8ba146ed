"""What the demo says: what it is about to do, on which texts, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from isthmus.demo.scene import PRESET, Scene
from isthmus.model import num_parameters, preset
from isthmus.units import format_bytes, format_count, format_duration, format_rate

MOST_COLUMNS = 3
"""More islands than this are rows of a table, not columns."""

_PRECISION_WORDS = {"bf16-autocast": "bf16 autocast", "bf16-weights": "bf16 weights, fp32 masters and products"}


def introduction(scene: Scene) -> str:
    """What is about to happen, and why not in step."""
    rate, rtt = format_rate(scene.rate_bits_per_s), f"{scene.rtt_s * 1000:.0f} ms"
    gradient = format_bytes(scene.gradient_bytes)
    who = [
        f"{name} ({_PRECISION_WORDS.get(precision, precision)}, {scene.batches[name]} sequences a step)"
        for name, precision in scene.precisions.items()
    ]
    return (
        f"{len(who)} islands, {', '.join(who[:-1])} and {who[-1]}, train one sparse mixture-of-experts "
        f"model of {format_count(num_parameters(preset(PRESET)).total)} parameters, each on its own part of the data.\n"
        f"Between them: TLS over a link of {rate} and {rtt} round trip. Training in step over it would send {gradient} "
        f"of gradients each way a step: {gradient} x 8 / {rate} + {rtt} = {format_duration(scene.in_step_link_s)} "
        "a step on the link alone.\n"
    )


def score_table(summary: dict[str, Any]) -> Table:
    """Bits per byte of both ways of training, from a run's summary."""
    table = Table(
        title="Bits per byte of held-out text, lower is better; ratio = joint / standard", title_justify="left"
    )
    for column in ("set", "joint", "standard", "ratio", "xz -6"):
        table.add_column(column, justify="left" if column == "set" else "right", no_wrap=True)
    for name, row in summary["bits_per_byte"].items():
        ratio = row.get("ratio")
        table.add_row(
            name,
            _score(row.get("joint")),
            _score(row.get("standard")),
            "-" if ratio is None else f"{ratio['value']:.4f}",
            f"{row['xz_bits_per_byte']:.3f}" if row["xz_bits_per_byte"] else "-",
        )
    return table


def island_table(scene: Scene, summary: dict[str, Any]) -> Table:
    """What each island trained and what its link did."""
    limit = format_rate(scene.rate_bits_per_s)
    table = Table(title=f"Islands on links of {limit} each way", title_justify="left")
    table.add_column("", no_wrap=True)
    islands = summary["islands"]
    if len(islands) > MOST_COLUMNS:
        return _island_rows(table, islands)
    for name in islands:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "steps": lambda island: f"{island['steps']:,}",
        "tokens": lambda island: format_count(island["tokens"]),
        "tokens per second": lambda island: format_count(island["tokens_per_second"] or 0.0),
        "rounds per fragment": lambda island: str(island["rounds"]),
        "sent": lambda island: format_bytes(island["sent_bytes"]),
        "bytes per parameter and round": lambda island: f"{island['bytes_per_parameter_and_round'] or 0.0:.3f}",
        "mean rate": lambda island: _rate(island, "mean"),
        "peak rate in 100 ms": lambda island: _rate(island, "peak"),
        "time blocked on the link": lambda island: f"{island['blocked_share'] or 0.0:.2%}",
        "time in island.step()": lambda island: f"{island['sync_share'] or 0.0:.2%}",
    }
    for title, cell in rows.items():
        table.add_row(title, *(cell(island) for island in islands.values()))
    return table


def _island_rows(table: Table, islands: dict[str, dict[str, Any]]) -> Table:
    """The same in short for many islands, one a row."""
    for title in ("steps", "tokens", "rounds", "sent", "B/param/round", "mean rate", "blocked", "in step()"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, island in islands.items():
        table.add_row(
            name,
            f"{island['steps']:,}",
            format_count(island["tokens"]),
            str(island["rounds"]),
            format_bytes(island["sent_bytes"]),
            f"{island['bytes_per_parameter_and_round'] or 0.0:.2f}",
            _rate(island, "mean"),
            f"{island['blocked_share'] or 0.0:.1%}",
            f"{island['sync_share'] or 0.0:.1%}",
        )
    return table


def in_step(scene: Scene, summary: dict[str, Any]) -> str:
    """How much slower data-parallel training in step would have been over this link."""
    island = summary["islands"]["us-east"]
    step_s = island["training_seconds"] / max(1, island["steps"])
    times = 1 + scene.in_step_link_s / step_s
    return (
        f"In step, every step would take {step_s:.2f} s of work and {scene.in_step_link_s:.2f} s of the link: "
        f"{times:.0f} times slower than here."
    )


def is_one_model(summary: dict[str, Any]) -> bool:
    """Whether all islands ended, with the same bits."""
    return bool(summary["complete"]) and len(summary["joint_digests"]) == 1


def _score(score: dict[str, Any] | None) -> str:
    if score is None:
        return "-"
    error = score["standard_error"]
    return f"{score['bits_per_byte']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _rate(island: dict[str, Any], which: str) -> str:
    return format_rate(8 * (island["link"][f"{which}_sent_bytes_per_second"] or 0.0))
