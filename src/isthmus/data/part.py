"""One island's tokens in one array, in memory or mapped from a cache."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from isthmus.data.cache import cache_file, read_cached, write_cached
from isthmus.data.documents import Document
from isthmus.data.tokenizer import TokenArray, Tokenizer
from isthmus.errors import DataError


class PartSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a part holds; ``digest`` is over its documents in order and the tokenizer, ``num_bytes`` UTF-8."""

    documents: int
    num_bytes: int
    num_tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of a part, shape [num_tokens], each document ended by the separator."""

    tokens: TokenArray
    summary: PartSummary


def build_part(documents: Iterable[Document], tokenizer: Tokenizer) -> Part:
    """Encode ``documents`` into memory.

    Raises:
        DataError: There is no document.
    """
    buffer = io.BytesIO()
    summary = _write_tokens(documents, tokenizer, buffer)
    return Part(np.frombuffer(buffer.getbuffer(), tokenizer.dtype), summary)


def cached_part(cache_dir: Path, key: str, documents: Callable[[], Iterable[Document]], tokenizer: Tokenizer) -> Part:
    """The part written under ``key`` before, mapped from its file; else encode ``documents()`` and write it.

    Both files appear by atomic rename, tokens first, and their content follows from the key: processes that
    start at once write the same bytes, and none reads a half.

    Args:
        cache_dir: Where ``KEY.bin`` and ``KEY.json`` are; made if missing.
        key: A digest of everything that the tokens depend on.
        documents: Called only where nothing usable is cached.
        tokenizer: What encodes them.

    Raises:
        DataError: There is no document, or the cache cannot be written.
    """
    tokens_path, summary_path = cache_dir / f"{key}.bin", cache_dir / f"{key}.json"
    summary = read_cached(summary_path, PartSummary)
    if summary is None or not _has_size(tokens_path, summary.num_tokens * tokenizer.dtype.itemsize):
        with cache_file(tokens_path) as stream:
            summary = _write_tokens(documents(), tokenizer, stream)
        write_cached(summary_path, summary)
    return Part(np.memmap(tokens_path, tokenizer.dtype, mode="r"), summary)


def _write_tokens(documents: Iterable[Document], tokenizer: Tokenizer, stream: BinaryIO) -> PartSummary:
    separator = np.array([tokenizer.separator], tokenizer.dtype).tobytes()
    digest = hashlib.sha256(tokenizer.name.encode())
    count = num_bytes = num_tokens = 0
    for document in documents:
        tokens = tokenizer.encode(document.text)
        stream.write(tokens.tobytes())
        stream.write(separator)
        digest.update(document.digest)
        count += 1
        num_bytes += len(document.text)
        num_tokens += len(tokens) + 1
    if count == 0:
        raise DataError("there is no text for this island", mend="Give it more files or a larger share.")
    return PartSummary(documents=count, num_bytes=num_bytes, num_tokens=num_tokens, digest=digest.hexdigest())


def _has_size(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False
