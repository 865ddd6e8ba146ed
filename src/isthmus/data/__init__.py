"""Text as tokens: where it comes from, whose part it is, and a cursor that resumes exactly.

An island's part of the train text is a stream of batches (``open_train``), held-out sets (``open_held_out``)
never share a file with it, and the manifest (``describe``) says what a score was trained and measured on. By
default all text is what any installation has; globs or an iterable of token tensors (``IterableStream``) take
its place.
"""

from __future__ import annotations

from isthmus.data.corpus import TrainSpec, describe, open_part, open_train, part_documents
from isthmus.data.documents import Document
from isthmus.data.held_out import HeldOut, overlaps
from isthmus.data.held_out_sources import (
    DEFAULT_HELD_OUT,
    PYTHON_CODE,
    TECHNICAL_ENGLISH,
    HeldOutSpec,
    open_held_out,
)
from isthmus.data.iterable import IterableStream, TokenSource
from isthmus.data.manifest import HeldOutEntry, Manifest, SourceEntry, describe_manifest
from isthmus.data.part import Part, PartSummary
from isthmus.data.sources import TRAIN_PROJECTS
from isthmus.data.stream import Stream, WindowStream
from isthmus.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "DEFAULT_HELD_OUT",
    "PYTHON_CODE",
    "TECHNICAL_ENGLISH",
    "TRAIN_PROJECTS",
    "ByteTokenizer",
    "Document",
    "FileTokenizer",
    "HeldOut",
    "HeldOutEntry",
    "HeldOutSpec",
    "IterableStream",
    "Manifest",
    "Part",
    "PartSummary",
    "SourceEntry",
    "Stream",
    "TokenSource",
    "Tokenizer",
    "TrainSpec",
    "WindowStream",
    "describe",
    "describe_manifest",
    "load_tokenizer",
    "open_held_out",
    "open_part",
    "open_train",
    "overlaps",
    "part_documents",
]
