"""Checkpoints of several processes: tensors in shards, of which each process writes its own; the rest by the first.

Two steps: ``draft`` copies the state, between two training steps and at all processes at once; ``commit`` writes the
copy while training goes on, in a thread of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from isthmus.checkpoint.checkpoint import (
    SHARDS,
    SavedInfo,
    next_name,
    not_saved,
    write_state,
)
from isthmus.checkpoint.hashing import ShardFile, hash_files
from isthmus.checkpoint.safetensors_file import Leaf
from isthmus.checkpoint.storage import LocalStorage
from isthmus.checkpoint.structure import flatten
from isthmus.errors import CheckpointError
from isthmus.files import sync_folder
from isthmus.parts import Part


class Team(Protocol):
    """All processes that save together; every call is made by all of them."""

    @property
    def rank(self) -> int:
        """This process's number; 0 writes what is not in shards."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def group(self) -> Any:
        """They, as torch.distributed knows them."""
        ...

    def collect(self, own: bytes) -> list[bytes]:
        """What each gave, at every one."""
        ...


@dataclass(frozen=True)
class Draft:
    """A copy of a state, to be written."""

    name: str
    step: int
    structure: str
    leaves: Mapping[str, Leaf]
    parts: Mapping[str, Part]


def draft(storage: LocalStorage, step: int, state: Mapping[str, Any], team: Team) -> Draft:
    """Copy a state to the host; of tensors that all have, each is copied by one process.

    Args:
        storage: Where the state will be written.
        step: The step it belongs to.
        state: As ``save`` takes it; tensors as parts, the rest the same at all processes.
        team: All processes.

    Raises:
        CheckpointError: The state cannot be stored, or is not the same at all processes.
    """
    name = structure = refused = ""
    leaves: dict[str, Leaf | Part] = {}
    try:
        structure, leaves = flatten(dict(state))
        name = next_name(storage) if team.rank == 0 else ""
    except (CheckpointError, OSError) as error:
        refused = str(error)
    told = [_decode(each) for each in team.collect(_encode(name, structure, refused))]
    _require_agreement(told)
    whole = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, Part)}
    parts = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Part)}
    return Draft(told[0][0], step, structure, whole, _copied(parts, team))


def commit(storage: LocalStorage, drawn: Draft, team: Team) -> SavedInfo | None:
    """Write a draft; durable when this returns. What was saved, at the first process; None at the others.

    Raises:
        CheckpointError: A process could not write, at all of them; older checkpoints stay good.
    """
    from isthmus.checkpoint.shards import write_shards  # takes a second to import

    folder = storage.root / f"{drawn.name}{SHARDS}"
    try:
        write_shards(folder, drawn.parts, size=team.size, group=team.group)
        files = _verify(folder, team)
        if team.rank:
            return None
        storage.sweep()
        sync_folder(folder)
        return write_state(storage, drawn.name, drawn.step, drawn.structure, drawn.leaves, files)
    except (OSError, CheckpointError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise not_saved(drawn.step, error) from error


def _copied(parts: Mapping[str, Part], team: Team) -> dict[str, Part]:
    """Copies on the host; of what all processes have, the one that has the least to copy so far keeps it."""
    loads = [0] * team.size
    copied = {}
    for name, part in parts.items():
        if part.is_copy:
            rank = loads.index(min(loads))
            loads[rank] += part.num_bytes
            if rank != team.rank:
                copied[name] = part.without_values()
                continue
        copied[name] = replace(part, local=_on_host(part.local.detach()))
    if any(part.local.device.type != "cpu" for part in parts.values()):
        torch.accelerator.current_stream().synchronize()
    return copied


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _verify(folder: Path, team: Team) -> tuple[ShardFile, ...]:
    """All files with their hashes, each hashed by one process; all processes must see them all."""
    refused, names, files = "", "", list[ShardFile]()
    try:
        found = sorted(path.name for path in folder.glob("*.safetensors"))
        names, files = "\n".join(found), hash_files(folder, found[team.rank :: team.size])
    except OSError as error:
        refused = str(error)
    told = team.collect(msgspec.msgpack.encode((names, files, refused)))
    seen = [msgspec.msgpack.decode(each, type=tuple[str, list[ShardFile], str]) for each in told]
    for _, _, why in seen:
        if why:
            raise CheckpointError("a rank cannot read the checkpoint that was just written", got=why)
    if any(each[0] != seen[0][0] for each in seen):
        raise CheckpointError(
            "the ranks of this island do not see the same files",
            got=f"{folder} holds other files at other ranks",
            wanted="one run directory for all of them, on a file system that they share",
        )
    return tuple(sorted((file for each in seen for file in each[1]), key=lambda file: file.name))


def _encode(*said: str) -> bytes:
    return msgspec.msgpack.encode(said)


def _decode(told: bytes) -> tuple[str, str, str]:
    return msgspec.msgpack.decode(told, type=tuple[str, str, str])


def _require_agreement(told: Sequence[tuple[str, str, str]]) -> None:
    """Refuse a state that a process cannot store, or that is not the same at all of them."""
    for rank, (_, structure, refused) in enumerate(told):
        if refused:
            raise CheckpointError(f"the state of rank {rank} cannot be stored", got=refused)
        if structure != told[0][1]:
            raise CheckpointError(
                "the ranks of this island do not hold the same state",
                got=f"another structure than rank 0's at rank {rank}",
                wanted="tensors of the same names and shapes, and the same plain values",
            )
