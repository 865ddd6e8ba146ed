"""Batches of token windows with a cursor that resumes exactly.

The tokens of a part (n of them, documents in order, each ended by the separator) are a circle. Epoch e cuts
W = n // S windows of S tokens from it, beginning where epoch e - 1 stopped, and visits them in an order
drawn from (seed, epoch, slot). So no token is an input twice in an epoch, and the fewer than S tokens that
an epoch leaves over open the next one: windows 0 .. W·E - 1 lie end to end on the circle, none lost. A
window's last target is the first input of the window after it on the circle.

The cursor counts sequences since the start, whatever the batch size was: the sequence at a cursor is a
function of the part, S, seed and slot alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.tokenizer import TokenArray
from isthmus.errors import DataError


class Stream(Protocol):
    """What a trainer reads from."""

    @property
    def cursor(self) -> int:
        """Sequences handed out since the start of the run."""
        ...

    def next_batch(self) -> Tensor:
        """The next batch, int64, shape [batch, S + 1]: inputs are ``[:, :-1]``, targets ``[:, 1:]``."""
        ...

    def seek(self, cursor: int) -> None:
        """Go to the sequence after the first ``cursor`` ones."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that ``load_state_dict`` needs to go on with the same sequences."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            DataError: The state is of other data.
        """
        ...


class WindowStream:
    """The stream over one part's tokens, held in one array (or mapped from a file).

    Args:
        tokens: The part, shape [n], any integer type.
        part: A digest of the tokens, which a saved state is checked against.
        sequence_length: S, inputs per sequence.
        batch_size: Sequences per batch; may differ between runs over one cursor.
        seed: The run's seed.
        slot: The island's slot.

    Raises:
        DataError: There are not more than S tokens.
    """

    def __init__(
        self, tokens: TokenArray, *, part: str, sequence_length: int, batch_size: int, seed: int, slot: int
    ) -> None:
        if len(tokens) <= sequence_length:
            raise DataError(
                "too little text for one sequence",
                got=f"{len(tokens)} tokens",
                wanted=f"more than {sequence_length}",
                mend="Give this island more text or shorter sequences.",
            )
        self._tokens: TokenArray = np.asarray(tokens)
        self._identity = {"part": part, "sequence_length": sequence_length, "seed": seed, "slot": slot}
        self._offsets = np.arange(sequence_length + 1, dtype=np.int64)
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._seed, self._slot = seed, slot
        self._cursor = 0
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def cursor(self) -> int:
        """Sequences handed out since the start of the run."""
        return self._cursor

    @property
    def num_tokens(self) -> int:
        """Tokens of the part, separators counted."""
        return len(self._tokens)

    @property
    def part(self) -> str:
        """The digest of the part."""
        return str(self._identity["part"])

    @property
    def sequences_per_epoch(self) -> int:
        """W, the windows of one epoch."""
        return len(self._tokens) // self._sequence_length

    def next_batch(self) -> Tensor:
        """The next batch, int64, shape [batch, S + 1]."""
        first = self._cursor
        starts = [self._start(cursor) for cursor in range(first, first + self._batch_size)]
        positions = (np.asarray(starts, np.int64)[:, None] + self._offsets) % len(self._tokens)
        self._cursor += self._batch_size
        return torch.from_numpy(self._tokens[positions].astype(np.int64))

    def seek(self, cursor: int) -> None:
        """Go to the sequence after the first ``cursor`` ones; any cursor from 0 on, at no cost."""
        if cursor < 0:
            raise DataError("a cursor cannot be negative", got=cursor)
        self._cursor = cursor

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and what gives it its meaning."""
        return {**self._identity, "cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the saved cursor.

        Raises:
            DataError: The state was taken over other text, another S, seed or slot.
        """
        saved = {key: state.get(key) for key in self._identity}
        if saved != self._identity:
            raise DataError(
                "a saved data cursor is of other data",
                got=saved,
                wanted=self._identity,
                mend="Restore the data (installed versions, files, shares), or seek to go on in the new.",
            )
        self.seek(int(state["cursor"]))

    def _start(self, cursor: int) -> int:
        epoch, index = divmod(cursor, self.sequences_per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng((self._seed, epoch, self._slot))
            self._order = generator.permutation(self.sequences_per_epoch)
            self._epoch = epoch
        window = epoch * self.sequences_per_epoch + int(self._order[index])
        return window * self._sequence_length % len(self._tokens)
