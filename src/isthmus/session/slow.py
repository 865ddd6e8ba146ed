"""The slow state of an island: slow weights, velocities and references of every fragment, and what is done to them.

Everything here is tensors in, tensors changed; what to do, and when, is decided in ``core.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from isthmus import mixing
from isthmus.codec import NO_CODEC, Slice, check_entry, decode_entry, encode_entry, payload_bytes, slices
from isthmus.errors import CodecError, ShapeError
from isthmus.fragments import Entry, Fragment, Kind
from isthmus.session.orders import Arrive, Mode
from isthmus.terms import NO_REFERENCE, Header

Reference = dict[str, Tensor]
"""c of one edge and fragment, by entry name; empty where there is none (c = 0)."""


class SlowState:
    """Slow weights ``a``, velocities ``m`` and references ``c``, beside the fast weights that the optimizer trains.

    Args:
        fragments: How the model is cut.
        fast: The trained tensors by canonical name, fp32; they are changed in place and never rebound.
        peers: The other islands; what the run began with is kept until the last of them was met.
        mirrors: Low-precision parameters that follow an fp32 master in ``fast``, by name.
        embedding_codec: How embeddings are coded.

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
    ) -> None:
        self.fragments = tuple(fragments)
        self._owners = dict(fast)
        self._fast = {name: tensor.detach() for name, tensor in fast.items()}
        self._mirrors = {name: tensor.detach() for name, tensor in (mirrors or {}).items()}
        self._peers, self._embedding_codec = tuple(peers), embedding_codec
        for name, tensor in self._fast.items():
            _require_fp32(name, tensor)
        entries = [entry for fragment in self.fragments for entry in fragment.entries]
        self._slow = {entry.name: _copy(self._fast[entry.name]) for entry in entries}
        self._velocity = {
            entry.name: torch.zeros_like(self._slow[entry.name]) for entry in entries if entry.kind is Kind.PARAMETER
        }
        self.initial_hashes = tuple(_hash(self._slow[e.name] for e in f.entries) for f in self.fragments)
        self._initial: dict[int, Reference] = {}
        if self._peers:
            self._initial = {f.index: {e.name: self._slow[e.name].clone() for e in f.entries} for f in self.fragments}
        self._references: dict[tuple[str, int], Reference] = {}

    # -- the outer step ------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Refuse to go on with a model whose tensors were replaced: what is trained there is no longer seen here.

        Raises:
            ShapeError: A parameter was moved or rebound since the island joined.
        """
        for name, owner in self._owners.items():
            if owner.data_ptr() != self._fast[name].data_ptr():
                raise ShapeError(
                    f"'{name}' was moved or rebound after the island joined",
                    got=f"now on {owner.device}",
                    wanted="the same memory for the whole run; weights are changed in place",
                    mend="Move the model to its device before the island joins, and never assign to param.data.",
                )

    def is_finite(self, fragment: int) -> bool:
        """Whether every fast weight of a fragment is a finite number."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for entry in self._entries(fragment):
            fast = self._fast[entry.name]
            by_device.setdefault(fast.device, []).extend(torch.aminmax(fast))
        return all(bool(torch.stack(extremes).isfinite().all()) for extremes in by_device.values())

    def depart(self, fragment: int, *, outer_lr: float, momentum: float) -> None:
        """Take the outer step of a fragment, in place."""
        for entry in self._entries(fragment):
            slow, fast = self._slow[entry.name], self._fast[entry.name]
            if entry.kind is Kind.BUFFER:
                mixing.depart_buffer(slow, fast)
            else:
                velocity = self._velocity[entry.name]
                mixing.depart(slow, fast, velocity, outer_lr=outer_lr, momentum=momentum)
            self._mirror(entry.name)

    # -- publications --------------------------------------------------------------------------------------------------

    def rms(self, peer: str, fragment: int) -> float:
        """Root mean square of y − c over the entries that a codec may coarsen."""
        reference = self._reference(peer, fragment)
        total, count = 0.0, 0
        for entry in self._entries(fragment):
            if entry.policy != "lossless":
                difference = mixing.difference(self._slow[entry.name], reference.get(entry.name))
                total += float(torch.linalg.vector_norm(difference)) ** 2
                count += entry.numel
        return float((total / max(1, count)) ** 0.5)

    def has_reference(self, peer: str, fragment: int) -> bool:
        """Whether both ends of an edge share a reference of this fragment."""
        return bool(self._reference(peer, fragment))

    def payload_bytes(self, fragment: int, codec: str) -> int:
        """Length of a publication's payload.

        Raises:
            CodecError: There is no codec of that name.
        """
        return payload_bytes(self._entries(fragment), codec, self._embedding_codec)

    def encode(self, peer: str, fragment: int, codec: str, payload: memoryview) -> None:
        """Code a fragment's slow weights against an edge's reference.

        Raises:
            CodecError: A value is not finite.
        """
        reference = self._reference(peer, fragment)
        for entry, part in self._parts(fragment, codec):
            encode_entry(mixing.difference(self._slow[entry.name], reference.get(entry.name)), part, payload)

    def check(self, header: Header, payload: memoryview) -> None:
        """Refuse a publication that does not decode to finite numbers of the right shapes.

        Raises:
            CodecError: It does not; nothing was changed.
        """
        most = 0 if header.codec == NO_CODEC else header.tokens
        if not 0 <= header.weight_tokens <= most:
            raise CodecError("a publication's weight is impossible", got=header.weight_tokens, wanted=f"0 to {most}")
        wanted = self.payload_bytes(header.fragment, header.codec)
        if payload.nbytes != wanted:
            what = f"a publication of fragment {header.fragment} in {header.codec} has the wrong length"
            raise CodecError(what, got=f"{payload.nbytes} bytes", wanted=wanted)
        for _, part in self._parts(header.fragment, header.codec):
            check_entry(payload, part)

    # -- arrivals ------------------------------------------------------------------------------------------------------

    def arrive(self, order: Arrive, payloads: Sequence[memoryview]) -> bytes:
        """Merge all publications of a meeting into the reference and correct, adopt or assign, one entry at a time.

        Args:
            order: The meeting.
            payloads: Of all its publications in order of slots; the others' checked before.

        Returns:
            H(c').
        """
        peer = order.peers[0]
        reference = self._reference(peer, order.fragment)
        weights = merge_weights(order)
        parts = [dict(self._parts(order.fragment, header.codec)) for header in order.headers]
        merged: Reference = {}
        for entry in self._entries(order.fragment):
            decoded = [
                self._decode(entry, part.get(entry), payload) for part, payload in zip(parts, payloads, strict=True)
            ]
            base = reference.get(entry.name)
            merged[entry.name] = mixing.merge_reference(base, decoded, weights)
            self._apply(entry, order.mode, base, decoded[order.place], merged[entry.name])
        for each in order.peers:
            self._refer(each, order.fragment, merged)
        return self.reference_hash(peer, order.fragment)

    def clear(self, peer: str, fragment: int) -> None:
        """Forget an edge's reference: c = 0."""
        self._refer(peer, fragment, {})

    def reference_hash(self, peer: str, fragment: int) -> bytes:
        """H(c): SHA-256 over the reference's fp32 values in entry order; ``NO_REFERENCE`` where there is none."""
        reference = self._reference(peer, fragment)
        return _hash(reference[entry.name] for entry in self._entries(fragment)) if reference else NO_REFERENCE

    # -- the whole -----------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """SHA-256 in hex over all slow weights, in fragment and entry order."""
        return _hash(self._slow[entry.name] for f in self.fragments for entry in f.entries).hex()

    def slow_weights(self) -> dict[str, Tensor]:
        """The slow weights by name; to read, not to change."""
        return dict(self._slow)

    @torch.no_grad()
    def take_in(self) -> None:
        """Let the fast weights be the slow ones."""
        for name, tensor in self._fast.items():
            tensor.copy_(self._slow[name])
            self._mirror(name)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Hold the slow weights in the model's own tensors for the duration, then bring the fast weights back."""
        kept = {name: tensor.clone() for name, tensor in self._fast.items()}
        self.take_in()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in self._fast.items():
                    tensor.copy_(kept[name])
                    self._mirror(name)

    def state_dict(self) -> dict[str, Any]:
        """Slow weights, velocities, references and fp32 masters, as tensors to be stored before the next change.

        All other fast weights are the model's own. A reference that several edges share is there once; ``shared`` names
        the peer under which the others find it.
        """
        first: dict[int, str] = {}
        owners = {key: first.setdefault(id(reference), key[0]) for key, reference in self._references.items()}
        return {
            "slow": dict(self._slow),
            "masters": {name: self._fast[name] for name in self._mirrors},
            "velocity": dict(self._velocity),
            "initial": {fragment: dict(reference) for fragment, reference in self._initial.items()},
            "references": {key: dict(self._references[key]) for key, owner in owners.items() if owner == key[0]},
            "shared": {key: owner for key, owner in owners.items() if owner != key[0]},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave, in place.

        Raises:
            ShapeError: It belongs to another model.
        """
        masters = {name: self._fast[name] for name in self._mirrors}
        own = {"slow": self._slow, "velocity": self._velocity, "masters": masters}
        for kind, tensors in own.items():
            _require_same(kind, tensors, state[kind])
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])
        for name in masters:
            self._mirror(name)
        self._initial |= {key: self._placed(reference) for key, reference in state["initial"].items()}
        self._references.clear()
        references = {key: self._placed(reference) for key, reference in state["references"].items()}
        references |= {key: references[owner, key[1]] for key, owner in state.get("shared", {}).items()}
        for (peer, fragment), reference in references.items():
            if peer in self._peers:
                self._refer(peer, fragment, reference)

    def _apply(self, entry: Entry, mode: Mode, base: Tensor | None, own: Tensor | None, merged: Tensor) -> None:
        slow, fast = self._slow[entry.name], self._fast[entry.name]
        match mode:
            case Mode.CORRECT:
                assert own is not None
                mixing.arrive(slow, fast, published=mixing.published(base, own), merged=merged)
            case Mode.ADOPT:
                mixing.adopt(slow, fast, self._velocity.get(entry.name), merged=merged)
            case Mode.ASSIGN:
                mixing.assign(slow, merged=merged)
                fast.copy_(slow)
        self._mirror(entry.name)

    def _decode(self, entry: Entry, part: Slice | None, payload: memoryview) -> Tensor | None:
        if part is None:
            return None
        return decode_entry(payload, part, self._slow[entry.name].device).view(self._slow[entry.name].shape)

    def _entries(self, fragment: int) -> tuple[Entry, ...]:
        return self.fragments[fragment].entries

    def _parts(self, fragment: int, codec: str) -> list[tuple[Entry, Slice]]:
        parts = slices(self._entries(fragment), codec, self._embedding_codec)
        return list(zip(self._entries(fragment), parts, strict=bool(parts)))

    def _reference(self, peer: str, fragment: int) -> Reference:
        met = self._references.get((peer, fragment))
        return self._initial[fragment] if met is None else met

    def _refer(self, peer: str, fragment: int, reference: Reference) -> None:
        self._references[peer, fragment] = reference
        if all((other, fragment) in self._references for other in self._peers):
            self._initial.pop(fragment, None)

    def _placed(self, reference: Mapping[str, Tensor]) -> Reference:
        return {name: tensor.to(self._slow[name].device) for name, tensor in reference.items()}

    def _mirror(self, name: str) -> None:
        if name in self._mirrors:
            self._mirrors[name].copy_(self._fast[name])


def merge_weights(order: Arrive) -> tuple[float, ...]:
    """Weights of a meeting's publications in order of slots, which all ends compute alike from the headers."""
    headers = order.headers
    alone = mixing.counts_alone([header.codec != NO_CODEC for header in headers], [h.run_tokens for h in headers])
    return mixing.merge_weights([header.weight_tokens for header in headers], counts_if_none=alone)


def _require_fp32(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise ShapeError(
            f"'{name}' cannot be mixed between islands in its own precision",
            got=tensor.dtype,
            wanted="torch.float32: a correction is smaller than a bf16 weight's last bit and would be rounded away",
            mend="Train fp32 parameters under autocast, or pass the optimizer's fp32 masters: masters={name: tensor}.",
        )


def _require_same(kind: str, own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    for name in sorted(own.keys() | stored.keys()):
        mine = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(stored[name].shape) if name in stored else "nothing"
        if mine != theirs:
            raise ShapeError(
                f"the checkpoint is of another model: it differs in the {kind} weights of '{name}'",
                got=theirs,
                wanted=mine,
                mend="Build the model that the checkpoint was made of, or start from an empty directory.",
            )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _hash(tensors: Iterable[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()
