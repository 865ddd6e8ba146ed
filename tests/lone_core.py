"""One island's core, driven by hand: every order is performed at once, and the test says what others would say."""

from __future__ import annotations

from isthmus.meeting import Edge
from isthmus.session.core import Core
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import (
    Arrive,
    Arrived,
    Depart,
    Departed,
    Event,
    Order,
    Publish,
    Published,
    Save,
    Saved,
    Send,
)
from isthmus.terms import (
    EdgeReport,
    Header,
    Hello,
    Message,
    MessageReceived,
    PeerUp,
    Phase,
    PublicationReceived,
    Pulse,
    SignedHeader,
)
from toy_islands import make_plans, reference_of


class LoneCore:
    """The core of one island, by default ``ash`` in slot 0, among ``num_islands``."""

    def __init__(self, num_islands: int = 2, num_fragments: int = 1, *, name: str = "ash", **changes: object) -> None:
        self.plan: Plan = make_plans(num_islands, num_fragments, **changes)[name]
        self.core = Core(self.plan, Memory.fresh(self.plan), incarnation=1, fresh=True, layout_lines=("w 2x2",))
        self.now_s = 0.0
        self.orders: list[Order] = []

    def edge(self, peer: str, fragment: int = 0) -> Edge:
        return self.core.memory.edges[peer][fragment]

    def feed(self, *events: Event) -> list[Order]:
        """Hand in events and perform all that follows; returns the orders."""
        done: list[Order] = []
        results = list(events)
        while orders := self.core.advance(self.core.memory.step, results, self.now_s):
            done += orders
            results = [result for order in orders if (result := self._perform(order)) is not None]
            assert len(done) < 1000, done[:5]
        self.orders += done
        return done

    def say(self, peer: str, message: Message) -> list[Order]:
        return self.feed(MessageReceived(peer, message))

    def greet(self, peer: str, *, incarnation: int = 1, **fields: object) -> list[Order]:
        """``peer`` comes up and says a HELLO that agrees with what ash holds, but for ``fields``."""
        self.feed(PeerUp(peer, incarnation))
        return self.say(peer, self.hello(peer, incarnation=incarnation, **fields))

    def hello(self, peer: str, **fields: object) -> Hello:
        reports = tuple(
            EdgeReport(epoch=edge.epoch, version=edge.version, reference=edge.reference, open=True)
            for edge in self.core.memory.edges[peer]
        )
        values: dict[str, object] = {
            "run": self.plan.run,
            "sender": peer,
            "incarnation": 1,
            "peer_incarnation": 1,
            "tokens": 0,
            "rounds": 0,
            "complete": True,
            "layout": self.plan.layout,
            "edges": reports,
        }
        return Hello(**(values | fields))

    def start(self, **changes: object) -> None:
        """All others greet; ash trains from then on."""
        for peer in self.plan.peers:
            self.greet(peer, **changes)
        assert self.core.phase is Phase.TRAINING

    def step(self, num_steps: int = 1, *, tokens: int = 100) -> list[Order]:
        """Train and act; returns the orders."""
        done: list[Order] = []
        for _ in range(num_steps):
            self.core.trained(tokens=tokens, cursor=self.core.memory.step + 1)
            done += self.feed()
        return done

    def publish_from(self, peer: str, publication: int, *, fragment: int = 0, **fields: object) -> list[Order]:
        """A publication of ``peer`` that fits the edge comes in."""
        return self.feed(self.publication_of(peer, publication, fragment=fragment, **fields))

    def publication_of(
        self, peer: str, publication: int, *, fragment: int = 0, **fields: object
    ) -> PublicationReceived:
        edge = self.edge(peer, fragment)
        values: dict[str, object] = {
            "run": self.plan.run,
            "sender": peer,
            "receiver": self.plan.name,
            "fragment": fragment,
            "epoch": edge.epoch,
            "version": edge.version,
            "sender_incarnation": 1,
            "receiver_incarnation": 1,
            "publication": publication,
            "step": 1,
            "tokens": 50,
            "weight_tokens": 50,
            "run_tokens": 50,
            "cursor": 1,
            "reference": edge.reference,
            "codec": "int4",
            "num_bytes": 1,
        }
        return PublicationReceived(peer, SignedHeader(Header(**(values | fields)), b"", b""), memoryview(b""))

    def pulse_from(self, peer: str, phase: Phase, **tokens: int) -> list[Order]:
        return self.say(peer, Pulse(tokens=tokens, phase=phase))

    @staticmethod
    def _perform(order: Order) -> Event | None:
        match order:
            case Depart(fragment):
                return Departed(fragment)
            case Publish(headers, answer):
                return Published(tuple(header.coded(header.codec or "int4", 1) for header in headers), answer)
            case Arrive(peers, fragment):
                met = sorted(header.publication for header in order.headers)
                return Arrived(peers, fragment, reference_of(f"{met}"))
            case Save(durable=True):
                return Saved(stored=True)
            case _:
                return None


def published(orders: list[Order]) -> list[tuple[str, int]]:
    """Whom something was published to, and of which fragment."""
    return [(header.receiver, header.fragment) for header in headers(orders)]


def headers(orders: list[Order]) -> list[Header]:
    """The headers of what was published."""
    return [header for order in orders if isinstance(order, Publish) for header in order.headers]


def sent(orders: list[Order], kind: type[Message]) -> list[Message]:
    """Messages of one kind that were sent."""
    return [order.message for order in orders if isinstance(order, Send) and isinstance(order.message, kind)]
