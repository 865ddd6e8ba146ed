"""Text to token ids: bytes by default, or a Hugging Face ``tokenizers`` file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import DataError

TokenArray = NDArray[np.integer[Any]]

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")


class Tokenizer(Protocol):
    """Encodes whole documents; ``name`` tells two tokenizers apart.

    ``separator`` is the id that ends every document in a stream (and may stand before one as context);
    ``vocab_size`` counts it. ``dtype`` is the smallest integer type that holds all ids.
    """

    name: str
    vocab_size: int
    separator: int
    dtype: np.dtype[Any]

    def encode(self, text: bytes) -> TokenArray:
        """The ids of ``text`` (UTF-8), without separator, shape [tokens]."""
        ...

    def decode(self, tokens: TokenArray) -> bytes:
        """The text of ``tokens``, UTF-8."""
        ...


class ByteTokenizer:
    """Ids 0..255 are the bytes; 0, which no text holds, separates documents."""

    name = "bytes"
    vocab_size = 256
    separator = 0
    dtype = np.dtype(np.uint8)

    def encode(self, text: bytes) -> TokenArray:
        """One id a byte, shape [bytes]."""
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: TokenArray) -> bytes:
        """The bytes themselves."""
        return tokens.astype(np.uint8).tobytes()


class FileTokenizer:
    """A Hugging Face ``tokenizers`` JSON file.

    The separator is the file's end-of-text token if it has one of the usual names, else one id more.

    Raises:
        DataError: The package ``tokenizers`` or the file is missing, or the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise DataError(
                "a tokenizer file needs the package tokenizers",
                mend="Run: pip install 'isthmus[tokenizers]' (or leave the tokenizer out: bytes).",
            ) from error
        try:
            content = path.read_bytes()
            self._inner = tokenizers.Tokenizer.from_buffer(content)
        except (OSError, ValueError) as error:
            raise DataError("a tokenizer cannot be read", got=f"{path}: {error}") from error
        self._inner.no_truncation()
        self._inner.no_padding()
        size = self._inner.get_vocab_size(with_added_tokens=True)
        named = (self._inner.token_to_id(token) for token in _END_OF_TEXT)
        self.separator: int = next((token for token in named if token is not None), size)
        self.vocab_size: int = max(size, self.separator + 1)
        self.name = f"{path.name} {hashlib.sha256(content).hexdigest()[:12]}"
        self.dtype: np.dtype[Any] = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.int32)

    def encode(self, text: bytes) -> TokenArray:
        """The ids of ``text``, no special tokens added, shape [tokens]."""
        ids = self._inner.encode(text.decode(), add_special_tokens=False).ids
        return np.asarray(ids, self.dtype)

    def decode(self, tokens: TokenArray) -> bytes:
        """The text of ``tokens``, special tokens spelled out."""
        return str(self._inner.decode(tokens.tolist(), skip_special_tokens=False)).encode()


def load_tokenizer(path: Path | None) -> Tokenizer:
    """The tokenizer of a run: the file at ``path``, or bytes if None.

    Raises:
        DataError: See ``FileTokenizer``.
    """
    return ByteTokenizer() if path is None else FileTokenizer(path)
