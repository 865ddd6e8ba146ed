"""One fragment of the ``32b`` preset from departure over TLS on loopback to arrival: seconds and peak memory.

    python bench/fragment_32b.py --json fragment.json
    python bench/fragment_32b.py --parameters 20_000_000

Two processes, one per end, each with random fp32 weights, a slow state and a link of its own. Whole tensors of fragment
0 are kept, the largest first, as far as both ends fit into this machine's memory. What computes takes turns, as if each
end had the machine to itself; the publications cross both ways at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sync_overhead import machine_facts, publish_report

from isthmus.fragments import Entry, Fragment, Kind, cut, entries_of
from isthmus.identity import create_identity
from isthmus.model import Decoder, preset
from isthmus.session.orders import Arrive, Mode
from isthmus.session.slow import SlowState
from isthmus.terms import Header, LinkEvent, PeerUp, PublicationReceived, PublicationSent
from isthmus.transport import LinkSettings, PeerAddress, TcpLink
from isthmus.units import format_bytes, format_count

ENDS = ("us-east", "asia")
RUN = hashlib.sha256(b"fragment_32b").hexdigest()
FRAGMENTS = 24
CODEC = "int4"
OUTER_LR, MOMENTUM = 0.7, 0.5

STATE_BYTES = 4 * 4 + 2 * 0.53
"""Bytes a parameter at one end: fast, slow, velocity, reference; two payloads."""

PASSING_BYTES = 4
"""Bytes a parameter of the largest tensor, at one end at a time: what it is trained by."""

BASE_BYTES = 2 * (400 << 20)
"""Two ends and their link processes without any weights."""

MEMORY_SHARE = 0.9
"""So much of the available memory is used; there may be no swap."""

WAIT_S = 600.0


# -- what is kept of the fragment --


def fragment_0() -> Fragment:
    with torch.device("meta"):
        entries = entries_of(Decoder(preset("32b")))
    return cut(entries, FRAGMENTS)[0]


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def needed_bytes(entries: Sequence[Entry]) -> float:
    """Memory of both ends together."""
    total = sum(entry.numel for entry in entries)
    return BASE_BYTES + len(ENDS) * STATE_BYTES * total + PASSING_BYTES * max(entry.numel for entry in entries)


def keep(entries: Sequence[Entry], fits: Callable[[Sequence[Entry]], bool]) -> tuple[Entry, ...]:
    """As many whole entries as fit, the largest first, in name order."""
    kept: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (-entry.numel, entry.name)):
        if fits([*kept, entry]):
            kept.append(entry)
    return tuple(sorted(kept, key=lambda entry: entry.name))


# -- one end, in a process of its own --


class End:
    """Slow state and link of one end; does what it is told, and says how long that took."""

    def __init__(self, told: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.slot = told["slot"]
        self.name, self.other = ENDS[self.slot], ENDS[1 - self.slot]
        names, whole = set(told["entries"]), fragment_0()
        self.fragment = Fragment(0, tuple(entry for entry in whole.entries if entry.name in names))
        self.round = 0
        self.base_bytes = peak_bytes("self")
        self.link = TcpLink(
            LinkSettings(
                name=self.name,
                run=RUN,
                incarnation=1,
                key_pem=told["key"].encode(),
                certificate_pem=told["certificate"].encode(),
                peers=(PeerAddress(self.other, told["peer_certificate"].encode(), tuple(told["peer_addresses"])),),
                listen="127.0.0.1:0",
            )
        )
        self.link_base_bytes = peak_bytes(self.link.process_id)

    def build(self) -> dict[str, Any]:
        """Weights that both ends begin with, and a slow state over them."""
        generator = torch.Generator().manual_seed(0)
        self.fast = {
            entry.name: torch.empty(entry.shape).uniform_(-0.02, 0.02, generator=generator)
            for entry in self.fragment.entries
        }
        self.slow = SlowState([self.fragment], self.fast, peers=(self.other,), embedding_codec="coded")
        self.generator = generator.manual_seed(1 + self.slot)
        self.reference = self.slow.initial_hashes[0]
        return {}

    def train(self) -> dict[str, Any]:
        """Move the fast weights, each end its own way."""
        for tensor in self.fast.values():
            tensor.add_(torch.empty_like(tensor).uniform_(-1e-3, 1e-3, generator=self.generator))
        return {}

    def depart(self) -> dict[str, Any]:
        self.round += 1
        departed_s = timed(self._outer_step)
        encoded_s = timed(self._encode)
        return {"depart_s": departed_s, "encode_s": encoded_s, "payload_bytes": self.mine.num_bytes}

    def connect(self) -> dict[str, Any]:
        self._await(PeerUp)
        return {}

    def publish(self) -> dict[str, Any]:
        """Send, and receive the other end's; both ends share the machine's monotonic clock."""
        started_s = time.monotonic()
        self.link.publish(self.other, self.mine, self.payload, spread_s=0.0)
        events = self._await(PublicationReceived, PublicationSent)
        received = next(event for event in events if isinstance(event, PublicationReceived))
        sent = next(event for event in events if isinstance(event, PublicationSent))
        self.theirs, self.their_payload = received.signed.header, received.payload
        return {"started_s": started_s, "received_s": self.received_s, "wire_bytes": sent.wire_bytes}

    def arrive(self) -> dict[str, Any]:
        checked_s = timed(lambda: self.slow.check(self.theirs, self.their_payload))
        arrived_s = timed(self._arrive)
        return {"check_s": checked_s, "arrive_s": arrived_s, "reference": self.reference.hex()}

    def leave(self) -> dict[str, Any]:
        peaks = {
            "base_bytes": self.base_bytes,
            "peak_bytes": peak_bytes("self"),
            "link_base_bytes": self.link_base_bytes,
            "link_peak_bytes": peak_bytes(self.link.process_id),
        }
        self.link.close(timeout_s=5.0)
        return peaks

    def _outer_step(self) -> None:
        if not self.slow.is_finite(0):
            raise SystemExit("the random weights are not finite")
        self.slow.depart(0, outer_lr=OUTER_LR, momentum=MOMENTUM)

    def _encode(self) -> None:
        self.payload = self.link.buffer(self.slow.payload_bytes(0, CODEC))
        self.slow.encode(self.other, 0, CODEC, self.payload)
        self.mine = Header(
            run=RUN,
            sender=self.name,
            receiver=self.other,
            fragment=0,
            epoch=0,
            version=self.round - 1,
            sender_incarnation=1,
            receiver_incarnation=1,
            publication=1 << 32 | self.round,
            step=self.round,
            tokens=self.round,
            weight_tokens=1,
            run_tokens=2 * self.round,
            cursor=0,
            reference=self.reference,
            codec=CODEC,
            num_bytes=self.payload.nbytes,
        )

    def _arrive(self) -> None:
        order = Arrive(
            peers=(self.other,),
            fragment=0,
            mine=self.mine,
            theirs=(self.theirs,),
            place=self.slot,
            mode=Mode.CORRECT,
        )
        payloads = [self.payload, self.their_payload]
        self.reference = self.slow.arrive(order, payloads if self.slot == 0 else payloads[::-1])

    def _await(self, *kinds: type[LinkEvent]) -> list[LinkEvent]:
        """Events until one of each kind has come."""
        events: list[LinkEvent] = []
        deadline_s = time.monotonic() + WAIT_S
        while not all(any(isinstance(event, kind) for event in events) for kind in kinds):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{self.name}: no {[kind.__name__ for kind in kinds]} within {WAIT_S:.0f} s")
            self.link.wait(1.0)
            came = self.link.poll()
            if any(isinstance(event, PublicationReceived) for event in came):
                self.received_s = time.monotonic()
            events += came
        return events


def serve() -> None:
    """Be one end: a line of JSON in, a line of JSON out."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    end = End(json.loads(sys.stdin.readline()))
    answer({"address": end.link.listen_address})
    for line in sys.stdin:
        answer(getattr(end, json.loads(line))())


def answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def peak_bytes(process: int | str) -> int:
    """The most memory that a process held resident so far, memory it shares with others included."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# -- both ends --


@dataclass
class Remote:
    """One end as the parent speaks to it."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, told: dict[str, Any]) -> Remote:
        command = [sys.executable, __file__, "--end"]
        remote = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1))
        remote.tell(told)
        return remote

    def tell(self, what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an end was lost, exit code {self.process.wait()}; perhaps memory: see --parameters")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self, what: str) -> dict[str, Any]:
        self.tell(what)
        return self.hear()


def start_ends(entries: Sequence[Entry]) -> list[Remote]:
    identities = [create_identity(name) for name in ENDS]
    remotes: list[Remote] = []
    addresses: list[str] = []
    for slot, identity in enumerate(identities):
        told = {
            "slot": slot,
            "entries": [entry.name for entry in entries],
            "key": identity.key_pem.decode(),
            "certificate": identity.certificate_pem.decode(),
            "peer_certificate": identities[1 - slot].certificate_pem.decode(),
            "peer_addresses": addresses,
        }
        remotes.append(Remote.start(told))
        addresses = [remotes[-1].hear()["address"]]
    return remotes


def measure(ends: Sequence[Remote], rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Seconds of every round, the ends' means; and the ends' memory."""
    for end in ends:
        end.ask("connect")
        end.ask("build")
    results = []
    for _ in range(rounds):
        for end in ends:
            end.ask("train")
        departed = [end.ask("depart") for end in ends]
        for end in ends:
            end.tell("publish")
        crossed = [end.hear() for end in ends]
        arrived = [end.ask("arrive") for end in ends]
        if arrived[0]["reference"] != arrived[1]["reference"]:
            raise SystemExit("the ends hold different references after a meeting")
        link_s = max(end["received_s"] for end in crossed) - min(end["started_s"] for end in crossed)
        both = [{**depart, **arrive} for depart, arrive in zip(departed, arrived, strict=True)]
        seconds = {
            key: statistics.mean(end[key] for end in both) for key in ("depart_s", "encode_s", "check_s", "arrive_s")
        }
        results.append(
            {
                **seconds,
                "link_s": link_s,
                "payload_bytes": departed[0]["payload_bytes"],
                "wire_bytes": statistics.mean(end["wire_bytes"] for end in crossed),
                "reference": arrived[0]["reference"],
            }
        )
    memory = [end.ask("leave") for end in ends]
    for end in ends:
        assert end.process.stdin is not None
        end.process.stdin.close()
        end.process.wait(60)
    return results, memory


STEPS = {
    "depart_s": "departure (finite check, outer step)",
    "encode_s": f"encode ({CODEC}, rms included)",
    "link_s": "link, both ways at once",
    "check_s": "arrival: check",
    "arrive_s": "arrival: merge, correct, hash",
}


def print_result(rounds: list[dict[str, Any]], memory: list[dict[str, Any]], parameters: int) -> None:
    print(f"{'seconds, medians over ' + str(len(rounds)) + ' rounds':40}{'s':>9}{'GB/s of fp32':>14}")
    for key, title in STEPS.items():
        taken_s = statistics.median(each[key] for each in rounds)
        print(f"{title:40}{taken_s:>9.3f}{4e-9 * parameters / taken_s:>14.2f}")
    payload, wire = rounds[-1]["payload_bytes"], rounds[-1]["wire_bytes"]
    rate = statistics.median(each["payload_bytes"] / each["link_s"] for each in rounds)
    print(
        f"link: {rate / 1e9:.3f} GB/s of payload each way; {format_bytes(payload)} of payload, "
        f"{format_bytes(wire)} sent, {wire / parameters:.4f} bytes a parameter"
    )
    for name, end in zip(ENDS, memory, strict=True):
        for what, prefix in (("end", ""), ("link process", "link_")):
            peak, base = end[f"{prefix}peak_bytes"], end[f"{prefix}base_bytes"]
            print(
                f"peak memory, {name} {what}: {format_bytes(peak)}, {(peak - base) / parameters:.2f} bytes a parameter "
                f"above the {format_bytes(base)} it began with"
            )
    print("both ends hold the same reference after every round: yes")


def main() -> None:
    args = parse_arguments()
    if args.end:
        serve()
        return
    facts, available = machine_facts(), available_bytes()
    whole = fragment_0()
    if args.parameters is None:
        entries = keep(whole.entries, lambda kept: needed_bytes(kept) <= MEMORY_SHARE * available)
    else:
        entries = keep(whole.entries, lambda kept: sum(entry.numel for entry in kept) <= args.parameters)
    if not any(entry.kind is Kind.PARAMETER and entry.policy != "lossless" for entry in entries):
        raise SystemExit(f"nothing fits: {format_bytes(available)} of memory available, --parameters {args.parameters}")
    parameters = sum(entry.numel for entry in entries)
    needed = needed_bytes(entries)
    print(
        f"fragment 0 of {FRAGMENTS} of the 32b preset: {len(entries)} of {len(whole.entries)} tensors, "
        f"{format_count(parameters)} of {format_count(whole.numel)} parameters ({parameters / whole.numel:.1%})\n"
        f"memory for both ends at {STATE_BYTES:.1f} bytes a parameter each, and {PASSING_BYTES} a parameter of the "
        f"largest tensor in passing: {format_bytes(needed)} of {format_bytes(available)} available"
    )
    ends = start_ends(entries)
    try:
        rounds, memory = measure(ends, args.rounds)
    finally:
        for end in ends:
            end.process.kill()
            end.process.wait()
    print_result(rounds, memory, parameters)
    report = {
        "parameters": parameters,
        "parameters_of_fragment": whole.numel,
        "tensors": len(entries),
        "tensors_of_fragment": len(whole.entries),
        "available_bytes": available,
        "needed_bytes": needed,
        "rounds": rounds,
        "memory": dict(zip(ENDS, memory, strict=True)),
        "machine": facts,
    }
    publish_report(report, args.json)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, help="at most so many (default: as many as memory allows)")
    parser.add_argument("--rounds", type=int, default=3, help="meetings, one after the other")
    parser.add_argument("--json", type=Path, help="also write the JSON to this file")
    parser.add_argument("--end", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
