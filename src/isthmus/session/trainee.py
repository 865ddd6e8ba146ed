"""What trains on an island and must survive with it: model, optimizer, data and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from isthmus.checkpoint import pack, rng_state, set_rng_state, unpack
from isthmus.errors import CheckpointError, ShapeError
from isthmus.fragments import canonical_name
from isthmus.island import Alone, Ranks, part_of, spread_like, state_part, together
from isthmus.parts import Part, Source, Stored, fill
from isthmus.session.optimizer_state import NamedState


@runtime_checkable
class Stateful(Protocol):
    """Data that can say where it is and go there again."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Go there."""
        ...


class Training:
    """Model, optimizer, data and random number generators as one thing to save.

    Args:
        model: Its whole ``state_dict`` is saved, frozen parameters and all.
        optimizer: Any ``torch.optim.Optimizer``.
        data: What the loop reads from; saved if it has ``state_dict``. Its ``cursor``, an integer, goes into every
            signed header, and its ``seek(cursor)`` is called after a crash if tokens beyond the checkpoint live on
            at a partner.
        ranks: The island's; alone if None.
        masters: What the optimizer trains in place of low-precision parameters, by their names.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: object | None,
        ranks: Ranks | None = None,
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._model, self._optimizer, self._data, self._ranks = model, optimizer, data, ranks or Alone()
        self._named = NamedState(model, optimizer, masters or {})

    @property
    def cursor(self) -> int:
        """The data cursor; 0 for data without one."""
        return int(getattr(self._data, "cursor", 0))

    @property
    def learning_rate(self) -> float:
        """That of the optimizer's first group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def seek(self, cursor: int) -> None:
        """Move the data to ``cursor``, where it can be moved."""
        seek = getattr(self._data, "seek", None)
        if seek is not None:
            seek(cursor)

    def state_dict(self) -> dict[str, Any]:
        """All of it. All ranks call it: of several, tensors are parts, and what each has of its own is listed."""
        model, optimizer = self._model_state(), self._named.state_dict()
        data = self._data.state_dict() if isinstance(self._data, Stateful) else None
        if self._ranks.size == 1:
            return {"model": model, "optimizer": optimizer, "data": data, "rng": rng_state()}
        return {
            "model": map_tensors(model, part_of),
            "optimizer": together(self._ranks, partial(self._optimizer_parts, optimizer)),
            "data_of_ranks": _once(self._ranks.collect(together(self._ranks, partial(pack, data)))),
            "rng_of_ranks": self._ranks.collect(pack(rng_state())),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave at any number of ranks, model weights in place.

        Raises:
            CheckpointError: It does not fit this model or optimizer.
        """
        try:
            self._load_model(state["model"])
            self._load_optimizer(state["optimizer"])
        except (RuntimeError, ValueError, KeyError, ShapeError) as error:
            raise CheckpointError(
                "the checkpoint does not fit this model or optimizer",
                got=error,
                mend="Build both as they were when it was made, or start from an empty directory.",
            ) from error
        data = self._data_of(state)
        if isinstance(self._data, Stateful) and data is not None:
            self._data.load_state_dict(data)
        rng = unpack_list(state["rng_of_ranks"]) if "rng_of_ranks" in state else [state["rng"]]
        if self._ranks.size == len(rng):  # other ranks begin with what their processes were seeded with
            set_rng_state(rng[self._ranks.rank])

    def _model_state(self) -> dict[str, Any]:
        return {canonical_name(name): tensor for name, tensor in self._model.state_dict().items()}

    def _load_model(self, stored: Mapping[str, Any]) -> None:
        """Fill the model's own tensors; whatever else its modules keep, they take themselves."""
        state = self._model.state_dict()
        names = {canonical_name(name): name for name in state}
        own = {name: state[full] for name, full in names.items()}
        both = {name for name in own.keys() & stored.keys() if isinstance(own[name], Tensor)}
        pairs = [(stored[name], part_of(own[name])) for name in sorted(both)]

        def whole(source: Source) -> Tensor:
            if isinstance(source, Tensor):
                return source
            pairs.append((source, Part.whole(made := torch.empty(tuple(source.shape), dtype=_dtype(source)))))
            return made

        state = {
            names.get(name, name): own[name] if name in both else map_tensors(value, whole)
            for name, value in stored.items()
        }
        fill(pairs)
        self._model.load_state_dict(state)

    def _optimizer_parts(self, optimizer: Mapping[str, Any]) -> dict[str, Any]:
        """An optimizer's state by name as this rank's parts."""
        parameters = self._named.parameters()

        def part(leaf: Tensor | Part, name: str) -> Part:
            return leaf if isinstance(leaf, Part) else state_part(leaf, parameters.get(name), f"state of {name!r}")

        parts = map_tensors({**optimizer, "state": {}}, part_of)
        state = {name: map_tensors(each, partial(part, name=name)) for name, each in optimizer["state"].items()}
        return {**parts, "state": state}

    def _load_optimizer(self, stored: Mapping[str, Any]) -> None:
        """Load state that lies as the parameters do where it is of their shape, and whole otherwise."""
        takes_parts = getattr(self._optimizer, "takes_parts", False)
        parameters = self._named.parameters()
        pairs: list[tuple[Source, Part]] = []

        def placed(source: Source, like: Tensor | None) -> Tensor:
            own = None if like is None else spread_like(like, tuple(source.shape), _dtype(source))
            if own is None and isinstance(source, Tensor):
                return source.clone()  # the optimizer would change it in place
            if own is None:
                own = torch.empty(tuple(source.shape), dtype=_dtype(source))
            pairs.append((source, part_of(own)))
            return own

        state = stored["state"]
        if not takes_parts:
            state = {key: map_tensors(each, partial(placed, like=parameters.get(key))) for key, each in state.items()}
        groups = map_tensors(stored["param_groups"], partial(placed, like=None))
        fill(pairs)
        self._optimizer.load_state_dict(self._named.numbered({**stored, "state": state, "param_groups": groups}))

    def _data_of(self, state: Mapping[str, Any]) -> Any:
        """Where this rank's data was."""
        if "data_of_ranks" not in state:
            return state["data"]
        each = unpack_list(state["data_of_ranks"])
        if len(each) == 1:
            return each[0]
        if len(each) != self._ranks.size:
            raise CheckpointError(
                "the ranks of this island read data of their own, and there were other ranks",
                got=f"{self._ranks.size} ranks",
                wanted=f"{len(each)}, as the checkpoint was made by",
                mend="Start as many, or use data whose state_dict() is the same at all ranks.",
            )
        return each[self._ranks.rank]


def map_tensors(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A nested state with every tensor, part of one or stored one changed."""
    match tree:
        case Tensor() | Part() | Stored():
            return change(tree)
        case Mapping():
            return {key: map_tensors(value, change) for key, value in tree.items()}
        case list() | tuple():
            return type(tree)(map_tensors(value, change) for value in tree)
    return tree


def unpack_list(packed: Sequence[bytes]) -> list[Any]:
    """Each of them unpacked."""
    return [unpack(each) for each in packed]


def _once(each: list[bytes]) -> list[bytes]:
    """One of them where they are all the same."""
    return each[:1] if all(one == each[0] for one in each) else each


def _dtype(source: Source) -> torch.dtype:
    return source.local.dtype if isinstance(source, Part) else source.dtype
