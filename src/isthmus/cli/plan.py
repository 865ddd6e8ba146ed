"""``isthmus plan``: what a run needs, before anybody rents anything."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.arguments import positive_float, positive_int
from isthmus.units import format_bytes, format_count, format_rate

if TYPE_CHECKING:
    from isthmus.cli.arguments import Commands
    from isthmus.cli.sizes import RunSizes
    from isthmus.config.run import MixingTable, TrainTable
    from isthmus.model import ModelConfig


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan",
        help="say what a run needs: parameters, fragments, bytes, memory, link rate",
        description="Work out what a run needs without allocating its model.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--preset", default="nano", help="a model by name (default: %(default)s)")
    source.add_argument("--run-dir", type=Path, metavar="RUN_DIR", help="the model and mixing of this run instead")
    parser.add_argument("--params", action="store_true", help="parameters and fragments only")
    parser.add_argument("--islands", type=positive_int, metavar="N", help="islands (default: the run's, else 2)")
    parser.add_argument(
        "--step-s",
        type=positive_float,
        default=1.0,
        metavar="S",
        help="seconds of a training step, for the link rate (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    from isthmus.cli.sizes import run_sizes

    model, mixing, train, islands = _source(args)
    sizes = run_sizes(model, mixing, islands=islands, optimizer=train.optimizer)
    rate = sizes.link_bits_per_s(window_steps=mixing.window_steps, step_s=args.step_s)
    if args.json:
        plan = asdict(sizes) | {"islands": islands, "step_s": args.step_s, "link_bits_per_s": rate}
        print(json.dumps(plan | {"mixing": mixing.model_dump(mode="json")}, indent=2))
        return 0
    _print_parameters(sizes, mixing)
    if not args.params:
        _print_needs(sizes, islands)
        print(f"link rate: {format_rate(rate)} each way at {args.step_s:g} s a step")
    return 0


def _source(args: argparse.Namespace) -> tuple[ModelConfig, MixingTable, TrainTable, int]:
    from isthmus.config import load_shared, resolve_model
    from isthmus.config.run import MixingTable, TrainTable
    from isthmus.model import preset
    from isthmus.schedule import meetings_to_all

    if args.run_dir is None:
        islands = args.islands or 2
        return preset(args.preset), MixingTable(meetings=meetings_to_all(islands)), TrainTable(), islands
    shared = load_shared(args.run_dir)
    islands = args.islands or len(shared.roster.islands)
    return resolve_model(shared.run.model), shared.run.mixing, shared.run.train, islands


def _print_parameters(sizes: RunSizes, mixing: MixingTable) -> None:
    total, active = sizes.parameters, sizes.active_parameters
    print(f"parameters: {format_count(total)} ({total:,}), active {format_count(active)} ({active:,})")
    print(f"fragments: {mixing.fragments}, publications in {mixing.codec}")
    for fragment in sizes.fragments:
        size = f"{format_count(fragment.elements):>8} elements in {fragment.tensors} tensors"
        print(f"  {fragment.index}: {size}, {format_bytes(fragment.payload_bytes)}")
    per_parameter = sizes.window_bytes / total
    print(
        f"per window of {mixing.window_steps} steps: {format_bytes(sizes.window_bytes)} each way, "
        f"{per_parameter:.3f} bytes a parameter, before compression"
    )


def _print_needs(sizes: RunSizes, islands: int) -> None:
    memory = sizes.memory
    print(
        f"memory of one of {islands} islands, all ranks, activations aside: {format_bytes(memory.total_bytes)} "
        f"(training {format_bytes(memory.training_bytes)}, mixing {format_bytes(memory.mixing_bytes)}, "
        f"open publications {format_bytes(memory.open_bytes)})"
    )
