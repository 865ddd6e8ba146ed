"""What several ranks cost an island: agreeing at every step boundary, and memory for slow state at each rank.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 bench/ranks.py --pin --json ranks.json
    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 4 bench/ranks.py --parameters 20_000_000

First the ranks agree a few thousand times, as they do once a step when nothing has happened; with --pin each on a core
of its own, as they are where there are more cores than threads that are awake. Then a dense model is
sharded by FSDP2, trained with AdamW, and trades every fragment with one partner, whose publications are its own; what
live tensors and payloads take beside the model, its gradients and its optimizer is compared with
(8 + 5.6 bytes a parameter) / ranks + the largest parameter. Beside it stands what the process held at most meanwhile
(its resident memory, so with what the allocator keeps), from before slow state was made.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sync_overhead import machine_facts, publish_report
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from isthmus.clock import SystemClock
from isthmus.island import Ranks, open_ranks
from isthmus.session import cut_model
from isthmus.session.accord import Accord
from isthmus.session.orders import Arrive, Mode
from isthmus.session.shares import Shares
from isthmus.terms import Header
from isthmus.units import MIB

STEP_S = 0.1
FRAGMENTS = 8
BYTES_PER_PARAMETER = 8 + 5.6
"""Slow weights and velocity; for one edge a reference, and three publications in int4."""


def agree_us(ranks: Ranks, count: int) -> dict[str, float]:
    accord, each = Accord(ranks, SystemClock()), []
    for _ in range(count):
        started_s = time.perf_counter()
        accord.exchange(b"")
        each.append(1e6 * (time.perf_counter() - started_s))
    return {
        "median": statistics.median(each),
        "mean": statistics.fmean(each),
        "p99": statistics.quantiles(each, n=100)[-1],
    }


class Dense(nn.Module):
    """Square layers and an embedding, of about so many parameters."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        width = 1024
        self.embed = nn.Embedding(8192, width)
        layers = max(1, (parameters - 8192 * width) // (8 * width * width))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False))
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.embed(tokens)
        for layer in self.layers:
            rows = rows + layer(rows)
        return rows


def live_bytes() -> int:
    """Bytes of the memory of all tensors there are."""
    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), Tensor):
            local = each.to_local() if isinstance(each, DTensor) else each
            storage = local.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def resident_bytes(field: str) -> int:
    """``VmRSS``, or ``VmHWM``, the most since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def header(fragment: int, num_bytes: int, weight_tokens: int) -> Header:
    return Header(
        run="ab" * 32, sender="b", receiver="a", fragment=fragment, epoch=0, version=0, sender_incarnation=1,
        receiver_incarnation=1, publication=1, step=1, tokens=40, weight_tokens=weight_tokens, run_tokens=80, cursor=1,
        reference=b"", codec="int4", num_bytes=num_bytes,
    )  # fmt: skip


def memory(ranks: Ranks, parameters: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = Dense(parameters)
    largest = max(each.numel() for each in model.parameters()) * 4
    count = sum(each.numel() for each in model.parameters())
    if ranks.size > 1:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.zeros(1, 4, dtype=torch.int64)).square().mean().backward()
    optimizer.step()
    before = live_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    resident = resident_bytes("VmRSS")

    slow = cut_model(model, num_fragments=FRAGMENTS, peers=("b",), embedding_codec="int4", ranks=ranks).slow
    shares = Shares(slow.fragments, "int4", ranks)
    kept = []
    for fragment in range(FRAGMENTS):
        slow.depart(fragment, outer_lr=0.7, momentum=0.5)
        own = memoryview(bytearray(slow.share_bytes(fragment, "int4")))
        slow.encode("b", fragment, "int4", own)
        mine, theirs = (header(fragment, slow.payload_bytes(fragment, "int4"), tokens) for tokens in (10, 30))
        whole = shares.gather(mine, own, lambda size: memoryview(bytearray(size)))
        apart = shares.scatter(theirs, memoryview(b"") if whole is None else whole)
        del whole
        slow.arrive(Arrive(("b",), fragment, mine, (theirs,), 0, Mode.CORRECT), [own, apart])
        kept += [own, apart, bytes(own)]
    taken = live_bytes() - before + sum(len(each) for each in kept)
    peak = resident_bytes("VmHWM") - resident
    allowed = BYTES_PER_PARAMETER * count / ranks.size + largest
    most, permitted, peak_most = ranks.largest(taken, 1.05 * allowed + 64 * MIB, peak)
    return {
        "parameters": count,
        "taken_mib": most / MIB,
        "allowed_mib": permitted / MIB,
        "over_formula": most / allowed,
        "peak_resident_mib": peak_most / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--exchanges", type=int, default=3000)
    parser.add_argument("--pin", action="store_true", help="each rank on a core of its own")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    facts = machine_facts()
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    ranks = open_ranks()
    if args.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[ranks.rank % len(cores)]})
    agreed = agree_us(ranks, args.exchanges)
    report = {
        **facts,
        "ranks": ranks.size,
        "agree_us": agreed,
        "share_of_100_ms": agreed["mean"] / 1e6 / STEP_S,
        "memory": memory(ranks, args.parameters),
    }
    if ranks.rank == 0:
        publish_report(report, args.json)
    if ranks.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
