"""``isthmus demo``: two islands over a long, thin link, and the same model trained in one place."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.config import NewIsland, RunPaths, load_run, write_run
from isthmus.errors import ConfigError
from isthmus.island import native_bf16
from isthmus.model import num_parameters, preset
from isthmus.observe.report import write_report
from isthmus.observe.runfiles import STANDARD_NAME
from isthmus.observe.summary import write_summary
from isthmus.train import Texts
from isthmus.transport.ports import free_address
from isthmus.transport.relay import ShaperOptions
from isthmus.transport.shaper_process import ShaperProcess
from isthmus.units import format_bytes, format_count, format_duration, format_rate
from isthmus.up import IslandProcesses, report_failures, watch

NAME = "demo"
PRESET = "nano"
SEQUENCE_LENGTH = 256

BATCH = {"us-east": 18, "asia": 6}
"""Sequences a step: about 3:1, as at two sites of different size."""

WINDOW_STEPS = {"us-east": 12, "asia": 28}
"""Each island's own H: windows of about as many seconds on equal cores, where small batches cost more a token."""

FRAGMENTS = 4
FLIGHT_STEPS = 4
DEFAULT_STEPS = 480
"""Steps of the larger island: 40 rounds of every fragment."""

RATE_MBIT = 4.0
STANDARD_BATCH = 24
EVALUATIONS = 8

LEARNING_RATE = {"joint": 8e-3, "standard": 8e-3}
"""Peak learning rates of AdamW, tuned on another seed for each way of training (docs/log.md)."""


@dataclass(frozen=True)
class Scene:
    """What the demo was asked to show."""

    out: Path
    steps: int
    rtt_s: float
    rate_bits_per_s: float
    optimizer: str
    seed: int

    @property
    def token_budget(self) -> int:
        """Tokens of the joint run: both islands train about as many."""
        return 2 * self.steps * BATCH["us-east"] * SEQUENCE_LENGTH


def run_demo(
    *,
    out: Path,
    steps: int | None,
    baseline: bool,
    rtt_ms: float,
    rate_mbit: float | None,
    optimizer: str,
    islands: int,
    seed: int,
) -> int:
    """Run the demo; see ``isthmus demo --help``.

    Returns:
        The exit code: 1 if an island failed or the islands did not end with one model.
    """
    if islands != len(BATCH):
        raise ConfigError("the demo has two islands", got=islands, wanted=len(BATCH))
    scene = Scene(out, steps or DEFAULT_STEPS, rtt_ms / 1000, (rate_mbit or RATE_MBIT) * 1e6, optimizer, seed)
    console = Console()
    _make_room(out)
    console.print(_introduction(scene), highlight=False)
    with _shaped_run(scene) as paths:
        _prepare_texts(paths, console)
        processes = IslandProcesses(out, paths.present())
        watch(out, processes, console)
        if report_failures(processes, console):
            return 1
    if baseline:
        summary = json.loads(write_summary(out).read_text(encoding="utf-8"))
        tokens = sum(island["tokens"] for island in summary["islands"].values())
        if _run_standard(scene, tokens, console):
            return 1
    summary = json.loads(write_summary(out).read_text(encoding="utf-8"))
    console.print(result_table(summary))
    console.print(_closing_words(scene, summary), highlight=False)
    console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)
    return int(not _is_one_model(summary))


@contextmanager
def _shaped_run(scene: Scene) -> Iterator[RunPaths]:
    """Files of the joint run, with a shaper before the one island that can be reached."""
    address = free_address()
    options = ShaperOptions(
        listen="127.0.0.1:0",
        target=address,
        rtt_s=scene.rtt_s,
        rate_bits_per_s=scene.rate_bits_per_s,
    )
    with ShaperProcess(options) as shaper:
        tables = run_tables(scene, NAME, scene.token_budget, LEARNING_RATE["joint"])
        second = "bf16-autocast" if native_bf16() else "bf16-weights"
        links = {"us-east": "127.0.0.1:0", "asia": address}
        addresses = {"us-east": (), "asia": (shaper.address,)}
        precisions = {"us-east": "fp32", "asia": second}
        rate_mbit = scene.rate_bits_per_s / 1e6
        write_run(
            scene.out,
            tables,
            [
                NewIsland(
                    name,
                    {
                        "island": island_table(BATCH[name], precisions[name], threads=1, window=WINDOW_STEPS[name]),
                        "link": {"listen": links[name], "rate_mbit": rate_mbit},
                    },
                    addresses=addresses[name],
                )
                for name in BATCH
            ],
        )
        yield RunPaths(scene.out)


def _run_standard(scene: Scene, tokens: int, console: Console) -> bool:
    """Train in one place on as many tokens; whether that failed."""
    place = replace(scene, out=scene.out / STANDARD_NAME)
    tables = run_tables(place, STANDARD_NAME, tokens, LEARNING_RATE["standard"])
    calm = {"outer_lr": 1.0, "outer_momentum": 0.0}
    island = {
        "island": island_table(STANDARD_BATCH, "fp32", threads=2, window=None),
        "data": {"shares": (1.0,), "cache": f"../{_CACHE}"},
    }
    write_run(place.out, {**tables, "mixing": {**tables["mixing"], **calm}}, [NewIsland(STANDARD_NAME, island)])
    console.print(f"\nNow the same model in one place, on as many tokens ({format_count(tokens)}):", highlight=False)
    processes = IslandProcesses(place.out, RunPaths(place.out).present())
    watch(place.out, processes, console)
    return report_failures(processes, console)


_CACHE = "cache"


def run_tables(scene: Scene, name: str, tokens: int, learning_rate: float) -> dict[str, dict[str, Any]]:
    """The values of a ``run.toml`` of the demo."""
    return {
        "run": {"name": name, "seed": scene.seed, "token_budget": tokens},
        "model": {"preset": PRESET},
        "mixing": {
            "window_steps": WINDOW_STEPS["us-east"],
            "fragments": FRAGMENTS,
            "flight_steps": FLIGHT_STEPS,
        },
        "train": {
            "sequence_length": SEQUENCE_LENGTH,
            "optimizer": scene.optimizer,
            "learning_rate": learning_rate,
            "warmup_share": 0.05,
            "final_lr_share": 0.05,
        },
        "data": {"evaluate_bytes": 300_000},
        "eval": {"every_tokens": max(1, tokens // EVALUATIONS)},
    }


def island_table(batch_size: int, precision: str, *, threads: int, window: int | None) -> dict[str, Any]:
    """The values of the table ``[island]`` of an ``island.toml`` of the demo."""
    table: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "threads": threads, "device": "cpu"}
    return table if window is None else {**table, "window_steps": window}


def _introduction(scene: Scene) -> str:
    parameters = num_parameters(preset(PRESET)).total
    gradient = 4 * parameters
    transfer_s = gradient * 8 / scene.rate_bits_per_s + scene.rtt_s
    return (
        f"Two islands, us-east (fp32, {BATCH['us-east']} sequences a step) and asia "
        f"({'bf16 autocast' if native_bf16() else 'bf16 weights, fp32 masters'}, {BATCH['asia']}), train one sparse "
        f"mixture-of-experts model of {format_count(parameters)} parameters, each on its own half of the data.\n"
        f"Between them: TLS over a link of {format_rate(scene.rate_bits_per_s)} and {scene.rtt_s * 1000:.0f} ms "
        f"round trip. Training in step over it would send {format_bytes(gradient)} of gradients each way a step: "
        f"{format_bytes(gradient)} x 8 / {format_rate(scene.rate_bits_per_s)} + {scene.rtt_s * 1000:.0f} ms = "
        f"{format_duration(transfer_s)} a step on the link alone.\n"
    )


def _prepare_texts(paths: RunPaths, console: Console) -> None:
    """Read the texts once, so that both islands find them ready; say what they are."""
    with console.status("reading the texts of this installation ...") if console.is_terminal else _nothing():
        manifests = [Texts(load_run(paths.root, island.root.name)).manifest for island in paths.present()]
    manifest = manifests[0]
    train = ", ".join(f"{source.project} {source.version}" for source in manifest.sources)
    console.print(f"Training text: the source of {train}, in disjoint parts.", highlight=False)
    for each in manifest.held_out:
        text = f"Held out, {each.name}: {each.source}, {format_bytes(each.num_bytes)}, overlap {each.overlap:.2%}."
        console.print(text, highlight=False)
    console.print(f"Manifest of the data: {manifest.digest}\n", highlight=False)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def result_table(summary: dict[str, Any]) -> Table:
    """Bits per byte of both ways of training, and what the link did, from a run's summary."""
    table = Table(title="bits per byte, lower is better", title_justify="left")
    for column in ("held-out set", "joint", "standard", "joint / standard", "xz -6"):
        table.add_column(column, justify="left" if column == "held-out set" else "right")
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


def _score(score: dict[str, Any] | None) -> str:
    if score is None:
        return "-"
    error = score["standard_error"]
    return f"{score['bits_per_byte']:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _closing_words(scene: Scene, summary: dict[str, Any]) -> str:
    lines = []
    for name, island in summary["islands"].items():
        lines.append(
            f"{name}: {island['steps']} steps, {format_count(island['tokens'])} tokens, "
            f"{format_bytes(island['sent_bytes'])} sent ({island['bytes_per_parameter_and_round'] or 0:.3f} bytes per "
            f"parameter and round), link {_rate(island, 'mean')} mean and {_rate(island, 'peak')} peak of "
            f"{format_rate(scene.rate_bits_per_s)}, {island['blocked_share'] or 0:.2%} of the time blocked"
        )
    lines.append(_in_step(scene, summary))
    lines.append("one model at both islands: " + ("yes, bit for bit" if _is_one_model(summary) else "NO"))
    return "\n".join(lines)


def _rate(island: dict[str, Any], which: str) -> str:
    return format_rate(8 * (island["link"][f"{which}_sent_bytes_per_second"] or 0.0))


def _in_step(scene: Scene, summary: dict[str, Any]) -> str:
    """How much slower data-parallel training in step would have been over this link."""
    gradient_bits = 32 * num_parameters(preset(PRESET)).total
    link_s = gradient_bits / scene.rate_bits_per_s + scene.rtt_s
    island = summary["islands"]["us-east"]
    step_s = island["training_seconds"] / max(1, island["steps"])
    return (
        f"in step, every step would wait {link_s:.2f} s for gradients: {step_s:.3f} s of work + {link_s:.2f} s = "
        f"{1 + link_s / step_s:.0f} times slower than here"
    )


def _is_one_model(summary: dict[str, Any]) -> bool:
    return bool(summary["complete"]) and len(summary["joint_digests"]) == 1


def _make_room(out: Path) -> None:
    """Remove an earlier demo; anything else stays, and is an error."""
    run_file = RunPaths(out).run
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        name = tomllib.loads(run_file.read_text(encoding="utf-8"))["run"]["name"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
        name = None
    if name != NAME:
        raise ConfigError(
            f"{out} holds something that is no earlier demo",
            wanted="a missing or empty directory, or one that an earlier demo made",
            mend="Name another one with --out.",
        )
    shutil.rmtree(out)
