"""A partner that publishes what cannot be used costs a healthy island one alarm, not a step and not a weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from isthmus.errors import ShapeError
from isthmus.observe import records
from isthmus.session.waiting import Waiter
from isthmus.terms import Header, LinkEvent, Phase, PublicationReceived, SignedHeader
from isthmus.transport import LinkQuality, MemoryLink
from worlds import Settings, SmallWorld, Toy

SETTINGS = Settings(window_steps=6, flight_steps=4, budget_steps=50)

Tamper = Callable[[Header, bytearray], tuple[Header, bytes]]


class TamperedLink:
    """A memory link on which what is received from step ``from_step`` on is rewritten, once."""

    def __init__(self, inner: MemoryLink, tamper: Tamper, from_step: int) -> None:
        self._inner, self._tamper, self._from_step = inner, tamper, from_step
        self.tampered: list[Header] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def poll(self) -> list[LinkEvent]:
        return [self._rewritten(event) for event in self._inner.poll()]

    def _rewritten(self, event: LinkEvent) -> LinkEvent:
        if not isinstance(event, PublicationReceived) or self.tampered or event.signed.header.step < self._from_step:
            return event
        signed = event.signed
        header, payload = self._tamper(signed.header, bytearray(event.payload))
        self.tampered.append(header)
        return PublicationReceived(event.peer, SignedHeader(header, signed.root, signed.signature), memoryview(payload))


def world_with_bad_partner(tamper: Tamper, codec: str = "int4") -> tuple[SmallWorld, TamperedLink]:
    """A pair of which ``a`` receives one publication of ``b``'s otherwise than ``b`` meant it."""
    links: list[TamperedLink] = []

    def link(inner: MemoryLink) -> MemoryLink | TamperedLink:
        if inner.name != "a":
            return inner
        links.append(TamperedLink(inner, tamper, from_step=12))
        return links[-1]

    world = SmallWorld("ab", dataclasses.replace(SETTINGS, codec=codec), link=link).start()
    return world, links[0]


def not_a_number(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    width = {"int4": np.uint16, "int8": np.uint16, "bf16": np.uint16, "fp32": np.uint32}[header.codec]
    numbers = np.frombuffer(payload, width).copy()
    numbers[:] = {np.uint16: 0x7FC0, np.uint32: 0x7FC00000}[width]
    return header, numbers.tobytes()


def infinite_tail(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    """The last entry of either fragment is lossless: fp32."""
    return header, bytes(payload[:-4]) + np.float32("inf").tobytes()


def too_short(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return header, bytes(payload[:-1])


def too_long(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return header, bytes(payload) + b"\0"


def unknown_codec(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return msgspec.structs.replace(header, codec="int5"), bytes(payload)


def negative_weight(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return msgspec.structs.replace(header, weight_tokens=-8), bytes(payload)


def more_weight_than_tokens(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return msgspec.structs.replace(header, weight_tokens=header.tokens + 1), bytes(payload)


def weight_without_payload(header: Header, payload: bytearray) -> tuple[Header, bytes]:
    return msgspec.structs.replace(header, codec="none", weight_tokens=8), b""


CASES = {
    "not finite": (not_a_number, "impossible scale"),
    "not finite in a lossless part": (infinite_tail, "finite"),
    "too short": (too_short, "wrong length"),
    "too long": (too_long, "wrong length"),
    "unknown codec": (unknown_codec, "no such codec"),
    "negative weight": (negative_weight, "weight is impossible"),
    "more weight than tokens": (more_weight_than_tokens, "weight is impossible"),
    "weight without payload": (weight_without_payload, "weight is impossible"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_publication_that_cannot_be_used_is_refused_and_training_goes_on(case):
    tamper, why = CASES[case]
    world, link = world_with_bad_partner(tamper)
    world.run()
    a = world["a"]
    (bad,) = link.tampered
    met = {record.peer_publication for record in a.of(records.Meeting)}
    assert bad.publication not in met
    (alarm,) = a.alarms()
    assert why in alarm and f"fragment {bad.fragment}" in alarm and "published" in alarm
    assert a.engine.phase is Phase.DONE and a.engine.core.provisional
    assert len(a.losses) == a.engine.memory.step >= SETTINGS.budget_steps
    assert a.slow().isfinite().all() and a.fast().isfinite().all()
    assert world["b"].slow().isfinite().all()


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_a_number_that_is_none_is_refused_in_every_codec(codec):
    world, link = world_with_bad_partner(not_a_number, codec)
    world.run_to_step("a", 30)
    assert link.tampered
    (alarm,) = world["a"].alarms()
    assert "cannot be used" in alarm
    assert world["a"].slow().isfinite().all()


def test_a_refused_partner_is_heard_again_after_its_restart():
    world, _ = world_with_bad_partner(too_short)
    world.run(lambda: bool(world["a"].alarms()))
    refused_s = world.clock.now_s()
    world.pass_s(8)
    assert not [r for r in world["a"].of(records.Meeting) if r.wall_s > refused_s]
    world.kill("b")
    world.start("b")
    world.run()
    assert [r for r in world["a"].of(records.Meeting) if r.wall_s > refused_s]
    assert not world["a"].engine.core.provisional
    assert world["a"].engine.slow.digest() == world["b"].engine.slow.digest()


# -- another model -----------------------------------------------------------------------------------------------------


class Wider(Toy):
    """A toy with another first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = nn.Linear(6, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.mean(0)
        for layer in self.layers:
            x = layer(self.norm(x))[:, :6]
        return x


def test_an_island_with_another_model_is_told_the_first_parameter_that_differs():
    world = SmallWorld("ab", SETTINGS, toy=lambda name: Wider() if name == "b" else Toy()).start("a")
    world.run_to_step("a", 10)
    world.start("b")
    engine = world["b"].engine
    engine.effects = dataclasses.replace(engine.effects, clock=TickingClock(world))
    with pytest.raises(ShapeError, match=r"another island trains another model.*layers\.0\.weight 7x6"):
        Waiter(engine).until_ready(lambda: False, resumed=False)


def test_a_healthy_island_only_raises_an_alarm_about_another_model_and_trains_on():
    world = SmallWorld("ab", SETTINGS, toy=lambda name: Wider() if name == "b" else Toy()).start()
    world.run()
    a = world["a"]
    assert a.engine.phase is Phase.DONE and a.engine.core.provisional
    assert len(a.losses) >= SETTINGS.budget_steps
    assert not a.of(records.Meeting)
    assert any("layers.0.weight" in what and "not trading with it" in what for what in a.alarms())
    assert len(a.alarms()) <= 2


class TickingClock:
    """A world's clock that moves the world on whenever it is read."""

    def __init__(self, world: SmallWorld) -> None:
        self._world = world

    def now_s(self) -> float:
        self._world.pass_s(0.05)
        return self._world.clock.now_s()

    def wall_s(self) -> float:
        return self._world.clock.wall_s()


# -- one's own numbers -------------------------------------------------------------------------------------------------


def test_a_weight_that_is_not_finite_does_not_depart_and_names_its_fragment():
    world = SmallWorld("ab", SETTINGS).start()
    world.run_to_step("a", 14)
    a = world["a"]
    (spoilt,) = [f.index for f in a.engine.slow.fragments if any(e.name == "layers.1.weight" for e in f.entries)]
    with torch.no_grad():
        a.model.layers[1].weight[0, 0] = float("nan")
    spoilt_s = world.clock.now_s()
    world.pass_s(12)
    departed = [record.fragment for record in a.of(records.Departure) if record.wall_s > spoilt_s]
    assert spoilt not in departed
    refused = [what for what in a.alarms() if f"fragment {spoilt} did not depart" in what]
    assert len(refused) >= 1 and "not finite" in refused[0]
    assert a.slow().isfinite().all() and world["b"].slow().isfinite().all()
    assert a.engine.memory.step == 26
    assert a.engine.phase is Phase.TRAINING


def test_a_partner_behind_a_link_that_carries_next_to_nothing_never_blocks_a_step():
    world = SmallWorld("ab", SETTINGS, quality=LinkQuality(delay_s=0.01, rate_bits_per_s=50.0)).start()
    world.run_to_step("a", 1)
    trained_s = world.clock.now_s()
    assert trained_s <= SETTINGS.join_wait_s + 1.1
    world.run_to_step("a", 31)
    assert world.clock.now_s() - trained_s == pytest.approx(30)
