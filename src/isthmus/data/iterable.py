"""Any iterable of token tensors as a stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus.errors import DataError


class TokenSource(Protocol):
    """An iterable of token tensors (any integer type and shape) that can say where it is.

    After ``load_state_dict``, ``iter()`` goes on behind the last tensor yielded before the ``state_dict`` (as
    torchdata's StatefulDataLoader does); after its end, ``iter()`` starts over.
    """

    def __iter__(self) -> Iterator[Tensor]:
        """Yield token tensors."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the source is, all tensors yielded so far behind it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go there."""
        ...


class IterableStream:
    """Cuts the tokens of a source, in its own order, into windows of S inputs and one more target.

    Windows lie end to end; what is left at the end of the source opens the next pass. Which islands get which
    tokens is the source's business.

    Args:
        source: Where tokens come from; it is taken from where it stands.
        sequence_length: S, inputs per sequence.
        batch_size: Sequences per batch.
    """

    def __init__(self, source: TokenSource, *, sequence_length: int, batch_size: int) -> None:
        self._source = source
        self._start = copy.deepcopy(source.state_dict())
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._cursor = 0
        self._rest = torch.empty(0, dtype=torch.int64)
        self._tensors = iter(source)

    @property
    def cursor(self) -> int:
        """Sequences handed out since the start of the run."""
        return self._cursor

    def next_batch(self) -> Tensor:
        """The next batch, int64, shape [batch, S + 1].

        Raises:
            DataError: The source yields nothing, or something else than integer tensors.
        """
        return self._take(self._batch_size)

    def seek(self, cursor: int) -> None:
        """Go to the sequence after the first ``cursor`` ones by reading on, from the start if it lies behind.

        Raises:
            DataError: As ``next_batch``, or the cursor is negative.
        """
        if cursor < 0:
            raise DataError("a cursor cannot be negative", got=cursor)
        if cursor < self._cursor:
            self._restore(0, [], copy.deepcopy(self._start))
        while self._cursor < cursor:
            self._take(min(self._batch_size, cursor - self._cursor))

    def state_dict(self) -> dict[str, Any]:
        """The cursor, the tokens read and not yet handed out, the source's own state and where it began."""
        return {
            "cursor": self._cursor,
            "sequence_length": self._sequence_length,
            "rest": self._rest.tolist(),
            "source": copy.deepcopy(self._source.state_dict()),
            "start": copy.deepcopy(self._start),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            DataError: The state was taken at another S.
        """
        if state.get("sequence_length") != self._sequence_length:
            raise DataError(
                "a saved data cursor is of other data",
                got=f"sequences of {state.get('sequence_length')}",
                wanted=f"sequences of {self._sequence_length}",
            )
        self._start = copy.deepcopy(state["start"])
        self._restore(int(state["cursor"]), list(state["rest"]), copy.deepcopy(state["source"]))

    def _restore(self, cursor: int, rest: list[int], source_state: dict[str, Any]) -> None:
        self._source.load_state_dict(source_state)
        self._tensors = iter(self._source)
        self._cursor = cursor
        self._rest = torch.tensor(rest, dtype=torch.int64)

    def _take(self, num_sequences: int) -> Tensor:
        consumed = num_sequences * self._sequence_length
        self._fill(consumed + 1)
        windows = self._rest[: consumed + 1].unfold(0, self._sequence_length + 1, self._sequence_length)
        batch = windows.contiguous()
        self._rest = self._rest[consumed:].clone()
        self._cursor += num_sequences
        return batch

    def _fill(self, num_tokens: int) -> None:
        pieces, held = [self._rest], len(self._rest)
        while held < num_tokens:
            piece = self._next_tensor()
            pieces.append(piece)
            held += len(piece)
        self._rest = torch.cat(pieces)

    def _next_tensor(self) -> Tensor:
        for _ in range(2):
            for tensor in self._tensors:
                if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.is_complex():
                    raise DataError("a data source must yield integer tensors", got=_kind(tensor))
                if tensor.numel():
                    return tensor.detach().to("cpu", torch.int64).flatten()
            self._tensors = iter(self._source)
        raise DataError("a data source yields no tokens", mend="Check that it is not empty.")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
