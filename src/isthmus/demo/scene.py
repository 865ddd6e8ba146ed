"""What the demo sets up: islands of different precision on shaped links, and one place beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.config import NewIsland, RunPaths, write_run
from isthmus.island import native_bf16
from isthmus.model import num_parameters, preset
from isthmus.observe.runfiles import STANDARD_NAME
from isthmus.schedule import meetings_to_all
from isthmus.transport.ports import free_address
from isthmus.transport.relay import ShaperOptions
from isthmus.transport.shaper_process import ShaperProcess

NAME = "demo"
PRESET = "nano"
SEQUENCE_LENGTH = 256

BATCH = {"us-east": 18, "asia": 6}
"""Sequences a step: 3:1, as at two sites of different size."""

WINDOW_STEPS = {"us-east": 12, "asia": 28}
"""Each island's own H: windows of about as many seconds on equal cores, where small batches cost more a token."""

NAMES = ("us-east", "asia", "europe", "us-west", "india", "africa", "oceania", "brazil")
"""Islands of a demo; two of them differ in size, more are alike."""

MANY_WINDOW_STEPS = 16
MANY_FLIGHT_STEPS = 2
"""More than two islands have log2 of their number meetings a round, each of which arrives soon."""

FRAGMENTS = 4
FLIGHT_STEPS = 4
CALM_SHARE = 0.1
"""A run of 50 rounds gains 0.2 % from a shorter calm end than the default (docs/log.md)."""

DEFAULT_STEPS = 528
"""Steps of the larger of two islands, if both train as many tokens: 44 rounds of every fragment."""


def default_steps(islands: int) -> int:
    """Steps of each of so many islands in which they train as many tokens together as two do by default."""
    if islands == 2:
        return DEFAULT_STEPS
    return 2 * DEFAULT_STEPS * BATCH["us-east"] // (islands * _equal_batch(islands))


def _equal_batch(islands: int) -> int:
    """Sequences a step at each of so many islands."""
    return max(1, STANDARD_BATCH // islands)


RATE_MBIT = 4.0
STANDARD_BATCH = 24
EVALUATIONS = 8
EVALUATE_BYTES = 300_000

LEARNING_RATE = {
    "shampoo": {"joint": 2.4e-2, "standard": 3.2e-2},
    "adamw": {"joint": 8e-3, "standard": 8e-3},
    "muon": {"joint": 1.6e-2, "standard": 1.6e-2},
}
"""Peak learning rates, tuned on another seed for each way of training (docs/log.md); those of Muon are not tuned."""

_CACHE = "cache"


@dataclass(frozen=True)
class Scene:
    """What the demo was asked to show."""

    out: Path
    steps: int
    rtt_s: float
    rate_bits_per_s: float
    optimizer: str
    seed: int
    islands: int = 2

    @property
    def names(self) -> tuple[str, ...]:
        """The islands."""
        return NAMES[: self.islands]

    @property
    def batches(self) -> dict[str, int]:
        """Sequences a step at each island."""
        if self.islands == 2:
            return BATCH
        return dict.fromkeys(self.names, _equal_batch(self.islands))

    @property
    def windows(self) -> dict[str, int]:
        """H of each island."""
        return WINDOW_STEPS if self.islands == 2 else dict.fromkeys(self.names, MANY_WINDOW_STEPS)

    @property
    def precisions(self) -> dict[str, str]:
        """The numeric precision of each island; every second one has another."""
        return {name: second_precision() if place % 2 else "fp32" for place, name in enumerate(self.names)}

    @property
    def token_budget(self) -> int:
        """Tokens of the joint run: all islands train about as many."""
        return self.islands * self.steps * self.batches["us-east"] * SEQUENCE_LENGTH

    @property
    def gradient_bytes(self) -> int:
        """What training in step would send each way in every step: fp32 gradients of all parameters."""
        return 4 * num_parameters(preset(PRESET)).total

    @property
    def in_step_link_s(self) -> float:
        """Seconds that this would take on the link."""
        return self.gradient_bytes * 8 / self.rate_bits_per_s + self.rtt_s


def second_precision() -> str:
    """The numeric precision of the second island: what this CPU does natively, or what it can imitate."""
    return "bf16-autocast" if native_bf16() else "bf16-weights"


@contextmanager
def shaped_run(scene: Scene) -> Iterator[RunPaths]:
    """Files of the joint run, with a shaper before every island that can be reached: all but the first."""
    with ExitStack() as shapers:
        tables = run_tables(scene, NAME, scene.token_budget, LEARNING_RATE[scene.optimizer]["joint"])
        islands = [_island(scene, scene.names[0], "127.0.0.1:0", ())]
        for name in scene.names[1:]:
            address = free_address()
            options = ShaperOptions(
                listen="127.0.0.1:0", target=address, rtt_s=scene.rtt_s, rate_bits_per_s=scene.rate_bits_per_s
            )
            shaper = shapers.enter_context(ShaperProcess(options))
            islands.append(_island(scene, name, address, (shaper.address,)))
        write_run(scene.out, tables, islands)
        yield RunPaths(scene.out)


def _island(scene: Scene, name: str, listen: str, addresses: tuple[str, ...]) -> NewIsland:
    own = island_table(scene.batches[name], scene.precisions[name], threads=1, window=scene.windows[name])
    link = {"listen": listen, "rate_mbit": scene.rate_bits_per_s / 1e6}
    return NewIsland(name, {"island": own, "link": link}, addresses=addresses)


def write_standard(scene: Scene, tokens: int) -> RunPaths:
    """Files of the run in one place, on ``tokens`` tokens: plain training, as nobody else is in its roster."""
    place = replace(scene, out=scene.out / STANDARD_NAME)
    tables = run_tables(place, STANDARD_NAME, tokens, LEARNING_RATE[scene.optimizer]["standard"])
    plain = {"outer_lr": 1.0, "outer_momentum": 0.0}
    island = {
        "island": island_table(STANDARD_BATCH, "fp32", threads=2, window=None),
        "data": {"shares": (1.0,), "cache": f"../{_CACHE}"},
    }
    write_run(place.out, {**tables, "mixing": {**tables["mixing"], **plain}}, [NewIsland(STANDARD_NAME, island)])
    return RunPaths(place.out)


def run_tables(scene: Scene, name: str, tokens: int, learning_rate: float) -> dict[str, dict[str, Any]]:
    """The values of a ``run.toml`` of the demo."""
    return {
        "run": {"name": name, "seed": scene.seed, "token_budget": tokens},
        "model": {"preset": PRESET},
        "mixing": {
            "window_steps": scene.windows["us-east"],
            "fragments": FRAGMENTS,
            "flight_steps": FLIGHT_STEPS if scene.islands == 2 else MANY_FLIGHT_STEPS,
            "meetings": meetings_to_all(scene.islands),
            "calm_share": CALM_SHARE,
        },
        "train": {
            "sequence_length": SEQUENCE_LENGTH,
            "optimizer": scene.optimizer,
            "learning_rate": learning_rate,
            "warmup_share": 0.05,
            "final_lr_share": 0.05,
        },
        "data": {"evaluate_bytes": EVALUATE_BYTES},
        "eval": {"every_tokens": max(1, tokens // EVALUATIONS)},
    }


def island_table(batch_size: int, precision: str, *, threads: int, window: int | None) -> dict[str, Any]:
    """The values of the table ``[island]`` of an ``island.toml`` of the demo."""
    table: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "threads": threads, "device": "cpu"}
    return table if window is None else {**table, "window_steps": window}
