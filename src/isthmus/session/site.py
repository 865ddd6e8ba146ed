"""Where one island lives: its files, its model, its clock, and how its link is opened."""

from __future__ import annotations

import hashlib
import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import isthmus
from isthmus.checkpoint import LocalStorage, incarnation_at, raise_incarnation
from isthmus.clock import Clock
from isthmus.config import LoadedRun, load_run, write_roster
from isthmus.errors import ConfigError, IdentityError
from isthmus.identity import verify
from isthmus.island import Alone, Ranks, TorchRanks, at_gateway, open_ranks, together
from isthmus.observe import records
from isthmus.observe.journal import RecordWriter
from isthmus.observe.narrator import Narrator
from isthmus.roster import Roster
from isthmus.schedule import OuterPlan, OuterStep
from isthmus.session.accord import Accord
from isthmus.session.capacity import wait_for_window, why_leave
from isthmus.session.cutting import Cut
from isthmus.session.effects import Effects
from isthmus.session.engine import Engine
from isthmus.session.keeping import Keeper, SharedKeeper
from isthmus.session.leasing import Lease
from isthmus.session.memory import Plan
from isthmus.session.notice import Notice
from isthmus.session.rosters import WATCH_S, RosterFile, RosterWatch, WatchingLink, heard_roster
from isthmus.session.shares import SharedLink
from isthmus.session.sturdy import SturdyLink
from isthmus.session.trainee import Training
from isthmus.terms import EndPlan, SignedHeader
from isthmus.transport import Link, LinkSettings, PeerAddress, TcpLink
from isthmus.wire import sign_plan, signing_bytes, verify_plan

log = logging.getLogger("isthmus")

OpenLink = Callable[[LoadedRun, int], Link]
"""Makes the link of one incarnation of an island."""


Dial = Mapping[str, tuple[str, ...]]
"""Where peers are found, by name."""


def open_tcp_link(loaded: LoadedRun, incarnation: int, *, dial: Dial | None = None) -> Link:
    """The TLS link of one incarnation of an island.

    Args:
        loaded: The files of the run.
        incarnation: The number of this start.
        dial: Where peers are found in this start, in place of what the files say.

    Raises:
        LinkError: The address to listen on is taken, or the link's process cannot be started.
    """
    return TcpLink(link_settings(loaded, incarnation, dial=dial or {}))


def link_settings(loaded: LoadedRun, incarnation: int, *, dial: Dial) -> LinkSettings:
    """What the files of the run say to the link of one incarnation of an island."""
    link = loaded.island.link
    found = {**link.dial, **dial}
    peers = tuple(
        PeerAddress(peer.name, peer.certificate_pem, found.get(peer.name, peer.addresses))
        for peer in loaded.roster.peers(loaded.member.name)
    )
    return LinkSettings(
        name=loaded.member.name,
        run=loaded.run.hash,
        incarnation=incarnation,
        key_pem=loaded.identity.key_pem,
        certificate_pem=loaded.identity.certificate_pem,
        peers=peers,
        listen=link.listen,
        rate_bits_per_s=None if link.rate_mbit is None else link.rate_mbit * 1e6,
        heartbeat_s=link.heartbeat_s,
        timeout_s=link.silence_s,
        handshake_timeout_s=link.handshake_s,
        start_timeout_s=link.start_s,
    )


@dataclass
class Site:
    """All that an engine is made of, again after every restart.

    ``precision`` and ``manifest_digest`` go into the records. All ranks of an island make one alike; records, link,
    lock and incarnation are the gateway's.
    """

    loaded: LoadedRun
    model: Cut
    training: Training
    clock: Clock
    open_link: OpenLink = open_tcp_link
    precision: str = ""
    manifest_digest: str = ""
    ranks: Ranks = field(default_factory=Alone)
    lease: Lease | None = None
    storage: LocalStorage = field(init=False)
    writer: RecordWriter | None = field(init=False)
    narrator: Narrator = field(init=False)
    accord: Accord = field(init=False)
    notice: Notice = field(init=False)
    keeper: Keeper | None = field(init=False)
    watch: RosterWatch | None = field(init=False)
    newer: Roster | None = field(default=None, init=False)
    _started_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.storage = LocalStorage(self.loaded.own_paths.checkpoints)
        self.keeper = (
            SharedKeeper(self.storage, self.loaded.island.checkpoint.keep, self.clock, self.ranks, background)
            if isinstance(self.ranks, TorchRanks) and isinstance(background := open_ranks(), TorchRanks)
            else None
        )
        self.writer = at_gateway(self.ranks, lambda: RecordWriter(self.loaded.own_paths.records, self.clock))
        self.narrator = Narrator(self.loaded.member.name)
        self.accord = Accord(self.ranks, self.clock)
        leave = self.loaded.island.leave
        file = None if leave.notice_file is None else self.loaded.paths.root / leave.notice_file
        roster = RosterFile(self.loaded.paths.root, self.loaded.member.name)
        self.watch = at_gateway(self.ranks, lambda: RosterWatch(roster, WATCH_S))
        self.notice = Notice(
            file,
            leave.notice_url,
            contains=leave.notice_contains,
            headers=leave.notice_headers,
            poll_s=leave.notice_every_s,
        )

    def open(self, state: Mapping[str, Any] | None, *, resumed_from: str | None, waits: bool = True) -> Engine:
        """Raise the incarnation, open the link and make the engine; writes the first record of this start.

        Args:
            state: What to go on from.
            resumed_from: What that is, for the records.
            waits: Whether the island waits for others' HELLO before it trains.
        """
        root = LocalStorage(self.loaded.own_paths.root)
        now = incarnation_at(self.clock.wall_s())
        raised = at_gateway(self.ranks, lambda: raise_incarnation(root, at_least=now))
        incarnation = int(*self.ranks.largest(raised or 0))
        effects = Effects(
            link=self._link(incarnation),
            clock=self.clock,
            storage=self.storage,
            sink=self.sink,
            codec=self.loaded.run.mixing.codec,
            layout_lines=self.model.layout_lines,
            check_held=self.signed_here,
            sign_plan=lambda plan: sign_plan(self.loaded.identity, plan),
            check_plan=self.is_signed,
            hear_roster=self.hear_roster,
            roster_document=self.loaded.roster.model_dump_json,
            away=self.away,
            accord=None if self.ranks.size == 1 else self.accord,
            keep_checkpoints=self.loaded.island.checkpoint.keep,
            keeper=self.keeper,
        )
        try:
            plan = plan_of(self.loaded, self.model)
            plan = plan if waits else replace(plan, join_wait_s=0.0)
            engine = Engine(plan, self.model.slow, self.training, effects, incarnation, state)
        except BaseException:
            effects.link.close(timeout_s=0.0)
            raise
        facts = {"precision": self.precision, "manifest_digest": self.manifest_digest}
        self.sink(run_started(self.loaded, engine, **facts, resumed_from=resumed_from))
        return engine

    def close(self) -> None:
        """Close the records, and look for notices no more."""
        self.notice.close()
        if self.watch is not None:
            self.watch.close()
        if self.writer is not None:
            self.writer.close()

    def _link(self, incarnation: int) -> Link:
        """The link, which the gateway alone opens."""
        own = at_gateway(self.ranks, lambda: self._watching(SturdyLink(self.open_link(self._found(), incarnation))))
        if own is not None and self.ranks.size == 1:
            return own
        return SharedLink(own, self.accord, self.model.slow.shares)

    def _watching(self, link: Link) -> Link:
        watches = [watch for watch in (self.watch, self.lease) if watch is not None]
        return WatchingLink(link, watches) if watches else link

    def _found(self) -> LoadedRun:
        """The run's files, with where those that hold other leases are reached; ``link.dial`` comes before that."""
        addresses = {} if self.lease is None else self.lease.addresses()
        link = self.loaded.island.link
        dial = link.model_copy(update={"dial": addresses | link.dial})
        return replace(self.loaded, island=self.loaded.island.model_copy(update={"link": dial}))

    def away(self) -> frozenset[str]:
        """The islands that are not there by their windows, as the gateway's clock has it, or that nobody leases."""
        leased = frozenset() if self.lease is None else self.lease.away
        names = ",".join(sorted(self.loaded.roster.away(self.clock.wall_s()) | leased))
        return frozenset(filter(None, self.ranks.collect(names.encode())[0].decode().split(",")))

    def wait_for_window(self) -> None:
        """Wait until this island's own window opens; the others do not wait for it meanwhile."""
        self._started_s = wait_for_window(self.loaded.member, self.clock)

    @property
    def must_leave(self) -> str | None:
        """Why the island is to leave now: a notice, its name lost, or the end of its window."""
        grace_s = self.loaded.island.leave.grace_s
        lost = None if self.lease is None else self.lease.lost
        closes = why_leave(self.loaded.member, self.clock, started_s=self._started_s, grace_s=grace_s)
        return self.notice.reason or lost or closes

    def hear_roster(self, document: str) -> bool:
        """Whether this is a newer roster of this run; the island goes by it from its next step boundary on."""
        mine = self.newer or self.loaded.roster
        found = heard_roster(document, mine, owner=self.loaded.run.run.owner)
        if found is None:
            return False
        self.newer = found
        return True

    def take_roster(self) -> bool:
        """Go by the newer roster from the next ``open`` on; False if this island is not in it any more."""
        assert self.newer is not None
        roster, self.newer = self.newer, None
        member = roster.find(self.loaded.member.name)
        self.loaded = replace(self.loaded, roster=roster, member=member or self.loaded.member)
        self.model.slow.references.keep([peer.name for peer in roster.peers(self.loaded.member.name)])
        return member is not None

    def store_roster(self) -> str | None:
        """Put the roster in force into the run directory; what is wrong if that fails."""

        def store() -> str | None:
            try:
                write_roster(self.loaded.paths, self.loaded.roster)
            except OSError as error:
                return f"version {self.loaded.roster.version} of the roster cannot be written: {error}"
            return None

        return at_gateway(self.ranks, store)

    def sink(self, record: records.Record) -> None:
        """Write a record, and log what of it a person should hear; the gateway does so for all ranks."""
        if self.writer is None:
            return
        self.writer.write(record)
        for severity, line in self.narrator.tell(record):
            log.log(logging.INFO if severity == "info" else logging.WARNING, "%s", line)

    def is_signed(self, plan: EndPlan, signature: bytes) -> bool:
        """Whether a plan for the end of this run is signed by the island of the roster that made it."""
        author = self.loaded.roster.find(plan.author)
        if author is None or plan.run != self.loaded.run.hash:
            return False
        try:
            verify_plan(author.certificate_pem, plan, signature)
        except IdentityError:
            return False
        return True

    def signed_here(self, signed: SignedHeader) -> bool:
        """Whether a header is this island's own."""
        own = (self.loaded.member.name, self.loaded.run.hash)
        try:
            verify(self.loaded.identity.certificate_pem, signing_bytes(signed.header, signed.root), signed.signature)
        except IdentityError:
            return False
        return (signed.header.sender, signed.header.run) == own


def read_files(ranks: Ranks, run_dir: Path, name: str) -> LoadedRun:
    """The files of a run, which must say the same to all ranks."""
    loaded = together(ranks, lambda: load_run(run_dir, name))
    digests = ranks.collect(_files_digest(loaded))
    differ = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if differ:
        raise ConfigError(
            f"the ranks of island {name} have read different run files",
            got=f"other settings than rank 0's at ranks {differ}",
            wanted="the same run.toml, island.toml and roster for all",
            mend="Give all machines of the island the same run directory.",
        )
    return loaded


def _files_digest(loaded: LoadedRun) -> bytes:
    """SHA-256 of what the files of a run say to one island."""
    said = (loaded.run.model_dump_json(), loaded.island.model_dump_json(), loaded.roster.model_dump_json())
    return hashlib.sha256("\n".join(said).encode()).digest()


def run_started(
    loaded: LoadedRun, engine: Engine, *, precision: str, manifest_digest: str, resumed_from: str | None
) -> records.RunStarted:
    """The first record of an island's start."""
    run, island = loaded.run, loaded.island
    rate_mbit = island.link.rate_mbit
    return records.RunStarted(
        **engine.journal.stamp(),
        run=run.hash,
        run_name=run.run.name,
        isthmus_version=isthmus.__version__,
        torch_version=str(torch.__version__),
        python_version=platform.python_version(),
        slot=loaded.member.slot,
        incarnation=engine.incarnation,
        batch_sequences=island.island.batch_size,
        batch_tokens=island.island.batch_size * run.train.sequence_length,
        precision=precision or island.island.precision,
        device=island.island.device,
        codec=run.mixing.codec,
        window_steps=loaded.window_steps,
        num_fragments=run.mixing.fragments,
        delay_steps=run.mixing.flight_steps,
        num_parameters=sum(fragment.numel for fragment in engine.slow.fragments),
        token_budget=run.run.token_budget,
        manifest_digest=manifest_digest,
        rate_limit_bytes_per_s=None if rate_mbit is None else rate_mbit * 1e6 / 8,
        resumed_from=resumed_from,
        command=" ".join(sys.argv),
        config={"run": run.model_dump(mode="json"), "island": island.model_dump(mode="json")},
    )


def plan_of(loaded: LoadedRun, model: Cut) -> Plan:
    """The settings that the core decides by; an island with its own H flies as large a part of its window."""
    run, mixing = loaded.run, loaded.run.mixing
    name = loaded.member.name
    return Plan(
        run=run.hash,
        name=name,
        slot=loaded.member.slot,
        peers={peer.name: peer.slot for peer in loaded.roster.peers(name)},
        layout=model.layout,
        initial=model.slow.initial_hashes,
        window_steps=loaded.window_steps,
        flight_steps=round(mixing.flight_steps * loaded.window_steps / mixing.window_steps),
        outer=OuterPlan(
            OuterStep(mixing.outer_lr, mixing.outer_momentum),
            calm_rounds=mixing.calm_rounds,
            calm_share=mixing.calm_share,
        ),
        token_budget=run.run.token_budget,
        save_every_steps=loaded.island.checkpoint.every_steps,
        join_wait_s=loaded.island.join.wait_s,
        finish_wait_s=loaded.island.finish.wait_s,
        hello_every_s=loaded.island.link.ask_again_s,
        rule=mixing.rule,
        meetings=mixing.meetings,
        roster=loaded.roster.version,
    )
