"""What Shampoo costs a step: against AdamW, and against another library's SOAP, in one run.

    python bench/optimizer.py nano dense-20m --cycles 5 --json optimizer.json

Each case trains three copies of one model on the same text: with AdamW, with Shampoo, and with heavyball's SOAP (if it
is installed; without ``torch.compile``), which is given the blocks that ours works on: experts apart, and matrices of
more than 2048 rows cut, where by itself it would leave that side without a basis. They take turns, a cycle of as
many steps as lie between two refreshes each. Forward and backward are timed apart from the update, so that a step of
several accumulated batches can be told, too. A ratio is that of the cycles' sums, with the least and the largest of
the cycles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from isthmus.model import ModelConfig, build_model, next_token_loss, preset
from isthmus.optim import Shampoo, build_optimizer, shampoo_groups
from isthmus.optim.shampoo import MAX_BLOCK
from isthmus.optim.tiles import cut

DENSE_20M = ModelConfig(
    d_model=512,
    num_layers=6,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    num_experts=0,
    top_k=0,
    expert_hidden=0,
    shared_hidden=1408,
    max_seq_len=512,
)
ACCUMULATED = {"nano": (1, 6), "small": (1, 16), "dense-20m": (1, 4, 16)}
"""How many batches make a step, in the ratios that are printed."""


@dataclass
class Case:
    config: ModelConfig
    batch_size: int
    seq_len: int


CASES = {
    "nano": Case(preset("nano"), 18, 256),
    "small": Case(preset("small"), 4, 512),
    "dense-20m": Case(DENSE_20M, 4, 512),
}
"""``nano`` at the batch of the demo's larger island."""


class Arm:
    """A model, its optimizer, and the seconds of its cycles: forward and backward, update."""

    def __init__(self, config: ModelConfig, build: Callable[[nn.Module], Callable[[], None]]) -> None:
        self.model = build_model(config, seed=0)
        self.update = build(self.model)
        self.cycles: list[tuple[float, float]] = []

    def cycle(self, batches: Iterator[Tensor], steps: int) -> None:
        spent = [0.0, 0.0]
        for _ in range(steps):
            batch = next(batches)
            self.model.zero_grad()
            started = time.perf_counter()
            next_token_loss(self.model(batch[:, :-1]), batch[:, 1:]).backward()
            between = time.perf_counter()
            self.update()
            spent[0] += between - started
            spent[1] += time.perf_counter() - between
        self.cycles.append((spent[0], spent[1]))


def adamw(model: nn.Module, _: int) -> Callable[[], None]:
    return build_optimizer(model, "adamw", learning_rate=2e-3).step


def shampoo(model: nn.Module, refresh_steps: int) -> Callable[[], None]:
    return Shampoo(shampoo_groups(model, 0.1), lr=2e-3, refresh_steps=refresh_steps).step


def heavyball_soap(model: nn.Module, refresh_steps: int) -> Callable[[], None]:
    """The other library's SOAP over the same blocks, and torch's AdamW over the rest."""
    import heavyball

    heavyball.utils.compile_mode = None
    matrices, *others = shampoo_groups(model, 0.1)
    parts = [(each, blocks(each.detach())) for each in matrices["params"]]
    views = [nn.Parameter(view) for _, own in parts for view in own]
    soap = heavyball.SOAP(
        views,
        lr=2e-3,
        betas=(0.95, 0.95),
        shampoo_beta=0.95,
        weight_decay=0.1,
        precondition_frequency=refresh_steps,
        merge_dims=False,
    )
    rest = torch.optim.AdamW([each for group in others for each in group["params"]], lr=2e-3, fused=True)

    def update() -> None:
        place = iter(views)
        for parameter, _ in parts:
            for gradient in blocks(parameter.grad):
                next(place).grad = gradient
        soap.step()
        rest.step()

    return update


def blocks(tensor: Tensor) -> list[Tensor]:
    """The matrices of a parameter, cut as Shampoo cuts them."""
    tiles = cut([tensor.shape], MAX_BLOCK)
    stacked = tensor if tensor.ndim == 3 else tensor[None]
    return [matrix for tile in tiles for matrix in stacked[tile.matrices, tile.rows, tile.columns]]


def text(case: Case) -> Iterator[Tensor]:
    """Windows of the source code of Python's own library, in an order drawn once."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    tokens = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(tokens) - case.seq_len - 1, (case.batch_size,), generator=generator).tolist()
        yield torch.stack([tokens[start : start + case.seq_len + 1].long() for start in starts])


def measure(case: Case, args: argparse.Namespace) -> dict[str, Arm]:
    builds = {"adamw": adamw, "shampoo": shampoo}
    try:
        import heavyball  # noqa: F401

        builds["heavyball"] = heavyball_soap
    except ImportError:
        print("heavyball is not installed: no comparison with it")
    arms = {
        name: Arm(case.config, lambda model, build=build: build(model, args.refresh_steps))
        for name, build in builds.items()
    }
    batches = {name: text(case) for name in arms}
    for turn in range(args.cycles + 1):  # the first does not count: state is made in it
        order = list(arms) if turn % 2 else list(arms)[::-1]
        for name in order:
            arms[name].cycle(batches[name], args.refresh_steps)
    for arm in arms.values():
        del arm.cycles[0]
    return arms


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    each = [a / b for a, b in zip(above, below, strict=True)]
    return {"ratio": sum(above) / sum(below), "least": min(each), "largest": max(each)}


def describe(name: str, case: Case, arms: dict[str, Arm], args: argparse.Namespace) -> dict[str, object]:
    steps = args.refresh_steps
    updates = {arm: [update for _, update in own.cycles] for arm, own in arms.items()}
    passes = [
        sum(cycle) / len(cycle) for cycle in zip(*([p for p, _ in arm.cycles] for arm in arms.values()), strict=True)
    ]
    tokens = case.batch_size * case.seq_len
    row: dict[str, object] = {
        "case": name,
        "parameters": sum(each.numel() for each in arms["adamw"].model.parameters()),
        "forward_backward_ms": 1e3 * statistics.median(passes) / steps,
        "update_ms": {arm: 1e3 * statistics.median(own) / steps for arm, own in updates.items()},
        "state_bytes_per_parameter": state_bytes(arms),
        "over_adamw": {
            str(times * tokens): ratio(
                [times * p + u for p, u in zip(passes, updates["shampoo"], strict=True)],
                [times * p + u for p, u in zip(passes, updates["adamw"], strict=True)],
            )
            for times in ACCUMULATED[name]
        },
    }
    if "heavyball" in updates:
        row["update_over_heavyball"] = ratio(updates["shampoo"], updates["heavyball"])
    return row


def state_bytes(arms: dict[str, Arm]) -> dict[str, float]:
    """Bytes of an optimizer's state for each parameter of the model."""
    found = {}
    for name in ("adamw", "shampoo"):
        optimizer = arms[name].update.__self__  # type: ignore[attr-defined]
        own = sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())
        found[name] = own / sum(each.numel() for each in arms[name].model.parameters())
    return found


def print_row(row: dict) -> None:
    table = Table(title=f"{row['case']}: {row['parameters'] / 1e6:.1f} M parameters", title_justify="left")
    for column in ("", "ratio", "least", "largest"):
        table.add_column(column, justify="right" if column else "left")
    for tokens, found in row["over_adamw"].items():
        table.add_row(
            f"step of {int(tokens):,} tokens, Shampoo over AdamW", *(f"{value:.3f}" for value in found.values())
        )
    if "update_over_heavyball" in row:
        table.add_row(
            "update, Shampoo over heavyball's SOAP", *(f"{v:.3f}" for v in row["update_over_heavyball"].values())
        )
    Console().print(table)
    times = ", ".join(f"{name} {ms:.1f}" for name, ms in row["update_ms"].items())
    size = ", ".join(f"{name} {size:.1f}" for name, size in row["state_bytes_per_parameter"].items())
    print(f"forward and backward {row['forward_backward_ms']:.1f} ms; update in ms: {times}")
    print(f"state in bytes per parameter: {size}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=["nano", "dense-20m"])
    parser.add_argument("--refresh-steps", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for name in args.cases:
        rows.append(describe(name, CASES[name], measure(CASES[name], args), args))
        print_row(rows[-1])
    if args.json:
        args.json.write_text(
            json.dumps(
                {"torch": torch.__version__, **{k: v for k, v in vars(args).items() if k != "json"}, "rows": rows},
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
