"""The fast weights: the model's own tensors, which are changed in place and never rebound.

A rank works on its share of their rows. Those that do not lie in its memory as such are fetched, all of a fragment's
at once, and pushed back to where the model computes with them; every rank does both at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from isthmus.codec import is_finite
from isthmus.errors import ShapeError
from isthmus.island import Ranks, hold, local_part
from isthmus.parts import Part
from isthmus.session.copies import Landing, SideStream
from isthmus.session.groups import Piece, Span
from isthmus.session.memories import HOST, new_rows


class FastWeights:
    """The trained tensors, fp32, and the low-precision parameters that follow some of them.

    Args:
        tensors: The trained tensors by canonical name.
        mirrors: Low-precision parameters that follow an fp32 master in ``tensors``, by name.
        ranks: The island's.
        settle: Called before the model's tensors are changed.
        slow_side: What copies rows to slow state in host memory and back; None where that lies beside these tensors.

    Raises:
        ShapeError: A tensor is not fp32 and has no fp32 master.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        mirrors: Mapping[str, Tensor],
        ranks: Ranks,
        settle: Callable[[], None],
        *,
        slow_side: SideStream | None = None,
    ) -> None:
        self._settle, self._side = settle, slow_side
        for name, tensor in tensors.items():
            _require_fp32(name, tensor)
        self._owners = dict(tensors)
        self._held = {name: hold(tensor, ranks) for name, tensor in tensors.items()}
        self._mirrors = {name: hold(tensor, ranks).local for name, tensor in mirrors.items()}
        for name, mirror in self._mirrors.items():
            _require_alike(name, mirror, self._held[name].local)
        _require_copies({name: held.local for name, held in self._held.items() if held.is_copy}, ranks)
        self._rows = {name: held.in_place for name, held in self._held.items() if held.in_place is not None}

    @property
    def masters(self) -> dict[str, Part]:
        """The tensors that a low-precision parameter follows, as far as they lie here."""
        return {name: self._held[name].part for name in self._mirrors}

    def slow_device_of(self, name: str) -> torch.device:
        """Where the slow state of a tensor lies."""
        return HOST if self._side is not None else self._held[name].local.device

    def check_place(self) -> None:
        """Refuse to go on with a model whose tensors were replaced: what is trained there is no longer seen here.

        Raises:
            ShapeError: A parameter was moved or rebound since the island joined.
        """
        for name, owner in self._owners.items():
            if local_part(owner).data_ptr() != self._held[name].local.data_ptr():
                raise ShapeError(
                    f"'{name}' was moved or rebound after the island joined",
                    got=f"now on {owner.device}",
                    wanted="the same memory for the whole run; weights are changed in place",
                    mend="Move the model to its device before the island joins, and never assign to param.data.",
                )

    def are_finite(self, names: Iterable[str]) -> bool:
        """Whether every one of these weights that lies here is a finite number."""
        return all(is_finite(self._held[name].local) for name in names)

    @contextmanager
    def fetched(self, names: Sequence[str], *, push: bool = True) -> Iterator[dict[str, Tensor]]:
        """This rank's rows [k, n] of some tensors, by name, for the duration of ``rows``, ``add`` and ``set``.

        Afterwards the model's tensors are made of all ranks' rows, and low-precision ones follow. All ranks call it.
        """
        self._settle()
        staged = [name for name in names if name not in self._rows]
        try:
            for name in staged:
                self._rows[name] = self._held[name].fetch()
            yield {name: self._rows[name] for name in names}
            if push:
                for name in names:
                    self._held[name].push(self._rows[name])
                self.mirror(names)
        finally:
            for name in staged:
                self._rows.pop(name, None)

    def in_turn(self, pieces: Sequence[Piece]) -> Iterator[Tensor]:
        """The fast weights of each piece as one matrix.

        What is changed in one before the next is taken, changes in the model.
        """
        return self._each_here(pieces) if self._side is None else self._each_on_host(pieces, self._side)

    def _each_here(self, pieces: Sequence[Piece]) -> Iterator[Tensor]:
        for piece in pieces:
            own = self._own(piece)
            if len(own) == 1:
                yield own[0]
                continue
            rows = new_rows(piece.shape, own[0].device)
            parts = _divided(rows, piece)
            torch._foreach_copy_(parts, own)
            yield rows
            torch._foreach_copy_(own, parts)

    def _each_on_host(self, pieces: Sequence[Piece], side: SideStream) -> Iterator[Tensor]:
        """Those on an accelerator in host memory: the next comes and the last goes while one is worked on."""
        coming = [self._fetch(piece, side) for piece in pieces[:1]]
        for place, piece in enumerate(pieces):
            rows, landing = coming.pop()
            coming += [self._fetch(later, side) for later in pieces[place + 1 : place + 2]]
            landing.finish()
            yield rows
            side.bring_back(_divided(rows, piece), self._own(piece))
        side.join()

    def _fetch(self, piece: Piece, side: SideStream) -> tuple[Tensor, Landing]:
        rows = new_rows(piece.shape, HOST)
        return rows, side.fetch(self._own(piece), _divided(rows, piece))

    def add(self, piece: Piece, rows: Tensor) -> None:
        """Add a matrix to the fast weights of a piece."""
        torch._foreach_add_(self._own(piece), _divided(self._near(rows), piece))

    def set(self, piece: Piece, rows: Tensor) -> None:
        """Let the fast weights of a piece be a matrix."""
        torch._foreach_copy_(self._own(piece), _divided(self._near(rows), piece))

    def copies(self) -> dict[str, Tensor]:
        """Copies by name of what lies here."""
        return {name: held.local.clone() for name, held in self._held.items()}

    @torch.no_grad()
    def restore(self, copies: Mapping[str, Tensor]) -> None:
        """Let the fast weights be what ``copies`` gave."""
        self._settle()
        for name, held in self._held.items():
            held.local.copy_(copies[name])
        self.mirror(self._held)

    @torch.no_grad()
    def take(self, rows: Mapping[str, Tensor]) -> None:
        """Let the fast weights be made of all ranks' rows [k, n], of which these are this one's. All ranks call it."""
        self._settle()
        for name, held in self._held.items():
            held.push(rows[name].to(held.local.device) if name in rows else held.no_rows())
        self.mirror(self._held)

    @torch.no_grad()
    def mirror(self, names: Iterable[str]) -> None:
        """Let the low-precision parameters of these names follow."""
        for name in names:
            if name in self._mirrors:
                self._mirrors[name].copy_(self._held[name].local)

    def _near(self, rows: Tensor) -> Tensor:
        """Rows of slow state where the model's tensors lie."""
        return rows if self._side is None else self._side.up_rows(rows)

    def _own(self, piece: Piece) -> list[Tensor]:
        """The rows of a piece's tensors."""
        return [self._rows_of(span) for span in piece.spans]

    def _rows_of(self, span: Span) -> Tensor:
        return self._rows[span.entry.name][span.first : span.first + span.rows]


def _divided(rows: Tensor, piece: Piece) -> list[Tensor]:
    """Views of a matrix, one for each of the piece's tensors."""
    return list(rows.split_with_sizes([span.rows for span in piece.spans]))


def _require_copies(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Refuse tensors that should be the same at all ranks and are not."""
    if ranks.size == 1:
        return
    digests = [hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).digest() for tensor in tensors.values()]
    told = ranks.collect(b"".join(digests))
    for place, name in enumerate(tensors):
        part = slice(32 * place, 32 * (place + 1))
        differ = [rank for rank, each in enumerate(told) if each[part] != told[0][part]]
        if differ:
            raise ShapeError(
                f"'{name}' is a plain tensor, but not the same at all ranks of the island",
                got=f"other values than rank 0's at ranks {differ}",
                wanted="copies, or DTensors that say how they are divided",
                mend="Begin with one seed at all ranks, and divide weights by fully_shard or as DTensors.",
            )


def _require_alike(name: str, mirror: Tensor, master: Tensor) -> None:
    if mirror.shape != master.shape:
        raise ShapeError(
            f"the fp32 master of '{name}' is not divided among ranks as the parameter is",
            got=tuple(master.shape),
            wanted=f"{tuple(mirror.shape)} at this rank",
            mend="Make masters of the parameters that are sharded already: parameter.detach().float().",
        )


def _require_fp32(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise ShapeError(
            f"'{name}' cannot be mixed between islands in its own precision",
            got=tensor.dtype,
            wanted="torch.float32: a correction is smaller than a bf16 weight's last bit and would be rounded away",
            mend="Train fp32 parameters under autocast, or pass the optimizer's fp32 masters: masters={name: tensor}.",
        )
