"""Checkpoints of several processes: tensors in shards, of which each process writes its own; the rest by the first.

Two steps: ``draft`` copies the state, between two training steps and at all processes at once; ``commit`` writes the
copy while training goes on, in a thread of its own.
"""

from __future__ import annotations

import hashlib
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
    sweep_shards,
    write_state,
)
from isthmus.checkpoint.hashing import ShardFile, hash_files
from isthmus.checkpoint.safetensors_file import Leaf
from isthmus.checkpoint.storage import LocalStorage
from isthmus.checkpoint.structure import flatten
from isthmus.errors import CheckpointError
from isthmus.files import sync_file, sync_folder
from isthmus.parts import Part

_COMPARED_BYTES = 1 << 16
"""Tensors up to this size are compared between processes, where all should have the same."""


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
    form = alike = b""
    try:
        structure, leaves = flatten(dict(state))
        form, alike = hashlib.sha256(structure.encode()).digest(), _digest(leaves)
        if team.rank == 0:
            sweep_shards(storage)
            name = next_name(storage)
    except Exception as error:  # whatever it is: the others must hear of it
        refused = str(error) or type(error).__name__
    _require_agreement(told := [_decode(each) for each in team.collect(_encode(name, form, refused, alike))])
    whole = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, Part)}
    parts = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Part)}
    try:
        copied = _copied(parts, team)
    except Exception as error:  # no memory, say
        copied, refused = {}, str(error) or type(error).__name__
    _require_agreement([_decode(each) for each in team.collect(_encode("", b"", refused, b""))])
    return Draft(told[0][0], step, structure, whole, copied)


def commit(storage: LocalStorage, drawn: Draft, team: Team) -> SavedInfo | None:
    """Write a draft; durable when this returns, at any process. What was saved, at the first; None at the others.

    Raises:
        CheckpointError: A process could not write, at all of them; older checkpoints stay good.
    """
    from isthmus.checkpoint.shards import write_shards  # takes a second to import

    folder = storage.root / f"{drawn.name}{SHARDS}"
    info, refused = None, ""
    try:
        write_shards(folder, drawn.parts, size=team.size, group=team.group)
        files = _verify(folder, team)
        if team.rank == 0:
            storage.sweep()
            sync_folder(folder)
            info = write_state(storage, drawn.name, drawn.step, drawn.structure, drawn.leaves, files)
    except Exception as error:  # whatever it is: the others must hear of it
        refused = str(error) or type(error).__name__
    why = next((each.decode() for each in team.collect(refused.encode()) if each), "")
    if why:
        shutil.rmtree(folder, ignore_errors=True)
        raise not_saved(drawn.step, why)
    return info


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


def _digest(leaves: Mapping[str, Leaf | Part]) -> bytes:
    """Of what must be the same at all processes and is not large: plain bytes, counters, small buffers."""
    digest = hashlib.sha256()
    for leaf in leaves.values():
        if isinstance(leaf, (bytes, bytearray, memoryview)):
            digest.update(leaf)
        elif isinstance(leaf, Part) and leaf.is_copy and leaf.num_bytes <= _COMPARED_BYTES:
            digest.update(leaf.local.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _verify(folder: Path, team: Team) -> tuple[ShardFile, ...]:
    """All files with their hashes, each hashed by one process; all processes must see them all."""
    refused, names, files = "", "", list[ShardFile]()
    try:
        found = sorted(path.name for path in folder.glob("*.safetensors"))
        for name in found:
            if name.startswith(f"shard-{team.rank + 1:05d}-"):  # its own, which torch syncs before they are flushed
                sync_file(folder / name)
        names, files = "\n".join(found), hash_files(folder, found[team.rank :: team.size])
    except Exception as error:  # whatever it is: the others must hear of it
        refused = str(error) or type(error).__name__
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


_Said = tuple[str, bytes, str, bytes]
"""Name, the structure's digest, what is refused, and the digest of what must be the same."""


def _encode(*said: str | bytes) -> bytes:
    return msgspec.msgpack.encode(said)


def _decode(told: bytes) -> _Said:
    return msgspec.msgpack.decode(told, type=_Said)


def _require_agreement(told: Sequence[_Said]) -> None:
    """Refuse a state that a process cannot store, or that is not the same at all of them."""
    for rank, (_, structure, refused, alike) in enumerate(told):
        if refused:
            raise CheckpointError(f"the state of rank {rank} cannot be stored", got=refused)
        if structure != told[0][1]:
            raise CheckpointError(
                "the ranks of this island do not hold the same state",
                got=f"another structure than rank 0's at rank {rank}",
                wanted="tensors of the same names and shapes, and the same plain values",
            )
        if alike != told[0][3]:
            raise CheckpointError(
                "the ranks of this island do not hold the same state",
                got=f"other counters or small buffers than rank 0's at rank {rank}",
                wanted="the same at all ranks, or DTensors; what data keep of their own is saved by rank",
            )
