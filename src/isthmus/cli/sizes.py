"""What a model costs an island in bytes: on the link, in a window, and in memory; nothing is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.codec import payload_bytes
from isthmus.config.run import MixingTable
from isthmus.fragments import cut, entries_of
from isthmus.model import Decoder, ModelConfig, num_parameters
from isthmus.optim import state_bytes

_FP32_BYTES = 4


@dataclass(frozen=True)
class FragmentSize:
    """One fragment: its tensors, their elements, and the bytes of one publication before compression."""

    index: int
    tensors: int
    elements: int
    payload_bytes: int


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes over all ranks of one island, activations aside.

    ``training_bytes`` are fast weights, gradients and the optimizer's state in fp32; ``mixing_bytes`` slow weights,
    velocity, and a reference per edge; ``open_bytes`` one own and one partner's publication of every fragment. A mesh
    has one reference for all edges, and the publications of all.
    """

    training_bytes: int
    mixing_bytes: int
    open_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.training_bytes + self.mixing_bytes + self.open_bytes


@dataclass(frozen=True)
class RunSizes:
    """A model as islands trade it. ``window_bytes`` leave an island in one window of H steps, and reach it."""

    parameters: int
    active_parameters: int
    fragments: tuple[FragmentSize, ...]
    window_bytes: int
    memory: MemoryNeed

    def link_bits_per_s(self, *, window_steps: int, step_s: float) -> float:
        """The rate that an island needs, each way, at ``step_s`` seconds a step."""
        return self.window_bytes * 8 / (window_steps * step_s)


def run_sizes(model: ModelConfig, mixing: MixingTable, *, islands: int, optimizer: str) -> RunSizes:
    """The sizes of ``model`` under ``mixing`` and ``optimizer`` in a run of so many islands, from the meta device.

    In a window an island publishes each fragment for every meeting, to one partner, or by the mesh rule once to all.
    """
    import torch

    with torch.device("meta"):
        decoder = Decoder(model)
    entries = entries_of(decoder)
    fragments = tuple(
        FragmentSize(
            index=fragment.index,
            tensors=len(fragment.entries),
            elements=fragment.numel,
            payload_bytes=payload_bytes(fragment.entries, mixing.codec, mixing.embedding_codec),
        )
        for fragment in cut(entries, mixing.fragments)
    )
    counts = num_parameters(model)
    elements = sum(fragment.elements for fragment in fragments)
    payload = sum(fragment.payload_bytes for fragment in fragments)
    mesh = mixing.rule == "mesh"
    receivers, references = (islands - 1, 1) if mesh else (1, math.ceil(math.log2(islands)))
    memory = MemoryNeed(
        training_bytes=counts.total * 2 * _FP32_BYTES + state_bytes(decoder, optimizer),
        mixing_bytes=elements * _FP32_BYTES * (2 + references),
        open_bytes=payload * (1 + receivers),
    )
    return RunSizes(counts.total, counts.active, fragments, payload * receivers * mixing.meetings, memory)
