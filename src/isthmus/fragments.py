"""Cuts a model's named tensors into fragments: whole parameters, strided over layers, balanced by bytes.

Everything here depends on names, shapes and policies alone, in name order, so every island of a run cuts
alike.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from torch import Tensor, nn, strided

from isthmus.errors import ShapeError


class Policy(StrEnum):
    """How a tensor is coded on the link."""

    CODED = "coded"
    """By the run's codec."""
    LOSSLESS = "lossless"
    """Always fp32."""
    EMBEDDING = "embedding"
    """By the run's codec for embeddings and head, which is the run's codec unless named."""


class Kind(StrEnum):
    """What a tensor is to the optimizer; a buffer has no outer step."""

    PARAMETER = "parameter"
    BUFFER = "buffer"


PolicyRule = Callable[[str, Tensor, Kind], Policy]
"""Canonical name, tensor and kind to policy."""


@dataclass(frozen=True)
class Entry:
    """One tensor of the model as the link knows it: a matrix of rows along the last dimension."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    policy: Policy

    @property
    def rows(self) -> int:
        """Number of rows: the product of all dimensions but the last."""
        return math.prod(self.shape[:-1])

    @property
    def row_length(self) -> int:
        """Elements per row: the last dimension, 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Fragment:
    """The unit of exchange: ``index`` of P, and its entries in name order."""

    index: int
    entries: tuple[Entry, ...]

    @property
    def numel(self) -> int:
        """Number of elements of all entries."""
        return sum(entry.numel for entry in self.entries)


_WRAPPERS = frozenset({"_orig_mod", "module"})
_EMBEDDING = re.compile(r"(^|_)emb(ed|eds|edding|eddings)?(_|$)|^wte$|^wpe$|^(lm_)?head$")
_LOSSLESS = re.compile(r"norm|^router|_router$|(^|_)bias$")


def canonical_name(name: str) -> str:
    """``name`` without the path components that ``torch.compile`` and data-parallel wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def default_policy(name: str, tensor: Tensor, kind: Kind) -> Policy:
    """The policy of a tensor by its shape and the components of its name.

    Lossless: buffers, anything with fewer than two dimensions, and names with a component that contains
    ``norm``, starts with ``router``, ends with ``_router``, or is or ends with ``bias``. Embedding: names
    with a component such as ``embed``, ``tok_embeddings``, ``wte``, ``head`` or ``lm_head``. All else is
    coded.
    """
    parts = name.lower().split(".")
    if kind is Kind.BUFFER or tensor.ndim < 2 or any(_LOSSLESS.search(part) for part in parts):
        return Policy.LOSSLESS
    if any(_EMBEDDING.search(part) for part in parts):
        return Policy.EMBEDDING
    return Policy.CODED


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors that islands trade, by canonical name, in name order.

    These are its trainable parameters, a tied one once under its first name, and its persistent
    floating-point buffers.

    Raises:
        ShapeError: Two tensors have one canonical name.
    """
    persistent = model.state_dict(keep_vars=True).keys()
    named: list[tuple[str, Tensor]] = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    named += [(n, b) for n, b in model.named_buffers() if b.is_floating_point() and n in persistent]
    tensors: dict[str, Tensor] = {}
    for raw_name, tensor in named:
        name = canonical_name(raw_name)
        if name in tensors:
            raise ShapeError(
                "two tensors of the model have one name once wrappers are stripped",
                got=name,
                mend="Rename the module called 'module' or '_orig_mod'.",
            )
        tensors[name] = tensor
    return dict(sorted(tensors.items()))


def entries_of(model: nn.Module, *, policy_of: PolicyRule = default_policy) -> tuple[Entry, ...]:
    """The entries of ``tensors_of(model)``, in name order.

    Args:
        model: Any module, on any device; the meta device too.
        policy_of: Decides each policy. What it calls coded is of policy embedding if it is the table of an
            ``nn.Embedding``.

    Raises:
        ShapeError: A tensor is complex, sparse or empty, only some are on the meta device, or there is none.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    entries = []
    tensors = tensors_of(model)
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        kind = Kind.PARAMETER if isinstance(tensor, nn.Parameter) else Kind.BUFFER
        policy = policy_of(name, tensor, kind)
        if policy is Policy.CODED and id(tensor) in tables:
            policy = Policy.EMBEDDING
        entries.append(Entry(name, tuple(tensor.shape), kind, policy))
    if not any(entry.kind is Kind.PARAMETER for entry in entries):
        raise ShapeError("the model has no trainable parameter", mend="Unfreeze what should be trained.")
    _check_one_place(tensors)
    return tuple(entries)


def cut(entries: Sequence[Entry], num_fragments: int) -> tuple[Fragment, ...]:
    """Cut ``entries`` into ``num_fragments`` fragments of about equal bytes on the link.

    Layer l starts in fragment l mod P (what is in no layer, in the lightest), then single entries move or
    change places while that evens out the sizes. No entry is split, so one that outweighs a fair share stays
    alone.

    Raises:
        ShapeError: There are fewer entries than fragments, or fewer than one fragment.
    """
    if not 1 <= num_fragments <= len(entries):
        raise ShapeError(
            "the model cannot be cut into that many fragments",
            got=num_fragments,
            wanted=f"1 to {len(entries)}, the number of its tensors",
            mend="Set a smaller number of fragments.",
        )
    bins = _strided(sorted(entries, key=lambda entry: entry.name), num_fragments)
    while _even_out(bins):
        pass
    return tuple(
        Fragment(index, tuple(sorted(members, key=lambda entry: entry.name))) for index, members in enumerate(bins)
    )


def layout_lines(entries: Sequence[Entry]) -> tuple[str, ...]:
    """One line ``name shape kind policy`` per entry, in name order; the shape as ``768x3072``."""
    return tuple(
        f"{entry.name} {'x'.join(map(str, entry.shape)) or 'scalar'} {entry.kind} {entry.policy}"
        for entry in sorted(entries, key=lambda entry: entry.name)
    )


def layout_digest(entries: Sequence[Entry]) -> bytes:
    """SHA-256 of the layout lines; equal on all islands of a run."""
    return hashlib.sha256("\n".join(layout_lines(entries)).encode()).digest()


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> str | None:
    """A sentence that names the first line in which two layouts differ; None where they are equal."""
    for own, other in zip_longest(mine, theirs):
        if own == other:
            continue
        if own is None or (other is not None and other.split()[0] < own.split()[0]):
            return f"this island's model lacks '{other}'"
        if other is None or own.split()[0] < other.split()[0]:
            return f"the other island's model lacks '{own}'"
        return f"this island's model has '{own}' where the other has '{other}'"
    return None


def _check_tensor(name: str, tensor: Tensor) -> None:
    if tensor.layout is not strided:
        raise ShapeError(f"parameter '{name}' is sparse", got=tensor.layout, wanted="a dense tensor")
    if not tensor.is_floating_point():
        raise ShapeError(f"parameter '{name}' is not real", got=tensor.dtype, wanted="a real floating-point type")
    if tensor.numel() == 0:
        raise ShapeError(
            f"'{name}' is empty", got=tuple(tensor.shape), wanted="at least one element", mend="Remove it."
        )


def _check_one_place(tensors: dict[str, Tensor]) -> None:
    on_meta = [name for name, tensor in tensors.items() if tensor.is_meta]
    if on_meta and len(on_meta) < len(tensors):
        raise ShapeError(
            f"'{on_meta[0]}' has no values: it is on the meta device, others are not",
            got=f"{len(on_meta)} of {len(tensors)} tensors without values",
            mend="Materialise the whole model before it joins.",
        )


def _wire_bits(entry: Entry) -> int:
    if entry.policy is Policy.LOSSLESS:
        return 32 * entry.numel
    return 4 * entry.numel + 16 * entry.rows * -(-entry.row_length // 128)


def _layer(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def _strided(entries: Sequence[Entry], num_fragments: int) -> list[list[Entry]]:
    bins: list[list[Entry]] = [[] for _ in range(num_fragments)]
    loose = []
    for entry in entries:
        layer = _layer(entry.name)
        if layer is None:
            loose.append(entry)
        else:
            bins[layer % num_fragments].append(entry)
    for entry in sorted(loose, key=lambda entry: (-_wire_bits(entry), entry.name)):
        min(bins, key=_weight).append(entry)
    return bins


def _weight(members: Sequence[Entry]) -> int:
    return sum(map(_wire_bits, members))


def _even_out(bins: list[list[Entry]]) -> bool:
    """Make one exchange that brings two bins' sizes closer; False where none is left or needed."""
    order = sorted(range(len(bins)), key=lambda index: (_weight(bins[index]), index))
    lightest, heaviest = order[0], order[-1]
    if 20 * _weight(bins[heaviest]) <= 21 * _weight(bins[lightest]):
        return False
    pairs = [(heaviest, target) for target in order[:-1]]
    pairs += [(source, lightest) for source in reversed(order[1:-1])]
    return any(_exchange(bins[source], bins[target]) for source, target in pairs)


def _exchange(source: list[Entry], target: list[Entry]) -> bool:
    """Give ``target`` an entry, perhaps for one of its own, so that the two come as close as they can.

    Gains under a sixteenth of the gap are not worth their time, except to a bin that is empty.
    """
    gap = _weight(source) - _weight(target)
    least = gap // 16 if target else 0
    returns: list[tuple[int, str, Entry | None]] = [(0, "", None)]
    returns += [(_wire_bits(entry), entry.name, entry) for entry in target]
    best: tuple[int, str, str] | None = None
    choice: tuple[Entry, Entry | None] | None = None
    for given in source:
        bits = _wire_bits(given)
        for back, name, taken in returns:
            net = bits - back
            if least < net < gap - least:
                rank = (abs(gap - 2 * net), given.name, name)
                if best is None or rank < best:
                    best, choice = rank, (given, taken)
    if choice is None:
        return False
    given, taken = choice
    source.remove(given)
    target.append(given)
    if taken is not None:
        target.remove(taken)
        source.append(taken)
    return True
