"""What the core of an island remembers: plain data, saved whole in every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from isthmus.meeting import Edge
from isthmus.schedule import OuterPlan
from isthmus.terms import Phase, SignedHeader

Rule = Literal["pair", "mesh"]
"""How islands average: see ``Trade`` and ``MeshTrade``."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings the core decides by; they never change within a run.

    Attributes:
        run: The run's hash.
        name: This island.
        slot: Its slot in the roster.
        peers: Slot of every other island by name.
        layout: Digest of the model's layout.
        initial: H(init) of every fragment.
        window_steps: H of this island.
        flight_steps: τ.
        roster: The version of the roster that says so.
        meetings: Meetings that follow a departure, each with another partner.
        outer: η and μ over the run.
        token_budget: Tokens of the whole run, all islands together.
        save_every_steps: Steps between two checkpoints.
        join_wait_s: How long a starting island waits for others' HELLO.
        finish_wait_s: How long the end of the run waits for others.
        hello_every_s: How often HELLO is said again on an edge that has not come to agree.
        rule: Whether islands meet in pairs, or all at once.
    """

    run: str
    name: str
    slot: int
    peers: Mapping[str, int]
    layout: bytes
    initial: tuple[bytes, ...]
    window_steps: int
    flight_steps: int
    outer: OuterPlan
    token_budget: int
    save_every_steps: int
    join_wait_s: float = 20.0
    finish_wait_s: float = 60.0
    hello_every_s: float = 5.0
    rule: Rule = "pair"
    meetings: int = 1
    roster: int = 0

    @property
    def fragments(self) -> range:
        """The indices of all fragments."""
        return range(len(self.initial))


class PeerMemory(msgspec.Struct, kw_only=True):
    """What is known of another island. ``held`` is the newest header it signed for this one.

    ``refused`` is the incarnation whose publications are refused, because one of them did not decode.
    """

    incarnation: int = 0
    tokens: int = 0
    rounds: int = 0
    complete: bool = True
    phase: Phase = Phase.JOINING
    held: SignedHeader | None = None
    refused: int = 0

    @property
    def is_refused(self) -> bool:
        """Whether nothing more is taken from this peer until it restarts."""
        return self.refused == self.incarnation != 0


class Memory(msgspec.Struct, kw_only=True):
    """All that a restart must not forget, tensors and payloads aside.

    Attributes:
        step: Own training steps.
        tokens: T, own tokens trained.
        cursor: The data cursor.
        rounds: Departures taken, per fragment.
        departed_tokens: T at the last two departures, per fragment.
        meetings_left: Publications that the last departure of each fragment may still have.
        departed_step: The last step whose departures were taken.
        sequence: Publications made by this incarnation.
        order: Grows with every event; tells what came first.
        complete: Whether every fragment holds the run's state (a newcomer's does not yet).
        adopted: Fragments that a newcomer has adopted.
        edges: Per partner, one edge state per fragment.
        peers: Per partner, what is known of it.
        finishing: Whether the island is at the end of its run.
        final: Fragments whose last meeting of the run is done.
        end_plan: The newest plan for the end that this island follows: it goes on with no older one.
        end_vote: The newest plan that it has voted for, and
        end_result: the plan that made the outcome, which its slow weights are;
        end_digest: a digest of that.
        may_vote: Whether it remembers all its votes; not if it lost its disk when others were at the end.
    """

    step: int = 0
    tokens: int = 0
    cursor: int = 0
    rounds: list[int]
    departed_tokens: list[tuple[int, int]]
    meetings_left: list[int] = []
    departed_step: int = 0
    sequence: int = 0
    order: int = 0
    complete: bool = True
    adopted: set[int] = msgspec.field(default_factory=set)
    edges: dict[str, list[Edge]]
    peers: dict[str, PeerMemory]
    finishing: bool = False
    final: set[int] = msgspec.field(default_factory=set)
    end_plan: int = 0
    end_vote: int = 0
    end_result: int = 0
    end_digest: bytes = b""
    may_vote: bool = True

    @classmethod
    def fresh(cls, plan: Plan) -> Memory:
        """An island that has done nothing: every edge refers to the initial weights."""
        return cls(
            rounds=[0 for _ in plan.fragments],
            departed_tokens=[(0, 0) for _ in plan.fragments],
            meetings_left=[0 for _ in plan.fragments],
            edges={peer: [Edge(reference=digest) for digest in plan.initial] for peer in plan.peers},
            peers={peer: PeerMemory() for peer in plan.peers},
        )

    @property
    def run_tokens(self) -> int:
        """Tokens of all islands as last heard, plus one's own."""
        return self.tokens + sum(peer.tokens for peer in self.peers.values())

    def has_ended(self, peer: str | None) -> bool:
        """Whether a peer has said that it is done: that it leaves is no news."""
        known = None if peer is None else self.peers.get(peer)
        return known is not None and known.phase is Phase.DONE

    def all_edges(self) -> Iterator[tuple[str, int, Edge]]:
        """Every (peer, fragment, edge)."""
        return ((peer, fragment, edge) for peer, edges in self.edges.items() for fragment, edge in enumerate(edges))

    def shut(self, peer: str) -> None:
        """Shut all edges with ``peer`` until both ends have said HELLO."""
        self.edges[peer] = [edge.change(open=False) for edge in self.edges[peer]]

    def encode(self) -> bytes:
        """These facts as bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes, plan: Plan) -> Memory:
        """The facts that ``encode`` wrote, for the roster as it is now.

        Islands that joined it since are met for the first time; of those that left, only their tokens count on.
        """
        memory = msgspec.msgpack.decode(data, type=cls)
        fresh = cls.fresh(plan)
        memory.edges = {peer: memory.edges.get(peer, edges) for peer, edges in fresh.edges.items()}
        memory.peers = fresh.peers | memory.peers
        for peer in memory.edges:
            memory.shut(peer)
        return memory
