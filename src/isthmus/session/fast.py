"""The fast weights: the model's own tensors, which are changed in place and never rebound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from isthmus.codec import is_finite
from isthmus.errors import ShapeError
from isthmus.session.groups import Piece, Span


class FastWeights:
    """The trained tensors, fp32, and the low-precision parameters that follow some of them.

    Args:
        tensors: The trained tensors by canonical name.
        mirrors: Low-precision parameters that follow an fp32 master in ``tensors``, by name.

    Raises:
        ShapeError: A tensor is not fp32 and has no fp32 master.
    """

    def __init__(self, tensors: Mapping[str, Tensor], mirrors: Mapping[str, Tensor]) -> None:
        self._owners = dict(tensors)
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._mirrors = {name: tensor.detach() for name, tensor in mirrors.items()}
        for name, tensor in self._tensors.items():
            _require_fp32(name, tensor)
        self._matrices = {name: _matrix(tensor) for name, tensor in self._tensors.items() if tensor.is_contiguous()}

    @property
    def masters(self) -> dict[str, Tensor]:
        """The tensors that a low-precision parameter follows."""
        return {name: self._tensors[name] for name in self._mirrors}

    def check_place(self) -> None:
        """Refuse to go on with a model whose tensors were replaced: what is trained there is no longer seen here.

        Raises:
            ShapeError: A parameter was moved or rebound since the island joined.
        """
        for name, owner in self._owners.items():
            if owner.data_ptr() != self._tensors[name].data_ptr():
                raise ShapeError(
                    f"'{name}' was moved or rebound after the island joined",
                    got=f"now on {owner.device}",
                    wanted="the same memory for the whole run; weights are changed in place",
                    mend="Move the model to its device before the island joins, and never assign to param.data.",
                )

    def are_finite(self, names: Iterable[str]) -> bool:
        """Whether every one of these weights is a finite number."""
        return all(is_finite(self._tensors[name]) for name in names)

    @contextmanager
    def rows(self, piece: Piece) -> Iterator[Tensor]:
        """The fast weights of a piece as one matrix; what is changed in it for the duration, changes in the model."""
        own = self._own(piece)
        if len(own) == 1 and own[0].is_contiguous():
            yield own[0]
            return
        rows = torch.empty(piece.shape, dtype=torch.float32, device=own[0].device)
        parts = _divided(rows, piece, own)
        torch._foreach_copy_(parts, own)
        yield rows
        torch._foreach_copy_(own, parts)

    def add(self, piece: Piece, rows: Tensor) -> None:
        """Add a matrix to the fast weights of a piece."""
        own = self._own(piece)
        torch._foreach_add_(own, _divided(rows, piece, own))

    def set(self, piece: Piece, rows: Tensor) -> None:
        """Let the fast weights of a piece be a matrix."""
        own = self._own(piece)
        torch._foreach_copy_(own, _divided(rows, piece, own))

    def copies(self) -> dict[str, Tensor]:
        """Copies by name."""
        return {name: tensor.clone() for name, tensor in self._tensors.items()}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Let the fast weights be these."""
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])
        self.mirror(self._tensors)

    @torch.no_grad()
    def mirror(self, names: Iterable[str]) -> None:
        """Let the low-precision parameters of these names follow."""
        for name in names:
            if name in self._mirrors:
                self._mirrors[name].copy_(self._tensors[name])

    def _own(self, piece: Piece) -> list[Tensor]:
        """The tensors of a piece, as rows if they are contiguous."""
        return [self._rows(span) for span in piece.spans]

    def _rows(self, span: Span) -> Tensor:
        matrix = self._matrices.get(span.entry.name)
        if matrix is None:
            return self._tensors[span.entry.name]
        return matrix if span.rows == span.entry.rows else matrix[span.first : span.first + span.rows]


def _divided(rows: Tensor, piece: Piece, own: Sequence[Tensor]) -> list[Tensor]:
    """Views of a matrix that are to the piece's tensors what they are to each other."""
    parts = rows.split_with_sizes([span.rows for span in piece.spans])
    return [part.view(tensor.shape) for part, tensor in zip(parts, own, strict=True)]


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.view(-1, tensor.shape[-1] if tensor.ndim else 1)


def _require_fp32(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32:
        raise ShapeError(
            f"'{name}' cannot be mixed between islands in its own precision",
            got=tensor.dtype,
            wanted="torch.float32: a correction is smaller than a bf16 weight's last bit and would be rounded away",
            mend="Train fp32 parameters under autocast, or pass the optimizer's fp32 masters: masters={name: tensor}.",
        )
