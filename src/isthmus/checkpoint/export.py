"""A model's weights as one safetensors file, for anybody's tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from isthmus.checkpoint.safetensors_file import decode, encode
from isthmus.errors import CheckpointError
from isthmus.files import write_file_atomic
from isthmus.parts import Later


def export_safetensors(path: Path, tensors: Mapping[str, torch.Tensor | Later], metadata: Mapping[str, str]) -> None:
    """Write ``tensors``, each in its own dtype, to ``path``: whole or not at all.

    Of those that are made later, one is held at a time; ``file_order`` says in what order.

    Args:
        path: The file; an older one is replaced once the new one is safe.
        tensors: Weights by parameter name.
        metadata: What rebuilds the model, such as its configuration as JSON. ``format = "pt"``, which other
            tools ask for, is added.

    Raises:
        CheckpointError: A tensor cannot be stored, or the disk is full or failing.
    """
    chunks = encode(tensors, {"format": "pt", **metadata})
    try:
        write_file_atomic(path, chunks)
    except OSError as error:
        raise CheckpointError(
            f"{path} was not written", got=error, mend="Free space or choose another path."
        ) from error


def load_exported(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors (on the CPU) and metadata of a safetensors file, from here or elsewhere.

    Raises:
        CheckpointError: The file cannot be read, or is not a whole safetensors file.
    """
    try:
        with path.open("rb") as file:
            return decode(file, path.stat().st_size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read", got=error) from error
