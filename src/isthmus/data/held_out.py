"""Text that training never shows, and the yardsticks beside its scores.

Scores are bits per UTF-8 byte of the documents, the convention of lm-eval's ``bits_per_byte``
(``loglikelihood_rolling``): separators and special tokens add no bytes, so that tokenizers compare fairly.
"""

from __future__ import annotations

import hashlib
import lzma
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from isthmus.data.documents import Document, distinct
from isthmus.data.tokenizer import Tokenizer
from isthmus.errors import DataError

LONG_LINE_BYTES = 40
"""Lines shorter than this, stripped, are ignored by the overlap: everybody writes ``return self``."""


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A held-out set.

    ``documents`` are UTF-8, ordered by their hash; ``source`` says what they are of (``networkx 3.6.1``);
    ``digest`` is over their contents.
    """

    name: str
    source: str
    documents: tuple[bytes, ...]
    digest: str

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all documents: what bits per byte divides by."""
        return sum(map(len, self.documents))

    def encode(self, tokenizer: Tokenizer) -> list[Tensor]:
        """Every document as int64 ids after one separator as context, shape [1 + tokens].

        All ids but the first are to be scored; their bits over ``num_bytes`` are the bits per byte.

        Raises:
            DataError: The tokenizer loses text, so that bits per byte would be wrong.
        """
        return [_encode(self.name, text, tokenizer) for text in self.documents]

    def xz_bits_per_byte(self) -> float:
        """Bits per byte of ``xz -6`` on the concatenated documents."""
        return 8 * len(lzma.compress(b"".join(self.documents), preset=6)) / self.num_bytes

    def overlap(self, train: Iterable[bytes]) -> float:
        """The share of this set in ``train``; see ``overlaps``."""
        return overlaps([self], train)[self.name]


def make_held_out(name: str, source: str, documents: Iterable[Document], max_bytes: int | None = None) -> HeldOut:
    """A held-out set of distinct documents.

    Args:
        name: What it is called beside its scores.
        source: What the documents are of.
        documents: In any order.
        max_bytes: Keep whole documents, in the order of their hashes, as long as they fit.

    Raises:
        DataError: No document is left.
    """
    chosen: list[Document] = []
    room = max_bytes
    for document in sorted(distinct(documents), key=lambda each: each.digest):
        if room is None or len(document.text) <= room:
            chosen.append(document)
            room = None if room is None else room - len(document.text)
    if not chosen:
        raise DataError(
            f"the held-out set {name!r} is empty",
            got=f"no document of {source}" + ("" if max_bytes is None else f" within {max_bytes} bytes"),
            mend="Name files that hold text, or allow more bytes.",
        )
    digest = hashlib.sha256(b"".join(document.digest for document in chosen)).hexdigest()
    return HeldOut(name, source, tuple(document.text for document in chosen), digest)


def overlaps(sets: Sequence[HeldOut], train: Iterable[bytes]) -> dict[str, float]:
    """Of the bytes in each set's long lines, the share in lines that ``train`` has too; one pass over it.

    A line is long from 40 bytes on, stripped.
    """
    long_lines = {held_out.name: _long_lines(held_out.documents) for held_out in sets}
    wanted = set[bytes]().union(*long_lines.values())
    found: set[bytes] = set()
    for text in train:
        found |= wanted.intersection(map(bytes.strip, text.split(b"\n")))
    return {name: _share(lines, found) for name, lines in long_lines.items()}


def _long_lines(documents: Iterable[bytes]) -> Counter[bytes]:
    lines = Counter(line.strip() for text in documents for line in text.split(b"\n"))
    return Counter({line: count for line, count in lines.items() if len(line) >= LONG_LINE_BYTES})


def _share(lines: Counter[bytes], found: set[bytes]) -> float:
    total = sum(len(line) * count for line, count in lines.items())
    seen = sum(len(line) * count for line, count in lines.items() if line in found)
    return seen / total if total else 0.0


def _encode(name: str, text: bytes, tokenizer: Tokenizer) -> Tensor:
    tokens = tokenizer.encode(text)
    if tokenizer.decode(tokens) != text:
        raise DataError(
            f"the tokenizer {tokenizer.name} loses text of {name!r}, so bits per byte would be wrong",
            wanted="a tokenizer that gives every byte back",
            mend="Take a byte-level tokenizer without normalizer.",
        )
    ids = torch.empty(len(tokens) + 1, dtype=torch.int64)
    ids[0] = tokenizer.separator
    ids[1:] = torch.from_numpy(tokens.astype(np.int64))
    return ids
