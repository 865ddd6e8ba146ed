"""Tensors that several processes divide among themselves, in files that each of them writes its share of.

The files are safetensors, written and read by torch.distributed.checkpoint: whoever reads them may divide the tensors
otherwise, and there may be more or fewer of them. Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from isthmus.errors import CheckpointError
from isthmus.parts import Part, Stored

FILE_BYTES = 1 << 29
"""About so much of what one rank writes goes into one file: torch makes each in memory first."""


def write_shards(folder: Path, parts: Mapping[str, Part], *, size: int, group: Any) -> None:
    """Write tensors of which each rank has a part; durable when this returns, but for the folder's names.

    Args:
        folder: Empty or not there yet; of a file system that all ranks see.
        parts: This rank's by name; all ranks have the same names.
        size: How many ranks there are.
        group: Theirs, of torch.distributed; used by nobody else meanwhile.

    Raises:
        CheckpointError: One of the ranks could not write; all say so.
    """
    files: dict[str, int] = {}
    num_bytes = 0
    for name, part in parts.items():
        files[name] = 1 + num_bytes // (FILE_BYTES * size)
        num_bytes += part.num_bytes
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    writer.per_thread_copy_ahead = 0  # all is on the host; torch's loader would work on this thread's device, the first
    try:
        save({}, storage_writer=writer, planner=_Writing(parts), process_group=group)
    except CheckpointException as error:
        raise CheckpointError("a rank did not write its part of the checkpoint", got=_first(error)) from None


class Shards:
    """A folder that ``write_shards`` has filled.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._reader = _Reader(str(folder))

    def read(self, wanted: Iterable[tuple[Stored, Part]]) -> None:
        """Read each part's box from its tensor, of the same shape; no other process needs to do the same.

        Raises:
            CheckpointError: A file is missing or damaged.
        """
        planner = _Reading([(stored.name, part) for stored, part in wanted if not part.is_empty])
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load({}, storage_reader=self._reader, planner=planner, no_dist=True)
        except CheckpointException as error:
            raise CheckpointError("the shards of a checkpoint cannot be read", got=_first(error)) from error


def _first(error: CheckpointException) -> object:
    """What the lowest rank that failed says."""
    return min(error.failures.items())[1][0]


def _chunk(part: Part) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(part.offsets), sizes=part.local.shape)


class _Writing(DefaultSavePlanner):
    """Plans to write parts; of those that several ranks have, one rank writes each."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._parts = parts

    def create_local_plan(self) -> SavePlan:
        items = [_write_item(name, part) for name, part in self._parts.items() if not part.is_empty]
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._parts[write_item.index.fqn].local.contiguous()


def _write_item(name: str, part: Part) -> WriteItem:
    data = TensorWriteData(
        chunk=_chunk(part), properties=TensorProperties.create_from_tensor(part.local), size=torch.Size(part.shape)
    )
    return WriteItem(MetadataIndex(name, torch.Size(part.offsets)), WriteItemType.SHARD, tensor_data=data)


class _Reading(LoadPlanner):
    """Plans to read boxes; the same tensor may be asked for twice."""

    def __init__(self, wanted: list[tuple[str, Part]]) -> None:
        self._wanted = wanted

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        assert metadata is not None
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        items = []
        for place, (name, part) in enumerate(self._wanted):
            stored = self._metadata.state_dict_metadata.get(name)
            if not isinstance(stored, TensorStorageMetadata) or tuple(stored.size) != part.shape:
                raise CheckpointError("a tensor is not whole in the shards", got=stored, wanted=part.shape)
            items += [
                replace(item, dest_index=MetadataIndex(str(place)))
                for item in create_read_items_for_chunk_list(name, stored, [_chunk(part)])
            ]
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise CheckpointError("shards hold tensors only", got=read_item.storage_index.fqn)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        _, part = self._wanted[int(read_item.dest_index.fqn)]
        places = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return part.local[tuple(slice(first, first + length) for first, length in places)]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        pass


class _Reader(HuggingFaceStorageReader):
    """Reads the files' headers once."""

    _known: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._known is None:
            self._known = super().read_metadata()
        return self._known
