"""The demo's two ways of training on a virtual clock, to tune their learning rates and compare them.

    python bench/demo_arms.py joint --learning-rate 8e-3 --seed 1
    python bench/demo_arms.py standard --learning-rate 8e-3 --batch 24 --seed 1

Tune on seeds that the comparison does not use. One JSON line per run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

import torch

from isthmus.checkpoint import MemoryStorage
from isthmus.clock import VirtualClock
from isthmus.config import NewIsland, load_run, resolve_model, write_run
from isthmus.demo import scene as demo
from isthmus.island import Layout, Precision
from isthmus.lab import Resident, World
from isthmus.model import build_model
from isthmus.optim import build_optimizer
from isthmus.session import Effects, Engine, Training, cut_model, plan_of
from isthmus.train import Texts, base_learning_rate, pick_device, pick_precision, set_learning_rate, train_step
from isthmus.transport import LinkQuality, MemoryNetwork, MemorySettings

STEP_S = 0.25
"""Virtual seconds of a step of the larger island; about what it takes on one core."""


def files(args: argparse.Namespace, root: Path) -> Path:
    scene = demo.Scene(root, args.steps, 0.18, 4e6, args.optimizer, args.seed)
    tables = demo.run_tables(scene, "arm", scene.token_budget, args.learning_rate)
    for key in ("outer_lr", "outer_momentum", "calm_share", "calm_rounds", "codec", "flight_steps"):
        if getattr(args, key) is not None:
            tables["mixing"][key] = getattr(args, key)
    tables["mixing"]["window_steps"] = args.window
    tables["eval"] = {"every_tokens": 0}
    cache = {"cache": args.cache}
    if args.arm == "standard":
        tables["mixing"] |= {"outer_lr": 1.0, "outer_momentum": 0.0}
        islands = [
            NewIsland(
                "standard", {"island": demo.island_table(args.batch, "fp32", threads=1, window=None), "data": cache}
            )
        ]
    else:
        own = {"us-east": args.window, "asia": args.window * args.ratio}
        batch = {"us-east": args.batch, "asia": args.batch // args.ratio}
        rate = {"us-east": args.learning_rate, "asia": args.asia_learning_rate or args.learning_rate}
        islands = [
            NewIsland(
                name,
                {
                    "island": demo.island_table(batch[name], "fp32", threads=1, window=own[name])
                    | {"learning_rate": rate[name]},
                    "data": cache,
                },
            )
            for name in own
        ]
    write_run(root / "run", tables, islands)
    return root / "run"


def resident(world: World, run_dir: Path, name: str, step_s: float, sink: list) -> tuple[Resident, Texts]:
    loaded = load_run(run_dir, name)
    model = build_model(resolve_model(loaded.run.model), loaded.run.run.seed)
    train = loaded.run.train
    optimizer = build_optimizer(
        model,
        train.optimizer,
        learning_rate=base_learning_rate(loaded),
        weight_decay=train.weight_decay,
        refresh_steps=train.refresh_steps,
    )
    texts = Texts(loaded)
    precision = Precision(pick_precision(loaded.island.island.precision, pick_device("cpu")))
    mixing = loaded.run.mixing

    def make(link, incarnation):
        cut = cut_model(
            model,
            num_fragments=mixing.fragments,
            peers=tuple(peer.name for peer in loaded.roster.peers(name)),
            embedding_codec=mixing.embedding_codec,
        )
        plan = dataclasses.replace(plan_of(loaded, cut), save_every_steps=10**9)
        effects = Effects(link=link, clock=world.clock, storage=MemoryStorage(), sink=sink.append, codec=mixing.codec)
        return Engine(plan, cut.slow, Training(model, optimizer, texts.stream), effects, incarnation)

    def step():
        set_learning_rate(optimizer, loaded, here.engine.core.progress)
        batch = texts.stream.next_batch()
        loss = train_step(Layout(model), optimizer, precision, batch, clip_norm=train.clip_norm)
        if here.engine.memory.step % 40 == 0:
            print(f"{name} {here.engine.memory.step} {here.engine.core.progress:.3f} {float(loss):.3f}", flush=True)
        return batch[:, 1:].numel(), texts.stream.cursor

    here = Resident(name=name, make=make, train=step, step_s=step_s)
    return here, texts


def run(args: argparse.Namespace) -> dict:
    torch.set_num_threads(1)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as root:
        run_dir = files(args, Path(root))
        names = sorted(path.name for path in (run_dir / "islands").iterdir())
        clock, sink = VirtualClock(), []
        quality = LinkQuality(delay_s=0.09, rate_bits_per_s=4e6)
        network = MemoryNetwork(
            clock, args.seed, islands=names, run=load_run(run_dir, names[0]).run.hash, settings=MemorySettings(quality)
        )
        world = World(clock, network)
        residents = {}
        for name in names:
            step_s = STEP_S / args.ratio if name == "asia" else STEP_S
            residents[name], texts = resident(world, run_dir, name, step_s, sink)
            world.start(residents[name])
        world.run()
        engine = residents[names[0]].engine
        engine.slow.take_in()
        model = engine.trainee._model
        scores = {named.set_name: named.score.bits_per_byte for named in texts.whole.score(model)}
    return {**vars(args), **scores, "tokens": engine.memory.run_tokens, "cpu_s": round(time.process_time() - started)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=("joint", "standard"))
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--asia-learning-rate", type=float, help="the smaller island's own")
    parser.add_argument("--batch", type=int, default=24, help="sequences a step of the larger island")
    parser.add_argument("--ratio", type=int, default=3, help="how much smaller the other island's batch is")
    parser.add_argument("--window", type=int, default=demo.WINDOW_STEPS["us-east"])
    parser.add_argument("--steps", type=int, default=demo.DEFAULT_STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", default="shampoo")
    parser.add_argument("--outer-lr", type=float)
    parser.add_argument("--outer-momentum", type=float)
    parser.add_argument("--calm-share", type=float)
    parser.add_argument("--calm-rounds", type=int)
    parser.add_argument("--flight-steps", type=int)
    parser.add_argument("--codec")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "isthmus-cache"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    line = json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in run(args).items()})
    print(line)
    if args.out:
        with args.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
