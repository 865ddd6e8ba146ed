"""Save and load one nested state: whole or not at all, newest first, the one before it as the fallback.

A checkpoint is two files with one number: ``checkpoint-00000007.safetensors`` holds the state, and
``checkpoint-00000007.json``, written after it, holds its length and SHA-256 and so commits it. Numbers only
grow and no file is ever written twice, so each committed checkpoint stays what it was when it was committed.
Of several processes (``shared.py``) tensors are in a folder beside it, ``checkpoint-00000007.shards``, whose files are
committed with it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from isthmus.checkpoint.hashing import Hashed, HashingReader, ShardFile, hash_file
from isthmus.checkpoint.safetensors_file import Leaf, decode, encode
from isthmus.checkpoint.storage import LocalStorage, Storage
from isthmus.checkpoint.structure import flatten, unflatten
from isthmus.errors import CheckpointError
from isthmus.parts import Part, Stored

FORMAT = "isthmus-checkpoint-1"

_PREFIX = "checkpoint-"
_STATE = ".safetensors"
_COMMIT = ".json"
_FILE = re.compile(r"checkpoint-(\d{8,18})\.(?:safetensors|json)", re.ASCII)
SHARDS = ".shards"
_MAX_COMMIT_BYTES = 1 << 24


@dataclass(frozen=True)
class SavedInfo:
    """A checkpoint that is safe on its storage; ``num_bytes`` counts the files of its state."""

    name: str
    step: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Skipped:
    """A committed checkpoint that could not be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class LoadedInfo:
    """The checkpoint a state came from, and the newer ones that were damaged."""

    name: str
    step: int
    num_bytes: int
    skipped: tuple[Skipped, ...]


class _Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the small file says of the large ones."""

    format: str
    step: int
    num_bytes: int
    sha256: str
    shards: tuple[ShardFile, ...] = ()

    @property
    def all_bytes(self) -> int:
        return self.num_bytes + sum(file.num_bytes for file in self.shards)


@dataclass(frozen=True)
class Reader:
    """One of several processes that read a checkpoint together, each a part of what must be verified.

    ``together`` does a piece of work at all of them; if one of them cannot, it raises at all. ``of_first`` is what the
    first of them gives.
    """

    rank: int = 0
    size: int = 1
    together: Callable[[Callable[[], Any]], Any] = lambda work: work()
    of_first: Callable[[bytes], bytes] = lambda own: own


def save(storage: Storage, step: int, state: Mapping[str, Any]) -> SavedInfo:
    """Store ``state`` as the newest checkpoint; durable when this returns. Nothing older is touched.

    Args:
        storage: Where to; this call must be its only writer meanwhile.
        step: The step the state belongs to.
        state: None, bool, int, float, str, bytes, tensors, and lists, tuples and mappings of these; must not
            change during the call. Tensors are stored by value.

    Raises:
        CheckpointError: The disk is full or failing, or the state holds something that cannot be stored. The
            checkpoints before it stay good.
    """
    structure, leaves = flatten(dict(state))
    try:
        storage.sweep()
        sweep_shards(storage)
        return write_state(storage, next_name(storage), step, structure, whole_leaves(leaves))
    except OSError as error:
        raise not_saved(step, error) from error


def load_latest(storage: Storage, reader: Reader | None = None) -> tuple[dict[str, Any], LoadedInfo] | None:
    """The newest state that verifies, on the CPU; None where nothing was ever committed.

    What several processes have saved in parts is verified and left on the disk: a ``Stored`` stands for it, from which
    ``fill`` reads.

    Args:
        storage: Where from.
        reader: This process among several that all make the call; alone if None.

    Raises:
        CheckpointError: There are checkpoints, and all are damaged.
        OSError: The storage cannot be listed.
    """
    skipped: list[Skipped] = []
    among = reader or Reader()
    names = among.of_first(" ".join(_committed(storage)).encode()).decode().split()
    for name in reversed(names):
        try:
            state, commit = among.together(partial(_try_load, storage, name, among))
        except CheckpointError as error:
            skipped.append(Skipped(name, str(error)))
        else:
            return state, LoadedInfo(name, commit.step, commit.all_bytes, tuple(skipped))
    if not skipped:
        return None
    raise CheckpointError(
        "no checkpoint can be used",
        got=" | ".join(f"{skip.name}: {skip.reason}" for skip in skipped),
        mend="Restore the files from a copy, or move them away to start without a checkpoint.",
    )


def prune(storage: Storage, *, keep: int = 2) -> tuple[str, ...]:
    """Delete all but the newest ``keep`` committed checkpoints, and what interrupted saves left.

    Call it after ``save`` has returned. An interruption leaves whole checkpoints, and leftovers of old ones.

    Returns:
        The names of what was deleted.

    Raises:
        CheckpointError: ``keep`` is below 1.
        OSError: The storage fails.
    """
    if keep < 1:
        raise CheckpointError("at least one checkpoint must be kept", got=keep)
    storage.sweep()
    kept = set(_committed(storage)[-keep:])
    stale = sorted({_stem(number) for number in _numbers(storage.names(_PREFIX))} - kept)
    for name in stale:
        _discard(storage, name)
    sweep_shards(storage)
    return tuple(stale)


def sweep_shards(storage: Storage) -> None:
    """Remove shards without a commit; only for the writer, between its writes."""
    kept = set(_committed(storage))
    for folder in shard_folders(storage):
        if folder.name.removesuffix(SHARDS) not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def next_name(storage: Storage) -> str:
    """That of the checkpoint to be written next."""
    used = _numbers(storage.names(_PREFIX)) | _numbers(
        f"{folder.name.removesuffix(SHARDS)}{_COMMIT}" for folder in shard_folders(storage)
    )
    return _stem(max(used, default=0) + 1)


def shard_folders(storage: Storage) -> list[Path]:
    """All folders of shards beside the files of a storage."""
    return sorted(storage.root.glob(f"{_PREFIX}*{SHARDS}")) if isinstance(storage, LocalStorage) else []


def whole_leaves(leaves: Mapping[str, Leaf | Part]) -> dict[str, Leaf]:
    """Leaves that one process has whole; there must be no others."""
    whole: dict[str, Leaf] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, Part):
            raise CheckpointError("a part of a tensor cannot be saved by one process", got=leaf.shape)
        whole[name] = leaf
    return whole


def write_state(
    storage: Storage,
    name: str,
    step: int,
    structure: str,
    leaves: Mapping[str, Leaf],
    shards: tuple[ShardFile, ...] = (),
) -> SavedInfo:
    """Write the state and then its commit, with that of shards written before; on an error nothing is left of it.

    Raises:
        OSError: The disk is full or failing.
    """
    chunks = Hashed(encode(leaves, {"format": FORMAT, "step": str(step), "structure": structure}))
    try:
        storage.write_atomic(f"{name}{_STATE}", chunks)
        commit = _Commit(FORMAT, step, chunks.num_bytes, chunks.sha256, shards)
        storage.write_atomic(f"{name}{_COMMIT}", [msgspec.json.encode(commit)])
    except OSError:
        with suppress(OSError):
            _discard(storage, name)
        raise
    return SavedInfo(name, step, commit.all_bytes, commit.sha256)


def not_saved(step: int, error: object) -> CheckpointError:
    """What to say where a checkpoint could not be written."""
    return CheckpointError(
        f"the checkpoint of step {step} was not saved",
        got=error,
        mend="Older checkpoints are good. Free space or repair the disk; the next save tries again.",
    )


def _try_load(storage: Storage, name: str, among: Reader) -> tuple[dict[str, Any], _Commit]:
    try:
        return _load(storage, name, among)
    except OSError as error:
        raise CheckpointError("a file cannot be read", got=error) from error


def _load(storage: Storage, name: str, among: Reader) -> tuple[dict[str, Any], _Commit]:
    commit = _read_commit(storage, f"{name}{_COMMIT}")
    num_bytes = storage.size(f"{name}{_STATE}")
    if num_bytes != commit.num_bytes:
        raise CheckpointError("file of the state has another length", got=num_bytes, wanted=commit.num_bytes)
    with storage.open(f"{name}{_STATE}") as file:
        reader = HashingReader(file)
        leaves, metadata = decode(reader, num_bytes)
    if reader.sha256 != commit.sha256:
        raise CheckpointError("file of the state has another SHA-256", got=reader.sha256, wanted=commit.sha256)
    if metadata.get("format") != FORMAT or metadata.get("step") != str(commit.step):
        raise CheckpointError("the two files of a checkpoint disagree", got=metadata.get("step"), wanted=commit.step)
    state = unflatten(metadata.get("structure", ""), leaves, _open_shards(storage, name, commit.shards, among))
    if not isinstance(state, dict):
        raise CheckpointError("the state is not a dictionary", got=type(state).__name__)
    return state, commit


def _open_shards(
    storage: Storage, name: str, files: tuple[ShardFile, ...], among: Reader
) -> Callable[[str, tuple[int, ...], Any], Stored] | None:
    """Verify this process's share of all files; where a tensor lies in them."""
    if not files:
        return None
    if not isinstance(storage, LocalStorage):
        raise CheckpointError("shards of a checkpoint can be read from a folder only", got=type(storage).__name__)
    folder = storage.root / f"{name}{SHARDS}"
    for file in files[among.rank :: among.size]:
        found = hash_file(folder / file.name)
        if found != file:
            raise CheckpointError("a file of shards is damaged", got=found, wanted=file)
    from isthmus.checkpoint.shards import Shards  # takes a second to import

    shards = Shards(folder)
    return lambda leaf, shape, dtype: Stored(leaf, shape, dtype, shards)


def _read_commit(storage: Storage, name: str) -> _Commit:
    with storage.open(name) as file:
        raw = file.read(_MAX_COMMIT_BYTES)
    try:
        commit = msgspec.json.decode(raw, type=_Commit)
    except msgspec.DecodeError as error:
        raise CheckpointError("commit record is damaged", got=error) from None
    if commit.format != FORMAT:
        raise CheckpointError("checkpoint of another format", got=repr(commit.format[:80]), wanted=FORMAT)
    return commit


def _discard(storage: Storage, name: str) -> None:
    """Delete a checkpoint; its commit record first, so that none is ever left without a state."""
    storage.delete(f"{name}{_COMMIT}")
    storage.delete(f"{name}{_STATE}")


def _committed(storage: Storage) -> list[str]:
    """Checkpoints with a commit record, oldest first."""
    return [_stem(number) for number in sorted(_numbers(storage.names(_PREFIX), suffix=_COMMIT))]


def _numbers(names: Iterable[str], suffix: str = "") -> set[int]:
    """Numbers of the checkpoints that have a file ending in ``suffix``."""
    found = (_FILE.fullmatch(name) for name in names if name.endswith(suffix))
    return {int(match[1]) for match in found if match}


def _stem(number: int) -> str:
    return f"{_PREFIX}{number:08d}"
