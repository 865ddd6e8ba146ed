"""Performs the core's orders on tensors, link and storage; never waits.

The engine is all of a session that the lab needs: many of them run in one process on a virtual clock. ``island.py``
adds what waits and what a user touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import msgspec

from isthmus.errors import CheckpointError, CodecError
from isthmus.fragments import first_difference
from isthmus.observe import records
from isthmus.session.coding import Coder
from isthmus.session.core import Core
from isthmus.session.effects import Effects, Trainee
from isthmus.session.frozen import FORMAT, Live, check_state
from isthmus.session.journal import Journal
from isthmus.session.keeping import Keeper, PromptKeeper
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import (
    ArrivalRefused,
    Arrive,
    Arrived,
    Clear,
    Depart,
    Departed,
    DepartureRefused,
    Event,
    Order,
    Publish,
    Published,
    Resend,
    Restore,
    Result,
    Save,
    Saved,
    Send,
    Warn,
    Withheld,
)
from isthmus.session.outgoing import Outgoing
from isthmus.session.payloads import Payloads
from isthmus.session.slow import SlowState, merge_weights
from isthmus.terms import (
    NO_REFERENCE,
    Ending,
    EndPlan,
    Hello,
    Layout,
    LinkEvent,
    LinkSample,
    MessageReceived,
    PeerDown,
    PeerUp,
    Phase,
    PublicationReceived,
    PublicationSent,
    Pulse,
    RosterNews,
    SignedHeader,
)


@dataclass
class _Departing:
    """What is known of a departure until its record is written."""

    outer: tuple[float, float]
    rms: float | None = None
    published: Published | None = None


@dataclass
class Engine:
    """One island: core, slow state, link and storage.

    Args:
        plan: The settings.
        slow: The slow state.
        trainee: What is saved with it.
        effects: What the engine acts on.
        incarnation: The number of this start, already durable.
        state: What ``state_dict`` gave before, to go on from; None starts fresh.

    Raises:
        CheckpointError: The state is of another run.
        ShapeError: The state is of another model.
    """

    plan: Plan
    slow: SlowState
    trainee: Trainee
    effects: Effects
    incarnation: int
    state: InitVar[Mapping[str, Any] | None] = None
    misfit: str | None = field(default=None, init=False)

    def __post_init__(self, state: Mapping[str, Any] | None) -> None:
        self._payloads = Payloads(self.slow.shares, self.slow.side)
        self._coder = Coder(self.slow, self.effects.link, self.effects.codec)
        self.core = Core(
            self.plan,
            Memory.fresh(self.plan) if state is None else self._restore(state),
            incarnation=self.incarnation,
            fresh=state is None,
            layout_lines=self.effects.layout_lines,
        )
        self.core.company.away = self.effects.away()
        elements = tuple(fragment.numel for fragment in self.slow.fragments)
        self.journal = Journal(self.plan.name, self.effects.clock, self.memory, self.effects.sink, elements)
        self._departing: dict[int, _Departing] = {}
        self._leaves = False
        reaches = self.core.company.reaches
        self._outgoing = Outgoing(self.plan, self._payloads, self.effects.link, reaches)

    @property
    def memory(self) -> Memory:
        """What the core remembers."""
        return self.core.memory

    @property
    def phase(self) -> Phase:
        """Where the island is in its run."""
        return self.core.phase

    def now_s(self) -> float:
        """The time that decisions are made by, the same at all ranks."""
        accord = self.effects.accord
        return self.effects.clock.now_s() if accord is None else accord.now_s()

    def trained(self, *, tokens: int, cursor: int) -> None:
        """Count one training step, then let the core act at this step boundary.

        Raises:
            ShapeError: A parameter was moved or rebound since the island joined.
        """
        self.slow.check_place()
        self.core.trained(tokens=tokens, cursor=cursor)
        if self.effects.accord is not None:
            self.effects.accord.decided(msgspec.msgpack.encode((tokens, cursor)))
        self._outgoing.stepped(self.effects.clock.now_s())
        self.pump()

    def finish(self) -> None:
        """Begin the end of the run; ``pump`` until ``phase`` is done."""
        self.core.company.away = self.effects.away()
        self.core.finish(self.now_s())
        self.journal.write(records.PhaseChange(**self.journal.stamp(), phase=self.phase))
        self.pump()

    def leave(self) -> None:
        """Publish what there is, as fast as the link can; ``has_sent`` tells when all has gone."""
        self._leaves = True
        self.core.leave()
        self.pump()
        self._outgoing.hand_over_landed(hurry=True)

    @property
    def has_sent(self) -> bool:
        """Whether nothing is on its way out."""
        return self._outgoing.is_empty

    def pump(self) -> None:
        """Take in all events and perform all orders, until nothing is left to do now. Never waits."""
        before = self.core.phase
        if self.effects.keeper is not None:
            self._note_saves(self.effects.keeper)
        self._outgoing.hand_over_landed(hurry=self._hurries)
        events = self.effects.link.poll()
        self.journal.heard(events)
        results: list[Event] = [self._admit(event) for event in events if not isinstance(event, LinkSample)]
        cursor = self.memory.cursor
        acted = False
        while orders := self.core.advance(self.memory.step, results, self.now_s()):
            if self.effects.accord is not None:
                self.effects.accord.decided(msgspec.msgpack.encode(orders))
            results = [result for order in orders if (result := self._perform(order)) is not None]
            acted = True
        if acted or events:
            self._payloads.sweep(self.plan.name, self.memory)
        self._write_departures()
        if self.memory.cursor != cursor:
            self.trainee.seek(self.memory.cursor)
        if self.core.phase is not before:
            self.journal.write(records.PhaseChange(**self.journal.stamp(), phase=self.core.phase))

    def state_dict(self) -> dict[str, Any]:
        """All that a restart must not forget; to be stored before the next change."""
        return {
            "format": FORMAT,
            "run": self.plan.run,
            "memory": self.memory.encode(),
            "slow": self.slow.state_dict(),
            "payloads": self._payloads.state_dict(),
            "rms": self._coder.state_dict(),
            "trainee": self.trainee.state_dict(),
        }

    def freeze(self) -> dict[str, Any]:
        """All of it as it stands between two steps; to be stored before the next change.

        An engine made of it as of a checkpoint, which then ``thaw``s it, goes on as if this one had never stopped.
        """
        live = Live(
            core=self.core.freeze(),
            journal=self.journal.freeze(),
            misfit=self.misfit,
            under_way=self._outgoing.under_way,
            steps_s=list(self._outgoing.steps_s),
            stepped_at_s=self._outgoing.stepped_at_s,
        )
        return {**self.state_dict(), "live": live.encode()}

    def thaw(self, frozen: Mapping[str, Any]) -> None:
        """Take from ``frozen``, of which this engine was made, also what a restart forgets."""
        live = Live.decode(frozen["live"])
        self.core.thaw(live.core, msgspec.msgpack.decode(frozen["memory"], type=Memory))
        self.journal.thaw(live.journal)
        self.misfit, self._outgoing.under_way = live.misfit, live.under_way
        self._outgoing.steps_s.extend(live.steps_s)
        self._outgoing.stepped_at_s = live.stepped_at_s

    def save(self, *, wait: bool = True) -> bool:
        """Write a checkpoint; a full disk is an alarm, not the end: training goes on and the old one stays.

        Args:
            wait: Until it is durable; otherwise several ranks write it while they train. All of them make the call.

        Returns:
            Whether it is durable; of one that is not waited for, False.
        """
        effects = self.effects
        keeper = effects.keeper or PromptKeeper(effects.storage, effects.keep_checkpoints, effects.clock)
        try:
            keeper.save(self.memory.step, self.state_dict(), wait=wait)
        except CheckpointError as error:  # the same at all ranks
            self._warn(f"no checkpoint was written: {error}", severity="error")
        return self._note_saves(keeper) and wait

    def finish_saves(self, timeout_s: float) -> None:
        """Wait for a save that is under way, and write down how it ended."""
        if self.effects.keeper is not None:
            self.effects.keeper.close(timeout_s)
            self._note_saves(self.effects.keeper)

    def _note_saves(self, keeper: Keeper) -> bool:
        """Write down the saves that have ended; whether the last of them is stored."""
        ended = keeper.ended()
        for kept in ended:
            self.journal.saved(kept)
        return bool(ended) and ended[-1].stored

    def _restore(self, state: Mapping[str, Any]) -> Memory:
        check_state(state, self.plan.run)
        self.slow.load_state_dict(state["slow"])
        self._payloads.load_state_dict(state["payloads"])
        self._coder.load_state_dict(state["rms"])
        self.trainee.load_state_dict(state["trainee"])
        memory = Memory.decode(state["memory"], self.plan)
        for peer, fragment, edge in list(memory.all_edges()):
            if not self.slow.references.has(peer, fragment):  # it joined the roster after all others were met
                self.slow.clear(peer, fragment)
                memory.edges[peer][fragment] = edge.change(reference=NO_REFERENCE)
        return memory

    def _admit(self, event: LinkEvent) -> LinkEvent:
        """Note payloads and what is under way; take from a HELLO the claim to hold what this island never signed."""
        match event:
            case PublicationReceived(_, signed, payload):
                self._payloads.put(signed.header, payload)
                if self.slow.side is not None and self.slow.fits(signed.header, payload):
                    self._payloads.bring(signed.header)
            case PublicationSent(peer, signed):
                self._outgoing.sent(peer, signed.header.publication)
            case PeerUp(peer) | PeerDown(peer):
                self._outgoing.link_changed(peer)
            case MessageReceived(peer, Pulse(roster=version)) if version < self.plan.roster:
                self.effects.link.send(peer, RosterNews(self.effects.roster_document()))
            case MessageReceived(peer, RosterNews(document) as news) if self.effects.hear_roster(document):
                for other in self.core.company.living:
                    if other != peer:
                        self.effects.link.send(other, news)
            case MessageReceived(peer, Layout(entries)):
                self.misfit = first_difference(self.effects.layout_lines, entries)
                self._warn(f"{peer} trains another model: {self.misfit}; not trading with it", peer, severity="error")
            case MessageReceived(peer, Hello(held=SignedHeader() as held) as hello) if not self.effects.check_held(
                held
            ):
                self._warn(f"{peer} showed a header as this island's that this island never signed", peer)
                return MessageReceived(peer, msgspec.structs.replace(hello, held=None))
            case MessageReceived(peer, Ending(plan=EndPlan() as plan) as ending) if not self.effects.check_plan(
                plan, ending.signature
            ):
                self._warn(f"{peer} showed a plan for the end that {plan.author} did not sign", peer)
                return MessageReceived(peer, msgspec.structs.replace(ending, plan=None, signature=b""))
            case _:
                pass
        return event

    def _perform(self, order: Order) -> Result | None:
        match order:
            case Send(peer, Ending() as ending):
                self.effects.link.send(peer, self._signed(ending))
            case Send(peer, message):
                self.effects.link.send(peer, message)
            case Depart(fragment, outer_lr, momentum):
                return self._depart(fragment, outer_lr, momentum)
            case Publish():
                return self._publish(order)
            case Resend(header):
                self._outgoing.hand_over(header, hurry=self._hurries)
            case Restore(fragment):
                self.slow.restore(fragment)
            case Arrive():
                return self._arrive(order)
            case Clear(peer, fragment):
                self.slow.clear(peer, fragment)
                self._coder.forget(peer, fragment)
            case Save(durable):
                stored = self.save(wait=durable)
                return Saved(stored) if durable else None
            case Warn(what, peer):
                self._warn(what, peer)
        return None

    def _signed(self, ending: Ending) -> Ending:
        """With this island's signature on a plan of its own."""
        plan = ending.plan
        if plan is None or plan.author != self.plan.name:
            return ending
        return msgspec.structs.replace(ending, signature=self.effects.sign_plan(plan))

    def _depart(self, fragment: int, outer_lr: float, momentum: float) -> Result:
        if not self.slow.is_finite(fragment):
            return DepartureRefused(fragment, "a fast weight is not finite; the slow weights are kept as they were")
        self.slow.depart(fragment, outer_lr=outer_lr, momentum=momentum)
        self._departing[fragment] = _Departing((outer_lr, momentum))
        return Departed(fragment)

    def _publish(self, order: Publish) -> Result:
        header = order.headers[0]
        try:
            coded = self._coder.code(header)
        except CodecError as error:
            return Withheld(header.receiver, header.fragment, str(error))
        whole = tuple(each.coded(coded.codec, coded.num_bytes) for each in order.headers)
        self._payloads.put(whole[0], coded.payload, coded.landing)
        self._outgoing.add(whole)
        if self.slow.side is None:
            self._outgoing.hand_over_landed(hurry=self._hurries)
        published = Published(whole, order.answer)
        departing = self._departing.get(header.fragment)
        if departing is not None:
            departing.rms, departing.published = coded.rms, published
        return published

    def _arrive(self, order: Arrive) -> Result:
        for peer, header in zip(order.peers, order.theirs, strict=True):
            try:
                self.slow.check(header, self._payloads.get(header))
            except CodecError as error:
                return ArrivalRefused(peer, order.fragment, str(error))
        reference = self.slow.arrive(order, [self._payloads.near(header) for header in order.headers])
        self.journal.met(order, merge_weights(order), reference, on_time_steps=self._on_time_steps)
        return Arrived(order.peers, order.fragment, reference)

    @property
    def _hurries(self) -> bool:
        """Whether what is published should be sent as fast as the link can: islands wait for it."""
        return self._leaves or self.phase is not Phase.TRAINING

    @property
    def _on_time_steps(self) -> int:
        """A publication has its slot to cross the link, and its flight steps to be answered."""
        return -(-self.plan.window_steps // len(self.plan.initial)) + self.plan.flight_steps

    def _write_departures(self) -> None:
        for fragment, departing in self._departing.items():
            published = departing.published
            self.journal.departed(
                fragment,
                departing.outer,
                departing.rms,
                published.headers[0] if published else None,
                answer=bool(published and published.answer),
            )
        self._departing.clear()

    def _warn(self, what: str, peer: str | None = None, *, severity: records.Severity = "warning") -> None:
        self.journal.write(records.Alarm(**self.journal.stamp(), what=what, peer=peer, severity=severity))
