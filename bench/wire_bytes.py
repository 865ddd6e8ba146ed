"""Bytes on the wire per synced parameter and round, and where they go.

    python bench/wire_bytes.py --preset small --json wire.json

Two islands in one process train on real text, in turns, and trade over real TLS links on loopback. Counted is what the
kernel says each end sent: lossless parts, headers, control messages, heartbeats, TLS, and zstd's gain. The opening of
the link, until both islands train, is counted apart. Then the payloads that were published are taken apart: how the
wire's own zstd, and others, shrink their codes, scales and lossless values.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_step import SHAPES
from sync_overhead import MIXING, machine_facts, publish_report

from isthmus.clock import SystemClock
from isthmus.codec import slices
from isthmus.codec.blocks import BLOCK
from isthmus.config import LoadedRun, NewIsland, load_run, resolve_model, write_run
from isthmus.data import WindowStream, open_train
from isthmus.fragments import Entry
from isthmus.island import Layout, Precision
from isthmus.model import build_model, num_parameters, preset
from isthmus.optim import build_optimizer
from isthmus.session import Engine, Site, Training, cut_model
from isthmus.session.site import open_tcp_link
from isthmus.terms import Header, LinkEvent, LinkSample, Message, Phase, PublicationReceived, PublicationSent
from isthmus.train import set_learning_rate, train_spec, train_step
from isthmus.transport import Link
from isthmus.transport.ports import free_address
from isthmus.wire import CHUNK_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENDS = ("us-east", "asia")
TARGETS = {"nano": 0.6, "small": 0.48}
ROUNDS = {"nano": 12, "small": 4}
RUN_SHARE = 0.75
"""The measured rounds are this part of a run: warm-up and peak learning rate, but not its calm end."""

QUIET_S = 1.0

LEVELS = (1, 3)
_ENTROPY_BLOCK = 32 << 10


class Tap:
    """A link that remembers what passes through it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.events: list[LinkEvent] = []
        self.published: list[tuple[Header, bytes]] = []

    def buffer(self, num_bytes: int) -> memoryview:
        return self._link.buffer(num_bytes)

    def send(self, peer: str, message: Message) -> None:
        self._link.send(peer, message)

    def publish(self, peer: str, header: Header, payload: memoryview, *, spread_s: float) -> None:
        self.published.append((header, bytes(payload)))
        self._link.publish(peer, header, payload, spread_s=spread_s)

    def poll(self) -> list[LinkEvent]:
        events = self._link.poll()
        self.events += events
        return events

    def wait(self, timeout_s: float) -> None:
        self._link.wait(timeout_s)

    def close(self, *, timeout_s: float) -> None:
        self._link.close(timeout_s=timeout_s)

    def sent_bytes(self) -> int:
        """All that the link sent so far."""
        return sum(event.sent_bytes for event in self.events if isinstance(event, LinkSample))

    def count(self, kind: type[LinkEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@dataclass
class End:
    """One island: it trains, and its engine trades."""

    loaded: LoadedRun
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    stream: WindowStream
    tap: Tap = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        mixing, name = self.loaded.run.mixing, self.loaded.member.name
        cut = cut_model(
            self.model,
            num_fragments=mixing.fragments,
            peers=tuple(peer.name for peer in self.loaded.roster.peers(name)),
            embedding_codec=mixing.embedding_codec,
        )
        training = Training(self.model, self.optimizer, self.stream)
        self.engine = Site(self.loaded, cut, training, SystemClock(), self._open_link).open(None, resumed_from=None)

    def step(self) -> float:
        set_learning_rate(self.optimizer, self.loaded, self.engine.core.progress)
        batch = self.stream.next_batch()
        loss = train_step(
            Layout(self.model), self.optimizer, Precision("fp32"), batch, clip_norm=self.loaded.run.train.clip_norm
        )
        self.engine.trained(tokens=batch[:, 1:].numel(), cursor=self.stream.cursor)
        return float(loss)

    def _open_link(self, loaded: LoadedRun, incarnation: int) -> Link:
        self.tap = Tap(open_tcp_link(loaded, incarnation))
        return self.tap


def open_end(run_dir: Path, name: str, cache: Path) -> End:
    loaded = load_run(run_dir, name)
    model = build_model(resolve_model(loaded.run.model), loaded.run.run.seed)
    train = loaded.run.train
    optimizer = build_optimizer(
        model, train.optimizer, learning_rate=train.learning_rate, weight_decay=train.weight_decay
    )
    return End(loaded, model, optimizer, open_train(train_spec(loaded, None, cache)))


def write_files(run_dir: Path, args: argparse.Namespace) -> None:
    steps = args.rounds * args.window
    tokens = len(ENDS) * steps * args.batch * args.sequence_length
    tables = {
        "run": {"name": "wire", "token_budget": round(tokens / RUN_SHARE)},
        "model": {"preset": args.preset},
        "mixing": {
            "window_steps": args.window,
            "fragments": args.fragments,
            "flight_steps": min(MIXING[args.preset][2], args.window - 1),
        },
        "train": {"sequence_length": args.sequence_length, "learning_rate": args.learning_rate, "optimizer": "adamw"},
    }
    address = free_address()
    own = {
        "island": {"batch_size": args.batch, "precision": "fp32", "threads": 1, "device": "cpu"},
        "checkpoint": {"every_steps": 10**9},
        "join": {"wait_s": 300.0},
    }
    write_run(
        run_dir,
        tables,
        [
            NewIsland(ENDS[0], {**own, "link": {"listen": address}}, addresses=(address,)),
            NewIsland(ENDS[1], {**own, "link": {"listen": "127.0.0.1:0"}}),
        ],
    )


# -- the measurement --


def pump(ends: Sequence[End], done: Callable[[], bool], *, at_most_s: float = 60.0, quiet_s: float = QUIET_S) -> None:
    """Let both engines act until ``done``, and then for ``quiet_s``, so that the links have reported all they sent."""
    deadline_s = time.monotonic() + at_most_s
    while not done():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the islands did not come to an agreement within {at_most_s:.0f} s")
        _pump_once(ends)
    deadline_s = time.monotonic() + quiet_s
    while time.monotonic() < deadline_s:
        _pump_once(ends)


def _pump_once(ends: Sequence[End]) -> None:
    for end in ends:
        end.engine.pump()
        end.tap.wait(0.02)


def measure(ends: Sequence[End], args: argparse.Namespace) -> list[dict[str, Any]]:
    pump(ends, lambda: all(end.engine.phase is Phase.TRAINING for end in ends))
    opening = [end.tap.sent_bytes() for end in ends]
    started_s, steps = time.monotonic(), args.rounds * args.window
    for step in range(steps):
        losses = [end.step() for end in ends]
        if step == 0:
            step_s = time.monotonic() - started_s
            print(
                f"{step_s:.1f} s for a step of both; {steps} steps take about {steps * step_s / 60:.1f} min", flush=True
            )
        elif (step + 1) % args.window == 0:
            print(f"  step {step + 1}: losses {losses[0]:.3f} and {losses[1]:.3f} nats", flush=True)

    def all_came() -> bool:
        return all(
            end.tap.count(PublicationSent) == len(end.tap.published) == other.tap.count(PublicationReceived)
            for end, other in zip(ends, reversed(ends), strict=True)
        )

    pump(ends, all_came)
    seconds = time.monotonic() - started_s
    return [describe(end, before, seconds) for end, before in zip(ends, opening, strict=True)]


def describe(end: End, opening_bytes: int, seconds: float) -> dict[str, Any]:
    """What one end sent, in all and per parameter published."""
    slow = end.engine.slow
    headers = [header for header, _ in end.tap.published]
    parameters = sum(slow.fragments[header.fragment].numel for header in headers)
    sent = end.tap.sent_bytes() - opening_bytes
    publications = sum(event.wire_bytes for event in end.tap.events if isinstance(event, PublicationSent))
    payload = sum(header.num_bytes for header in headers)
    edges = [edge for _, _, edge in end.engine.memory.all_edges()]
    return {
        "publication_per_parameter_by_round": by_round(end),
        "end": end.loaded.member.name,
        "opening_bytes": opening_bytes,
        "seconds": seconds,
        "publications": len(headers),
        "codecs": {codec: sum(header.codec == codec for header in headers) for codec in {h.codec for h in headers}},
        "meetings": sum(edge.version for edge in edges),
        "parameters_published": parameters,
        "payload_bytes": payload,
        "publication_wire_bytes": publications,
        "other_bytes": sent - publications,
        "sent_bytes": sent,
        "payload_per_parameter": payload / parameters,
        "publication_per_parameter": publications / parameters,
        "sent_per_parameter": sent / parameters,
    }


def by_round(end: End) -> list[float]:
    """Wire bytes per parameter of the fragments' first publications, of their second ones, and so on."""
    sent = {e.signed.header.publication: e.wire_bytes for e in end.tap.events if isinstance(e, PublicationSent)}
    seen: dict[int, int] = {}
    rounds: list[list[int]] = []
    for header, _ in end.tap.published:
        index = seen[header.fragment] = seen.get(header.fragment, -1) + 1
        if index == len(rounds):
            rounds.append([0, 0])
        rounds[index][0] += sent[header.publication]
        rounds[index][1] += end.engine.slow.fragments[header.fragment].numel
    return [wire_bytes / parameters for wire_bytes, parameters in rounds]


# -- where the bytes go --


def chunked(data: bytes, *, level: int = 1) -> int:
    """Bytes of ``data`` as the wire packs it: chunk by chunk, compressed where that is shorter."""
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    return sum(min(len(chunk), len(zstd.compress(chunk, level=level))) for chunk in chunks)


def shuffled(data: bytes, width: int) -> bytes:
    """The first bytes of all values of ``width`` bytes, then the second ones, and so on."""
    return np.frombuffer(data, np.uint8).reshape(-1, width).T.tobytes()


def byte_entropy(data: bytes) -> float:
    """Bytes that an ideal coder of single bytes would need, knowing their shares in every 32 KiB."""
    total = 0.0
    for at in range(0, len(data), _ENTROPY_BLOCK):
        block = np.frombuffer(data[at : at + _ENTROPY_BLOCK], np.uint8)
        counts = np.bincount(block)
        shares = counts[counts > 0] / block.size
        total -= float((shares * np.log2(shares)).sum()) * block.size / 8
    return total


@dataclass
class Parts:
    """The bytes of one publication by what they are, in entry order."""

    payload: bytes
    scales: bytes
    codes: bytes
    lossless: bytes
    grouped: bytes
    """Per tensor all scales, then all codes."""

    by_kind: dict[str, list[bytes]]
    elements: dict[str, int]


def take_apart(entries: Sequence[Entry], header: Header, payload: bytes) -> Parts:
    scales, codes, lossless, grouped = [], [], [], []
    by_kind: dict[str, list[bytes]] = {}
    elements: dict[str, int] = {}
    for entry, part in zip(entries, slices(entries, header.codec), strict=True):
        data = payload[part.offset : part.offset + part.num_bytes]
        kind = kind_of(entry)
        by_kind.setdefault(kind, []).append(data)
        elements[kind] = elements.get(kind, 0) + entry.numel
        if part.codec == "fp32":
            lossless.append(data)
            grouped.append(data)
            continue
        rows = np.frombuffer(data, np.uint8).reshape(part.rows, -1)
        scale_bytes = 2 * -(-part.row_length // BLOCK)
        scales.append(rows[:, :scale_bytes].tobytes())
        codes.append(rows[:, scale_bytes:].tobytes())
        grouped += [scales[-1], codes[-1]]
    streams = (b"".join(each) for each in (scales, codes, lossless, grouped))
    return Parts(payload, *streams, by_kind, elements)


def kind_of(entry: Entry) -> str:
    if entry.policy != "coded":
        return str(entry.policy)
    words = ("experts", "shared", "attention")
    return next((word for word in words if word in entry.name.split(".")), "other")


OPTIONS: dict[str, Callable[[Parts, int], float]] = {
    "as on the wire": lambda parts, level: chunked(parts.payload, level=level),
    "each tensor's scales before its codes": lambda parts, level: chunked(parts.grouped, level=level),
    "streams of scales, codes and lossless": lambda parts, level: sum(
        chunked(stream, level=level) for stream in (parts.scales, parts.codes, parts.lossless)
    ),
    "these streams, bytes of scales and lossless apart": lambda parts, level: sum(
        chunked(stream, level=level) for stream in (shuffled(parts.scales, 2), parts.codes, shuffled(parts.lossless, 4))
    ),
}
"""Ways to pack a publication, by zstd's level; to bytes."""


def analyse(ends: Sequence[End], codec: str) -> dict[str, Any]:
    """Bytes per parameter of the parts of all publications in ``codec``, and of other ways to pack them."""
    parts = [
        take_apart(end.engine.slow.fragments[header.fragment].entries, header, payload)
        for end in ends
        for header, payload in end.tap.published
        if header.codec == codec
    ]
    elements = sum(sum(part.elements.values()) for part in parts)
    if not elements:
        raise SystemExit(f"nothing was published in {codec}")

    def each(size: Callable[[Parts], float]) -> float:
        return sum(size(part) for part in parts) / elements

    streams = {name: (lambda part, name=name: getattr(part, name)) for name in ("scales", "codes", "lossless")}
    kinds = sorted({kind for part in parts for kind in part.elements})
    return {
        "codec": codec,
        "publications": len(parts),
        "parts": {
            name: {
                "packed": each(lambda part, of=of: len(of(part))),
                "zstd": each(lambda part, of=of: chunked(of(part))),
                "entropy": each(lambda part, of=of: byte_entropy(of(part))),
            }
            for name, of in streams.items()
        },
        "options": {
            f"{name}, level {level}": _option(parts, pack, level) for level in LEVELS for name, pack in OPTIONS.items()
        },
        "kinds": {kind: _kind(parts, kind, elements) for kind in kinds},
    }


def _option(parts: Sequence[Parts], pack: Callable[[Parts, int], float], level: int) -> dict[str, float]:
    """Bytes per parameter, and how fast one core packs: MB of payload a second of CPU time."""
    started_s = time.process_time()
    size = sum(pack(part, level) for part in parts)
    cpu_s = time.process_time() - started_s
    elements = sum(sum(part.elements.values()) for part in parts)
    return {"bytes": size / elements, "megabytes_per_s": sum(len(part.payload) for part in parts) / cpu_s / 1e6}


def _kind(parts: Iterable[Parts], kind: str, elements: int) -> dict[str, float]:
    own = [part for part in parts if kind in part.elements]
    count = sum(part.elements[kind] for part in own)
    blobs = [b"".join(part.by_kind[kind]) for part in own]
    return {
        "share_of_parameters": count / elements,
        "packed": sum(map(len, blobs)) / count,
        "zstd": sum(map(chunked, blobs)) / count,
    }


# -- what is said --


def print_result(ends: Sequence[dict[str, Any]], target: float) -> None:
    print(f"\n{'bytes a parameter and round':34}" + "".join(f"{end['end']:>12}" for end in ends))
    lines = {
        "packed (codes, scales, lossless)": "payload_per_parameter",
        "publications: zstd, framing, TLS": "publication_per_parameter",
        "all that was sent": "sent_per_parameter",
    }
    for title, key in lines.items():
        print(f"{title:34}" + "".join(f"{end[key]:>12.4f}" for end in ends))
    for end in ends:
        codecs = ", ".join(f"{count} {codec}" for codec, count in sorted(end["codecs"].items()))
        print(
            f"{end['end']}: {end['publications']} publications ({codecs}), {end['meetings']} meetings, "
            f"{end['other_bytes']:,} bytes besides publications in {end['seconds']:.0f} s; "
            f"opening the link cost {end['opening_bytes']:,} bytes"
        )
        print("  by round: " + " ".join(f"{size:.3f}" for size in end["publication_per_parameter_by_round"]))
    worst = max(end["sent_per_parameter"] for end in ends)
    print(f"target {target}: {'met' if worst <= target else 'missed'} with {worst:.4f}")


def print_analysis(analysis: dict[str, Any]) -> None:
    print(f"\nthe {analysis['publications']} publications in {analysis['codec']}, bytes a parameter")
    print(f"{'part':42}{'packed':>10}{'zstd':>10}{'entropy':>10}")
    for name, sizes in analysis["parts"].items():
        print(f"  {name:40}{sizes['packed']:>10.4f}{sizes['zstd']:>10.4f}{sizes['entropy']:>10.4f}")
    print(f"{'tensors (bytes a parameter of these alone)':42}{'packed':>10}{'zstd':>10}{'share':>10}")
    for name, sizes in analysis["kinds"].items():
        print(f"  {name:40}{sizes['packed']:>10.4f}{sizes['zstd']:>10.4f}{sizes['share_of_parameters']:>10.1%}")
    print(f"{'ways to pack the same, without framing':62}{'bytes':>10}{'MB/s':>8}")
    for name, option in analysis["options"].items():
        print(f"  {name:60}{option['bytes']:>10.4f}{option['megabytes_per_s']:>8.0f}")


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as root:
        run_dir = Path(root) / "run"
        write_files(run_dir, args)
        ends = [open_end(run_dir, name, args.cache) for name in ENDS]
        results = measure(ends, args)
        for end in ends:
            end.tap.close(timeout_s=5.0)
    analysis = analyse(ends, "int4")
    print_result(results, TARGETS[args.preset])
    print_analysis(analysis)
    settings = {key: value for key, value in vars(args).items() if key not in ("json", "cache")}
    parameters = num_parameters(preset(args.preset)).total
    report = {**settings, "parameters": parameters, "target": TARGETS[args.preset], "ends": results}
    publish_report({**report, "analysis": analysis, "machine": facts}, args.json)
    if not all(end["meetings"] for end in results):
        raise SystemExit("no meeting was completed: this measured nothing")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=TARGETS, default="nano")
    parser.add_argument("--rounds", type=int, help="departures of every fragment (default: 12 nano, 4 small)")
    parser.add_argument("--window", type=int, help="H (default: the preset's)")
    parser.add_argument("--fragments", type=int, help="P (default: the preset's)")
    parser.add_argument("--batch", type=int, help="sequences a step of each island")
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "isthmus-cache")
    parser.add_argument("--json", type=Path, help="also write the JSON to this file")
    args = parser.parse_args()
    args.rounds = args.rounds or ROUNDS[args.preset]
    args.window = args.window or MIXING[args.preset][0]
    args.fragments = args.fragments or MIXING[args.preset][1]
    args.batch = args.batch or SHAPES[args.preset][0]
    args.sequence_length = args.sequence_length or SHAPES[args.preset][1]
    return args


if __name__ == "__main__":
    main()
