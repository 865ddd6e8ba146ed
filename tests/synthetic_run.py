"""A run directory as two islands and a baseline would leave it, made up from a seed in a moment."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from isthmus.observe.records import (
    Alarm,
    Checkpoint,
    Departure,
    Evaluation,
    Finished,
    Joined,
    LinkRate,
    Meeting,
    Note,
    PeerChange,
    PhaseChange,
    Published,
    Received,
    Record,
    RunStarted,
    Stamp,
    StepDone,
)
from isthmus.terms import Phase

START_WALL_S = 1_800_000_000.0
H, P, TAU = 12, 4, 6
LIMIT_BYTES_PER_S = 120_000.0
PARAMETERS = 640_000
RUN_BATCH_TOKENS = 8192
BATCH_TOKENS = {"us-east": 6144, "asia": 2048, "standard": RUN_BATCH_TOKENS}
STEP_S = {"us-east": 0.36, "asia": 0.33, "standard": 0.4}
XZ = {"python code": 1.29, "technical english": 2.05}
FLOOR = {"python code": 1.9, "technical english": 2.6}


class Island:
    """Makes up one island's records; ``origin_s`` is where the present process's ``t_s`` starts."""

    def __init__(self, name: str, peer: str | None, rounds: int, seed: int) -> None:
        self.name, self.peer, self.steps = name, peer, rounds * H
        self.random = random.Random(seed)
        self.records: list[Record] = []
        self.origin_s = 0.0
        self.incarnation = 1

    def at(self, now_s: float, step: int) -> Stamp:
        """The shared fields at ``now_s`` seconds into the run."""
        return Stamp(
            t_s=round(now_s - self.origin_s, 3),
            wall_s=round(START_WALL_S + now_s, 3),
            island=self.name,
            step=step,
            tokens=step * BATCH_TOKENS[self.name],
        )

    def budget(self) -> int:
        """Tokens of the whole run."""
        return self.steps * RUN_BATCH_TOKENS

    def start(self, now_s: float, step: int, resumed_from: str | None = None) -> None:
        """A process comes up."""
        self.origin_s = now_s
        self.records.append(
            RunStarted(
                **self.at(now_s, 0),
                run="7f3a91c2d4e5",
                run_name="demo",
                isthmus_version="0.1.0",
                torch_version="2.13.0",
                python_version="3.11.2",
                slot=int(self.name == "asia"),
                incarnation=self.incarnation,
                batch_sequences=BATCH_TOKENS[self.name] // 256,
                batch_tokens=BATCH_TOKENS[self.name],
                precision="bf16" if self.name == "us-east" else "bf16 weights, fp32 masters",
                device="cpu",
                codec="int4",
                window_steps=H,
                num_fragments=P,
                delay_steps=TAU,
                num_parameters=PARAMETERS,
                token_budget=self.budget(),
                manifest_digest="c0ffee1234567890",
                rate_limit_bytes_per_s=LIMIT_BYTES_PER_S,
                resumed_from=resumed_from,
                command=f"isthmus train runs/demo --island {self.name}",
                config={"mixing": {"window_steps": H, "fragments": P, "outer_lr": 0.7}, "seed": 1},
            )
        )
        self.records.append(
            Joined(
                **self.at(now_s + 0.6, step),
                how="checkpoint" if resumed_from else "fresh",
                lost_tokens=10 * BATCH_TOKENS[self.name] if resumed_from else 0,
                waited_for=(self.peer,) if self.peer else (),
                waited_s=0.6 if self.peer else 0.0,
            )
        )
        if self.peer:
            self.records.append(
                PeerChange(**self.at(now_s + 0.4, step), peer=self.peer, up=True, rtt_s=0.181, incarnation=1)
            )

    def train(self, now_s: float, first: int, last: int) -> float:
        """Steps ``first`` to ``last``; returns when they end."""
        for step in range(first, last + 1):
            seconds = STEP_S[self.name] * self.random.uniform(0.95, 1.1)
            now_s += seconds
            progress = step * RUN_BATCH_TOKENS
            self.records.append(
                StepDone(
                    **self.at(now_s, step),
                    loss_nats=self.loss(step) + self.random.gauss(0, 0.07),
                    step_tokens=BATCH_TOKENS[self.name],
                    step_s=seconds,
                    sync_s=0.004 + 0.01 * (step % H == 0),
                    blocked_s=0.0005 * self.random.random(),
                    learning_rate=3e-3 * min(1.0, (self.steps - step) / (0.2 * self.steps)),
                    progress_tokens=progress,
                )
            )
            if self.peer and (step % H) % (H // P) == 0:
                self.exchange(now_s, step, (step % H) // (H // P))
            if step % (self.steps // 8) == 0:
                self.evaluate(now_s, step)
            if step % 50 == 0:
                stamp = self.at(now_s, step)
                self.records.append(Checkpoint(**stamp, name=f"step-{step}", num_bytes=9_100_000, seconds=0.08))
        return now_s

    def loss(self, step: int) -> float:
        """Mean loss in nats."""
        return 1.35 + 4.2 * math.exp(-step / 30) / (1 + step / 90) + 0.9 / (1 + step / 60)

    def exchange(self, now_s: float, step: int, fragment: int) -> None:
        """A departure, its publication, and the meeting that follows."""
        version = (step - 1) // H
        own = version * P + fragment + 1
        alone = self.name == "us-east" and 62 < now_s < 80
        stamp = self.at(now_s, step)
        departure = Departure(
            **stamp, fragment=fragment, round=version, outer_lr=0.7, momentum=0.4, rms=2e-3,
            published=not alone, peer=None if alone else self.peer, publication=0 if alone else own,
            answer=step % 5 == 0, reason="no living partner" if alone else "",
        )  # fmt: skip
        self.records.append(departure)
        if alone:
            return
        payload = PARAMETERS // P * 17 // 32
        wire = int(payload * 0.9)
        seconds = wire / LIMIT_BYTES_PER_S * 1.1
        age_s = seconds + 0.3 + self.random.expovariate(1 / 0.4)
        arrived = step + math.ceil(age_s / STEP_S[self.name])
        shared = {"fragment": fragment, "peer": self.peer, "epoch": 0, "version": version}
        sent = self.at(now_s + seconds, step + 2)
        self.records += [
            Published(**sent, **shared, publication=own, codec="int4", num_parameters=PARAMETERS // P,
                      payload_bytes=payload, wire_bytes=wire, seconds=seconds),
            Received(**sent, **shared, publication=own, codec="int4", payload_bytes=payload, wire_bytes=wire),
            self.windows(now_s, step, wire, seconds),
        ]  # fmt: skip
        if arrived <= self.steps and not (self.name == "asia" and 57 < now_s < 62):
            share = BATCH_TOKENS[self.name] / RUN_BATCH_TOKENS
            met = self.at(now_s + age_s, arrived)
            self.records.append(
                Meeting(**met, **shared, publication=own, peer_publication=own, weight=share,
                        peer_weight=1 - share, departed_step=step, arrived_step=arrived, age_s=age_s,
                        late=arrived - step > TAU, reference=f"{own:012x}")
            )  # fmt: skip

    def windows(self, now_s: float, step: int, wire: int, seconds: float) -> LinkRate:
        """A publication's bytes, in windows of 100 ms."""
        count = math.ceil(seconds / 0.1)
        each = [int(wire / count * self.random.uniform(0.8, 1.15)) for _ in range(count)]
        first_s = math.floor((now_s - self.origin_s) * 10) / 10
        return LinkRate(
            **self.at(now_s + seconds, step),
            window_s=0.1,
            at_s=tuple(round(first_s + k * 0.1, 1) for k in range(count)),
            sent_bytes=tuple(each),
            received_bytes=tuple(int(x * self.random.uniform(0.5, 1.1)) for x in each),
        )

    def evaluate(self, now_s: float, step: int, *, final: bool = False) -> None:
        """Bits per byte on both held-out sets."""
        for name, floor in FLOOR.items():
            value = {"asia": 1.006, "standard": 0.985}.get(self.name, 1.0) * (
                floor + 3.2 * math.exp(-step / 80) + 0.4 / (1 + step / 100)
            )
            self.records.append(
                Evaluation(
                    **self.at(now_s, step),
                    set_name=name,
                    bits_per_byte=value,
                    standard_error=0.006,
                    num_bytes=262_144,
                    run_tokens=step * RUN_BATCH_TOKENS,
                    manifest_digest="c0ffee1234567890",
                    xz_bits_per_byte=XZ[name],
                    final=final,
                )
            )

    def finish(self, now_s: float) -> None:
        """The last meetings and the last record."""
        self.records.append(PhaseChange(**self.at(now_s, self.steps), phase=Phase.FINISHING))
        self.evaluate(now_s + 2, self.steps, final=True)
        self.records.append(Finished(**self.at(now_s + 3, self.steps), reason="done", joint_digest="9c1e77aa"))

    def lines(self) -> Iterator[bytes]:
        """Its file, line by line."""
        for record in sorted(self.records, key=lambda record: record.wall_s):
            yield msgspec.json.encode(record) + b"\n"

    def save(self, run_dir: Path) -> Path:
        """Write the file into a run directory."""
        path = run_dir / "islands" / self.name / "records.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(self.lines()))
        return path


def joint_islands(rounds: int = 40, *, restart: bool = True, finished: bool = True) -> list[Island]:
    """Both islands of the run: ``asia`` is killed and started again, if ``restart``; alarms, notes, late meetings."""
    east, asia = Island("us-east", "asia", rounds, 1), Island("asia", "us-east", rounds, 2)
    east.start(0.0, 0)
    end_s = east.train(1.0, 1, east.steps)
    asia.start(0.3, 0)
    if restart:
        killed_s = asia.train(1.2, 1, 180)
        asia.records = [record for record in asia.records if record.wall_s <= START_WALL_S + killed_s]
        east.records += [
            PeerChange(**east.at(killed_s + 2, 170), peer="asia", up=False, reason="no byte for 2 s"),
            PeerChange(**east.at(killed_s + 16.4, 215), peer="asia", up=True, rtt_s=0.183, incarnation=2),
            Alarm(**east.at(90.0, 245), what="rms 3.4 times its running median", peer="asia"),
            Note(**east.at(91.0, 247), text="resent publication 3 of fragment 2 after a break"),
            Alarm(**east.at(120.0, 330), what="garbage on the port from an unknown sender", severity="info"),
        ]
        asia.incarnation = 2
        asia.start(killed_s + 16, 170, resumed_from="step-170")
        end_asia_s = asia.train(killed_s + 17, 171, asia.steps)
    else:
        end_asia_s = asia.train(1.2, 1, asia.steps)
    if finished:
        east.finish(max(end_s, end_asia_s))
        asia.finish(max(end_s, end_asia_s))
    return [east, asia]


def standard_island(rounds: int = 40) -> Island:
    """The baseline: the same tokens in one place, after the run."""
    island = Island("standard", None, rounds, 3)
    island.start(260.0, 0)
    island.finish(island.train(261.0, 1, island.steps))
    return island


def write_run(run_dir: Path, rounds: int = 40, *, restart: bool = True, baseline: bool = True) -> Path:
    """A whole run's directory, with its baseline if ``baseline``."""
    for island in joint_islands(rounds, restart=restart):
        island.save(run_dir)
    if baseline:
        standard_island(rounds).save(run_dir / "standard")
    return run_dir
