"""An optimizer's state by the names of its parameters, whatever their order and groups.

A layout may need other groups than the one that a checkpoint was made in: tensors on different meshes are not updated
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.fragments import canonical_name

_OF_GROUP = frozenset({"params", "param_names"})
"""What a group says of its parameters; all else are settings."""


class NamedState:
    """Gives and takes an optimizer's state by name.

    Args:
        model: Names the parameters.
        optimizer: Any. What it trains that is neither the model's nor a master, goes by its place.
        masters: fp32 masters by their parameters' names.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, masters: Mapping[str, Tensor]) -> None:
        self._optimizer = optimizer
        named = [*model.named_parameters(), *masters.items()]
        self._names = {id(parameter): canonical_name(name) for name, parameter in named}

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer gives it, with names where it has numbers."""
        state, names = self._optimizer.state_dict(), dict(self._numbered())
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]]
        named = {names.get(key, key): each for key, each in state["state"].items()}
        return {**state, "state": named, "param_groups": groups}

    def numbered(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """What ``state_dict`` gave, as the optimizer takes it.

        Raises:
            ValueError: It is of other parameters, or joins what was set differently.
        """
        names = dict(self._numbered())
        settings = {name: group for group in stored["param_groups"] for name in group["params"]}
        if settings.keys() != set(names.values()):
            differ = sorted(settings.keys() ^ set(names.values()))
            raise ValueError(f"the optimizer has other parameters than the checkpoint: {', '.join(differ[:3])}")
        groups = []
        for group in self._optimizer.state_dict()["param_groups"]:
            if not group["params"]:
                groups.append(group)
                continue
            first, *rest = [settings[names[number]] for number in group["params"]]
            if not all(_same(first, other) for other in rest):
                raise ValueError("parameters of one group had different settings in the checkpoint")
            kept = {key: group[key] for key in _OF_GROUP if key in group}
            groups.append({**{key: value for key, value in first.items() if key not in _OF_GROUP}, **kept})
        numbers: dict[Any, Any] = {name: number for number, name in names.items()}
        state = {numbers.get(key, key): each for key, each in stored["state"].items()}
        return {**stored, "state": state, "param_groups": groups}

    def parameters(self) -> dict[str, Tensor]:
        """The optimizer's parameters by name."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return {name: parameters[number] for number, name in self._numbered()}

    def _numbered(self) -> Iterator[tuple[int, str]]:
        """Every parameter's number, as torch counts them, and its name."""
        number = 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield number, self._names.get(id(parameter), f"#{number}")
                number += 1


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two groups have the same settings."""
    if one is other:
        return True
    keys = (one.keys() | other.keys()) - _OF_GROUP
    return all(key in one and key in other and _equal(one[key], other[key]) for key in keys)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
