"""Opens the text of a run: an island's part of the train text, and the manifest of all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from isthmus.data.cache import cache_key, cached
from isthmus.data.documents import Document, distinct, owner, read_files, read_project
from isthmus.data.held_out import HeldOut, overlaps
from isthmus.data.held_out_sources import DEFAULT_HELD_OUT, HeldOutSpec, held_out_digests, held_out_files
from isthmus.data.manifest import Content, Manifest, held_out_entry, source_entry, train_digest
from isthmus.data.part import Part, build_part, cached_part
from isthmus.data.sources import (
    TRAIN_PROJECTS,
    SourceFile,
    find_project,
    fingerprint,
    glob_files,
    project_files,
)
from isthmus.data.stream import WindowStream
from isthmus.data.tokenizer import load_tokenizer
from isthmus.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What one island trains on.

    Attributes:
        slot: The island's slot.
        seed: The run's seed.
        sequence_length: S, inputs per sequence.
        batch_size: Sequences per batch.
        shares: How much of the text each slot gets, by slot, in any unit; every content belongs to exactly
            one slot, found from its hash. None: all of it is this island's.
        globs: The island's own files instead of the default text (.py .txt .md .jsonl, also .gz and .zst).
        domains: Of the default text, only these projects (``torch``, ``sympy``, ``numpy``, ``stdlib``).
        tokenizer: A Hugging Face ``tokenizers`` file; None is bytes.
        cache_dir: Where tokens are written once and mapped from afterwards; None keeps them in memory.
        held_out: The sets of the run: none of their files is ever trained on.
    """

    slot: int
    seed: int
    sequence_length: int
    batch_size: int
    shares: tuple[float, ...] | None = None
    globs: tuple[str, ...] = ()
    domains: tuple[str, ...] = TRAIN_PROJECTS
    tokenizer: Path | None = None
    cache_dir: Path | None = None
    held_out: tuple[HeldOutSpec, ...] = DEFAULT_HELD_OUT


def open_train(spec: TrainSpec) -> WindowStream:
    """The island's stream, at cursor 0.

    Raises:
        DataError: Text, a package or the tokenizer is missing or unusable, or the shares do not fit the slot.
    """
    part = open_part(spec)
    return WindowStream(
        part.tokens,
        part=part.summary.digest,
        sequence_length=spec.sequence_length,
        batch_size=spec.batch_size,
        seed=spec.seed,
        slot=spec.slot,
    )


def open_part(spec: TrainSpec) -> Part:
    """The island's tokens and their summary; raises as ``open_train``."""
    _check(spec)
    tokenizer = load_tokenizer(spec.tokenizer)
    files = _train_files(spec)
    if spec.cache_dir is None:
        return build_part(_part_documents(spec, files), tokenizer)
    key = _key(spec, files, tokenizer.name, "part", str(spec.shares and spec.slot), str(spec.shares))
    return cached_part(spec.cache_dir, key, partial(_part_documents, spec, files), tokenizer)


def part_documents(spec: TrainSpec) -> Iterator[Document]:
    """The documents of the island's part, in the order of its tokens; raises as ``open_train``."""
    _check(spec)
    return _part_documents(spec, _train_files(spec))


def describe(spec: TrainSpec, held_out: Mapping[str, HeldOut]) -> Manifest:
    """The manifest of the train text before it is cut in parts, and of the opened sets; overlap is measured.

    Kept in the cache directory, if there is one. Raises as ``open_train``.
    """
    _check(spec)
    files, tokenizer = _train_files(spec), load_tokenizer(spec.tokenizer).name
    sets = tuple(held_out.values())
    if spec.cache_dir is None:
        return _manifest(spec, files, sets, tokenizer)
    key = _key(spec, files, tokenizer, "manifest", *(f"{each.name} {each.digest}" for each in sets))
    make = partial(_manifest, spec, files, sets, tokenizer)
    return cached(spec.cache_dir / f"{key}.json", Manifest, make)


def _check(spec: TrainSpec) -> None:
    if spec.shares is not None and not (
        0 <= spec.slot < len(spec.shares) and min(spec.shares) >= 0 and spec.shares[spec.slot] > 0
    ):
        raise DataError(
            "the shares of the text do not fit this island",
            got=f"slot {spec.slot} of shares {spec.shares}",
            wanted="one share per slot, none below 0, and this slot's above 0",
        )
    unknown = sorted(set(spec.domains) - set(TRAIN_PROJECTS))
    if unknown or not spec.domains:
        raise DataError(
            "the default text has no such project",
            got=", ".join(unknown) or "none",
            wanted="some of " + ", ".join(TRAIN_PROJECTS),
            mend="Other text can be named by globs.",
        )


def _train_files(spec: TrainSpec) -> list[SourceFile]:
    if spec.globs:
        return glob_files(spec.globs)
    return [file for name in TRAIN_PROJECTS for file in project_files(find_project(name))]


def _train_documents(spec: TrainSpec, files: Iterable[SourceFile]) -> Iterator[Document]:
    excluded = held_out_digests(spec.held_out)
    if spec.globs:
        yield from distinct(read_files(files), excluded)
        return
    # All are read whatever the domains, so that text held by two belongs to the first, for everybody.
    for document in distinct(read_project(files), excluded):
        if document.project in spec.domains:
            yield document


def _part_documents(spec: TrainSpec, files: Iterable[SourceFile]) -> Iterator[Document]:
    for document in _train_documents(spec, files):
        if spec.shares is None or owner(document.digest, spec.shares) == spec.slot:
            yield document


def _key(spec: TrainSpec, files: Iterable[SourceFile], *more: str) -> str:
    kept_out = held_out_files(spec.held_out)
    return cache_key(fingerprint(files), fingerprint(kept_out), *sorted(spec.domains), *more)


def _manifest(spec: TrainSpec, files: Iterable[SourceFile], sets: tuple[HeldOut, ...], tokenizer: str) -> Manifest:
    listed: dict[str, list[Content]] = {}

    def texts() -> Iterator[bytes]:
        for document in _train_documents(spec, files):
            content = Content(document.name, document.digest, len(document.text))
            listed.setdefault(document.project, []).append(content)
            yield document.text

    shares = overlaps(sets, texts())
    sources = tuple(
        source_entry(project, "" if spec.globs else find_project(project).version, contents)
        for project, contents in listed.items()
    )
    held_out = tuple(held_out_entry(each, shares[each.name]) for each in sets)
    return Manifest(sources=sources, train=train_digest(sources), held_out=held_out, tokenizer=tokenizer)
