"""What a score was trained and measured on; its digest stands beside the score."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from isthmus.data.held_out import HeldOut
from isthmus.units import format_bytes

OVERLAP_DIGITS = 6
DIGEST_CHARACTERS = 12


class Content(NamedTuple):
    """A document without its text."""

    name: str
    digest: bytes
    num_bytes: int


class SourceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A train project: its installed version, how much of it is used, and a digest over (name, content)."""

    project: str
    version: str
    documents: int
    num_bytes: int
    digest: str


class HeldOutEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A held-out set; ``overlap`` is the share of its bytes in long lines that the train text has too."""

    name: str
    source: str
    documents: int
    num_bytes: int
    digest: str
    overlap: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All text of a run. The train text is the whole of what its islands share, before it is cut in parts."""

    sources: tuple[SourceEntry, ...]
    train: str
    held_out: tuple[HeldOutEntry, ...]
    tokenizer: str

    @property
    def digest(self) -> str:
        """Twelve hex digits that change with anything in here."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:DIGEST_CHARACTERS]


def describe_manifest(manifest: Manifest) -> tuple[str, ...]:
    """What is trained and scored on, and how far they overlap, in lines for people."""
    train = ", ".join(f"{source.project} {source.version}".rstrip() for source in manifest.sources)
    held_out = (
        f"Held out, {each.name}: {each.source}, {format_bytes(each.num_bytes)}, overlap {each.overlap:.2%}."
        for each in manifest.held_out
    )
    return (f"Training text: {train}, in disjoint parts.", *held_out, f"Manifest of the data: {manifest.digest}.")


def source_entry(project: str, version: str, contents: Iterable[Content]) -> SourceEntry:
    """Summarise the documents of one project; their order does not matter."""
    ordered = sorted(contents)
    digest = hashlib.sha256()
    for content in ordered:
        digest.update(f"{content.name}\0{content.digest.hex()}\n".encode())
    return SourceEntry(
        project=project,
        version=version,
        documents=len(ordered),
        num_bytes=sum(content.num_bytes for content in ordered),
        digest=digest.hexdigest(),
    )


def held_out_entry(held_out: HeldOut, overlap: float) -> HeldOutEntry:
    """Summarise a held-out set."""
    return HeldOutEntry(
        name=held_out.name,
        source=held_out.source,
        documents=len(held_out.documents),
        num_bytes=held_out.num_bytes,
        digest=held_out.digest,
        overlap=round(overlap, OVERLAP_DIGITS),
    )


def train_digest(sources: Iterable[SourceEntry]) -> str:
    """A digest of the train text alone."""
    return hashlib.sha256("".join(entry.digest for entry in sources).encode()).hexdigest()
