"""The slow state of an island: slow weights, velocities and references of every fragment, and what is done to them.

Everything here is tensors in, tensors changed; what to do, and when, is decided in ``core.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from isthmus import mixing
from isthmus.codec import NO_CODEC, WHOLE_CODEC, Slice, check_part, decode_parts, encode_parts, payload_bytes, slices
from isthmus.errors import CodecError
from isthmus.fragments import Fragment, Kind, Policy
from isthmus.island import Alone, Ranks, together
from isthmus.parts import Part
from isthmus.rows import in_order as leaves_in_order
from isthmus.rows import leaf_digests
from isthmus.schedule import CALM
from isthmus.session.copies import BESIDE, Place, open_side_stream
from isthmus.session.fast import FastWeights
from isthmus.session.groups import (
    Group,
    Matrices,
    Piece,
    Scratch,
    group_entries,
    in_order,
    named,
    own_entries,
    rows_of,
    stack,
)
from isthmus.session.orders import Arrive, Mode
from isthmus.session.references import References
from isthmus.session.shares import Shares
from isthmus.session.stored import row_parts, take
from isthmus.terms import NO_REFERENCE, Header


class SlowState:
    """Slow weights ``a``, velocities ``m`` and references ``c``, beside the fast weights that the optimizer trains.

    Args:
        fragments: How the model is cut.
        fast: The trained tensors by canonical name, fp32; they are changed in place and never rebound.
        peers: The other islands; what the run began with is kept until the last of them was met.
        mirrors: Low-precision parameters that follow an fp32 master in ``fast``, by name.
        embedding_codec: How embeddings are coded.
        ranks: The island's. Each of them has its share of the rows of every tensor here, and all make every call.
        settle: Called before the model's tensors are changed.
        mixed_momentum: Correct velocities by every meeting as the weights are (``mixing.correct_velocity``).
        place: Where it lies.

    Attributes:
        side: What brings payloads to slow state and from it; None where that is on the host.

    Raises:
        ShapeError: A tensor is not fp32 and has no fp32 master.
    """

    def __init__(
        self,
        fragments: Sequence[Fragment],
        fast: Mapping[str, Tensor],
        *,
        peers: Collection[str],
        embedding_codec: str,
        mirrors: Mapping[str, Tensor] | None = None,
        ranks: Ranks | None = None,
        settle: Callable[[], None] = lambda: None,
        mixed_momentum: bool = False,
        place: Place = BESIDE,
    ) -> None:
        self.fragments = tuple(fragments)
        self._embedding_codec, self._ranks = embedding_codec, ranks or Alone()
        self.shares = Shares(self.fragments, embedding_codec, self._ranks)
        side = place.side or open_side_stream(fast.values())
        self.side = None if place.on_host else side
        self._fast = FastWeights(fast, mirrors or {}, self._ranks, settle, slow_side=side if place.on_host else None)
        self._groups = [
            group_entries(own_entries(fragment.entries, self._ranks.rank, self._ranks.size), self._fast.slow_device_of)
            for fragment in self.fragments
        ]
        self._slow = [self._stacked(index) for index in range(len(self.fragments))]
        self._velocity = [
            {group: group.empty().zero_() for group in matrices if group.kind is Kind.PARAMETER}
            for matrices in self._slow
        ]
        self.references = References(self._slow, tuple(peers), self.fragments, self._ranks)
        self._layouts: dict[tuple[int, str], dict[str, Slice]] = {}
        self._mixed_momentum = mixed_momentum
        self._outer: dict[int, tuple[float, float]] = {}
        self.initial_hashes = tuple(self._hash(index, slow) for index, slow in enumerate(self._slow))

    # -- the outer step ------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Refuse to go on with a model whose tensors were replaced: what is trained there is no longer seen here.

        Raises:
            ShapeError: A parameter was moved or rebound since the island joined.
        """
        self._fast.check_place()

    def is_finite(self, fragment: int) -> bool:
        """Whether every fast weight of a fragment is a finite number."""
        (broken,) = self._ranks.largest(float(not self._fast.are_finite(self._names(fragment))))
        return not broken

    def depart(self, fragment: int, *, outer_lr: float, momentum: float) -> None:
        """Take the outer step of a fragment, in place."""
        self._outer[fragment] = outer_lr, momentum
        with self._fast.fetched(self._names(fragment)):
            pieces = [*self._pieces(fragment)]
            each_fast = self._fast.in_turn([piece for _, piece in pieces])
            for (group, piece), fast in zip(pieces, each_fast, strict=True):
                slow = self._slow[fragment][group][piece.rows]
                velocity = rows_of(self._velocity[fragment], group, piece)
                if velocity is None:
                    mixing.depart_buffer(slow, fast)
                else:
                    mixing.depart(slow, fast, velocity, outer_lr=outer_lr, momentum=momentum)

    def restore(self, fragment: int) -> None:
        """Let the slow weights of a fragment be the fast ones, in place."""
        with self._fast.fetched(self._names(fragment), push=False) as rows, torch.no_grad():
            for name, view in named(self._slow[fragment]).items():
                view.copy_(rows[name].view(view.shape))

    # -- publications --------------------------------------------------------------------------------------------------

    def has_reference(self, peer: str, fragment: int) -> bool:
        """Whether both ends of an edge share a reference of this fragment."""
        return self.references.of(peer, fragment) is not None

    def payload_bytes(self, fragment: int, codec: str) -> int:
        """Length of a publication's payload.

        Raises:
            CodecError: There is no codec of that name.
        """
        return payload_bytes(self.fragments[fragment].entries, codec, self._embedding_codec)

    def share_bytes(self, fragment: int, codec: str) -> int:
        """Length of this rank's share of a publication's payload: its rows of every entry, end to end.

        Raises:
            CodecError: There is no codec of that name.
        """
        return sum(part.num_bytes for part in self._layout(fragment, codec).values())

    def encode(self, peer: str, fragment: int, codec: str, payload: memoryview | Tensor) -> float:
        """Code a fragment's slow weights against an edge's reference.

        Args:
            peer: Whose edge.
            fragment: Which.
            codec: How.
            payload: Filled with this rank's share; host memory, or bytes where slow state lies.

        Returns:
            Root mean square of y − c over the entries that a codec may coarsen, of all ranks.

        Raises:
            CodecError: A value is not finite, here or at another rank.
        """
        coarse = sum(entry.numel for entry in self.fragments[fragment].entries if entry.policy is not Policy.LOSSLESS)
        square = together(self._ranks, lambda: self._encode(peer, fragment, codec, payload))
        (total,) = self._ranks.total(square)
        return float((total / max(1, coarse)) ** 0.5)

    def _encode(self, peer: str, fragment: int, codec: str, payload: memoryview | Tensor) -> float:
        """Fill this rank's share; the sum of squares of what it coarsens."""
        reference = None if codec == WHOLE_CODEC else self.references.of(peer, fragment)
        layout = self._layout(fragment, codec)
        scratch = Scratch(self._groups[fragment], 1)
        total = 0.0
        for group, piece in self._pieces(fragment):
            (difference,) = scratch.matrices(group, piece)
            slow = self._slow[fragment][group][piece.rows]
            mixing.difference(slow, rows_of(reference, group, piece), out=difference)
            encode_parts(difference, piece.slices(layout), payload)
            if group.policy is not Policy.LOSSLESS:
                total += float(torch.linalg.vector_norm(difference)) ** 2
        return total

    def fits(self, header: Header, payload: memoryview) -> bool:
        """Whether a payload is as long as this rank's share of one with such a header."""
        try:
            known = header.fragment in range(len(self.fragments))
            return known and payload.nbytes == self.share_bytes(header.fragment, header.codec)
        except CodecError:
            return False

    def check(self, header: Header, payload: memoryview) -> None:
        """Refuse a publication that does not decode to finite numbers of the right shapes.

        Args:
            header: What it says of itself.
            payload: This rank's share.

        Raises:
            CodecError: It does not, here or at another rank; nothing was changed.
        """
        together(self._ranks, lambda: self._check(header, payload))

    def _check(self, header: Header, payload: memoryview) -> None:
        most = 0 if header.codec == NO_CODEC else header.run_tokens if header.ending else header.tokens
        if not 0 <= header.weight_tokens <= most:
            raise CodecError("a publication's weight is impossible", got=header.weight_tokens, wanted=f"0 to {most}")
        wanted = self.share_bytes(header.fragment, header.codec)
        if payload.nbytes != wanted:
            what = f"a publication of fragment {header.fragment} in {header.codec} has the wrong length"
            raise CodecError(what, got=f"{payload.nbytes} bytes", wanted=wanted)
        for part in self._layout(header.fragment, header.codec).values():
            check_part(payload, part)

    # -- arrivals ------------------------------------------------------------------------------------------------------

    def arrive(self, order: Arrive, payloads: Sequence[memoryview | Tensor]) -> bytes:
        """Merge all publications of a meeting into the reference and correct, adopt or assign, one piece at a time.

        The reference changes in place where no other edge has the same.

        Args:
            order: The meeting.
            payloads: This rank's shares of all its publications, in order of slots; the others' checked before. Host
                memory, or bytes where slow state lies.

        Returns:
            H(c').
        """
        fragment, weights = order.fragment, merge_weights(order)
        layouts = [self._layout(fragment, header.codec) for header in order.headers]
        whole = order.mode is Mode.MERGE  # what is published there, is so without a reference
        reference = None if whole else self.references.of(order.peers[0], fragment)
        merged = self.references.next_of(order.peers, fragment)
        scratch = Scratch(self._groups[fragment], len(payloads) + 1)
        with self._fast.fetched(self._names(fragment)):
            for group, piece in self._pieces(fragment):
                before, after = rows_of(reference, group, piece), merged[group][piece.rows]
                *room, published = scratch.matrices(group, piece)
                decoded = [
                    decode_parts(payload, piece.slices(layout), rows) if layout else None
                    for layout, payload, rows in zip(layouts, payloads, room, strict=True)
                ]
                if order.mode is Mode.CORRECT:
                    own = decoded[order.place]
                    assert own is not None
                    mixing.published(before, own, out=published)
                mixing.merge_reference(before, decoded, weights, out=after)
                self._apply(order, group, piece, published, after)
        self.references.set(order.peers, fragment, merged)
        return self.reference_hash(order.peers[0], fragment)

    def clear(self, peer: str, fragment: int) -> None:
        """Forget an edge's reference: c = 0."""
        self.references.set([peer], fragment, None)

    def reference_hash(self, peer: str, fragment: int) -> bytes:
        """H(c): SHA-256 over the SHA-256 of all leaves of the reference (``rows.py``), in entry order.

        ``NO_REFERENCE`` where there is none.
        """
        reference = self.references.of(peer, fragment)
        return NO_REFERENCE if reference is None else self._hash(fragment, reference)

    # -- the whole -----------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """SHA-256 in hex over the hashes of all fragments' slow weights, each as ``reference_hash`` makes it."""
        hashes = [self._hash(index, slow) for index, slow in enumerate(self._slow)]
        return hashlib.sha256(b"".join(hashes)).hexdigest()

    def slow_weights(self) -> dict[str, Tensor]:
        """This rank's rows of the slow weights by name; to read, not to change."""
        return _named(self._slow)

    def take_in(self) -> None:
        """Let the fast weights be the slow ones."""
        slow = {entry.name: rows for matrices in self._slow for entry, rows in in_order(matrices)}
        self._fast.take(slow)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Hold the slow weights in the model's own tensors for the duration, then bring the fast weights back."""
        kept = self._fast.copies()
        self.take_in()
        try:
            yield
        finally:
            self._fast.restore(kept)

    def state_dict(self) -> dict[str, Any]:
        """Slow weights, velocities, references and fp32 masters, to be stored before the next change.

        Tensors where there is one rank, else this one's parts of them. All other fast weights are the model's own. For
        references see ``References.state_dict``.
        """
        masters = {name: part.local if self._ranks.size == 1 else part for name, part in self._fast.masters.items()}
        return {
            "slow": self._saved(self._slow),
            "masters": masters,
            "velocity": self._saved(self._velocity),
            "outer": dict(self._outer),
            **self.references.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave, in place.

        Raises:
            ShapeError: It belongs to another model.
        """
        take("slow", self._parts(self._slow), state["slow"])
        take("velocity", self._parts(self._velocity), state["velocity"])
        take("master", self._fast.masters, state["masters"])
        self._fast.mirror(self._fast.masters)
        self._outer = {fragment: (outer_lr, momentum) for fragment, (outer_lr, momentum) in state["outer"].items()}
        self.references.load_state_dict(state)

    def _saved(self, all_matrices: Sequence[Matrices]) -> dict[str, Tensor | Part]:
        """What ``state_dict`` gives of the whole model."""
        return dict(_named(all_matrices) if self._ranks.size == 1 else self._parts(all_matrices))

    def _parts(self, all_matrices: Sequence[Matrices]) -> dict[str, Part]:
        """This rank's parts of the whole model."""
        kinds = {Kind.PARAMETER} if all_matrices is self._velocity else set(Kind)
        parts: dict[str, Part] = {}
        for fragment, matrices in zip(self.fragments, all_matrices, strict=True):
            parts |= row_parts([entry for entry in fragment.entries if entry.kind in kinds], matrices, self._ranks)
        return parts

    def _apply(self, order: Arrive, group: Group, piece: Piece, published: Tensor, merged: Tensor) -> None:
        slow = self._slow[order.fragment][group][piece.rows]
        match order.mode:
            case Mode.CORRECT:
                correction = mixing.arrive(slow, published=published, merged=merged)
                velocity = rows_of(self._velocity[order.fragment], group, piece)
                if self._mixed_momentum and velocity is not None:
                    outer_lr, momentum = self._outer.get(order.fragment, CALM)
                    mixing.correct_velocity(velocity, correction, outer_lr=outer_lr, momentum=momentum)
                self._fast.add(piece, correction)
            case Mode.ADOPT:
                mixing.adopt(slow, rows_of(self._velocity[order.fragment], group, piece), merged=merged)
                self._fast.set(piece, slow)
            case Mode.ASSIGN:
                mixing.assign(slow, merged=merged)
                self._fast.set(piece, slow)
            case Mode.MERGE:
                mixing.assign(slow, merged=merged)

    def _pieces(self, fragment: int) -> Iterator[tuple[Group, Piece]]:
        for group in self._groups[fragment]:
            for piece in group.pieces:
                yield group, piece

    def _layout(self, fragment: int, codec: str) -> dict[str, Slice]:
        """The entries' slices of this rank's share of a payload by name; none for a publication without payload."""
        layout = self._layouts.get((fragment, codec))
        if layout is None:
            own = own_entries(self.fragments[fragment].entries, self._ranks.rank, self._ranks.size)
            parts = slices(own, codec, self._embedding_codec)
            layout = self._layouts[fragment, codec] = {part.name: part for part in parts}
        return layout

    def _names(self, fragment: int) -> list[str]:
        return [entry.name for entry in self.fragments[fragment].entries]

    def _stacked(self, fragment: int) -> Matrices:
        """The fast weights of a fragment in new matrices."""
        with self._fast.fetched(self._names(fragment), push=False) as rows:
            return stack(self._groups[fragment], rows)

    def _hash(self, fragment: int, matrices: Matrices) -> bytes:
        own = b"".join(leaf_digests(rows) for _, rows in in_order(matrices))
        shapes = [(entry.rows, entry.row_length) for entry in self.fragments[fragment].entries]
        return hashlib.sha256(leaves_in_order(shapes, self._ranks.collect(own))).digest()


def merge_weights(order: Arrive) -> tuple[float, ...]:
    """Weights of a meeting's publications in order of slots, which all ends compute alike from the headers."""
    headers = order.headers
    alone = mixing.counts_alone([header.codec != NO_CODEC for header in headers], [h.run_tokens for h in headers])
    return mixing.merge_weights([header.weight_tokens for header in headers], counts_if_none=alone)


def _named(fragments: Iterable[Matrices]) -> dict[str, Tensor]:
    return {name: view for matrices in fragments for name, view in named(matrices).items()}
