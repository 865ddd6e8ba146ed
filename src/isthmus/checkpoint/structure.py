"""Nested state as JSON text plus a flat list of tensors, and back.

JSON arrays stand for lists and nothing else; every JSON object has one key, which says what it stands for
(``tuple``, ``dict``, ``float``, ``tensor``, ``bytes``, ``part``). A user's dictionary is never a JSON object, so no key
of it can be mistaken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch

from isthmus.checkpoint.safetensors_file import DTYPE_CODES, DTYPES, Leaf, check_storable
from isthmus.errors import CheckpointError
from isthmus.parts import Part

Locate = Callable[[str, tuple[int, ...], torch.dtype], Any]
"""Where the tensor of a name, shape and dtype lies that is stored in parts."""

_NON_FINITE = frozenset({"nan", "inf", "-inf"})


def flatten(state: Any) -> tuple[str, dict[str, Leaf | Part]]:
    """The structure of ``state`` as ASCII JSON, and its tensors and bytes under the names the structure uses.

    Takes None, bool, int, float, str, bytes, tensors, parts of tensors, lists, tuples and mappings with such keys,
    nested. Where parts differ, as they do from process to process, the structure is the same.
    Subclasses come back as the plain type, enums and NumPy scalars as their value, parameters as tensors.

    Raises:
        CheckpointError: A value of another kind; the message names its place.
    """
    leaves: dict[str, Leaf | Part] = {}
    try:
        return json.dumps(_flatten(state, "state", leaves), separators=(",", ":")), leaves
    except RecursionError:
        raise CheckpointError("state is nested too deeply, or contains itself") from None
    except ValueError as error:
        raise CheckpointError("state holds a number that cannot be written", got=error) from None


def unflatten(structure: str, leaves: Mapping[str, torch.Tensor], locate: Locate | None = None) -> Any:
    """The inverse of ``flatten``, with every leaf a tensor, and parts what ``locate`` makes of them.

    Raises:
        CheckpointError: The structure is not one that ``flatten`` makes, or does not use each leaf once.
    """
    unused = dict(leaves)
    try:
        state = _unflatten(json.loads(structure), unused, locate)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("structure of the state is not JSON", got=error) from None
    if unused:
        raise CheckpointError("structure of the state leaves tensors unused", got=len(unused))
    return state


def _flatten(value: Any, where: str, leaves: dict[str, Leaf | Part]) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(float(value))}
        case torch.Tensor() | bytes() | bytearray() | memoryview():
            return _add_leaf(value, where, leaves)
        case Part():
            return _add_part(value, where, leaves)
        case list():
            return _flatten_all(value, where, leaves)
        case tuple():
            return {"tuple": _flatten_all(value, where, leaves)}
        case Mapping():
            return {"dict": [_flatten_item(key, item, where, leaves) for key, item in value.items()]}
    raise CheckpointError(
        f"{where} cannot be stored",
        got=type(value).__name__,
        wanted="numbers, strings, bytes, tensors, lists, tuples and mappings of these",
        mend="Turn arrays into tensors with torch.from_numpy, and objects into dictionaries.",
    )


def _flatten_all(values: list[Any] | tuple[Any, ...], where: str, leaves: dict[str, Leaf | Part]) -> list[Any]:
    return [_flatten(value, f"{where}[{index}]", leaves) for index, value in enumerate(values)]


def _flatten_item(key: Any, value: Any, where: str, leaves: dict[str, Leaf | Part]) -> list[Any]:
    if isinstance(key, torch.Tensor):
        raise CheckpointError(f"a key of {where} cannot be stored", got="a tensor", wanted="a plain value")
    return [_flatten(key, f"a key of {where}", leaves), _flatten(value, f"{where}[{key!r}]", leaves)]


def _add_leaf(value: Leaf, where: str, leaves: dict[str, Leaf | Part]) -> dict[str, str]:
    check_storable(value, where)
    name = str(len(leaves))
    leaves[name] = value
    return {"tensor" if isinstance(value, torch.Tensor) else "bytes": name}


def _add_part(value: Part, where: str, leaves: dict[str, Leaf | Part]) -> dict[str, list[Any]]:
    check_storable(value.local, where)
    name = str(len(leaves))
    leaves[name] = value
    return {"part": [name, DTYPE_CODES[value.local.dtype], list(value.shape)]}


def _unflatten(node: Any, unused: dict[str, torch.Tensor], locate: Locate | None) -> Any:
    match node:
        case None | bool() | int() | float() | str():
            return node
        case [*items]:
            return [_unflatten(item, unused, locate) for item in items]
        case {"tuple": [*items], **rest} if not rest:
            return tuple(_unflatten(item, unused, locate) for item in items)
        case {"dict": [*items], **rest} if not rest:
            return _unflatten_dict(items, unused, locate)
        case {"float": str(text), **rest} if not rest and text in _NON_FINITE:
            return float(text)
        case {"tensor": str(name), **rest} if not rest and name in unused:
            return unused.pop(name)
        case {"bytes": str(name), **rest} if not rest and name in unused:
            return _bytes(unused.pop(name))
        case {"part": [str(name), str(code), [*shape]], **rest} if not rest and locate is not None and code in DTYPES:
            if all(type(length) is int and length >= 0 for length in shape):
                return locate(name, tuple(shape), DTYPES[code])
    raise CheckpointError("structure of the state is damaged", got=str(node)[:200])


def _bytes(leaf: torch.Tensor) -> bytes:
    if leaf.dtype != torch.uint8 or leaf.dim() != 1:
        raise CheckpointError("structure of the state takes a tensor for bytes", got=f"{leaf.dtype}, {leaf.dim()}-D")
    return leaf.numpy().tobytes()


def _unflatten_dict(items: list[Any], unused: dict[str, torch.Tensor], locate: Locate | None) -> dict[Any, Any]:
    state: dict[Any, Any] = {}
    for item in items:
        match item:
            case [key_node, value_node]:
                key = _unflatten(key_node, unused, locate)
            case _:
                raise CheckpointError("structure of the state is damaged", got=str(item)[:200])
        try:
            known = key in state
        except TypeError:
            raise CheckpointError(
                "structure of the state has a key that cannot be one", got=type(key).__name__
            ) from None
        if known:
            raise CheckpointError("structure of the state names a key twice", got=repr(key)[:200])
        state[key] = _unflatten(value_node, unused, locate)
    return state
