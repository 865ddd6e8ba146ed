"""Distributed Shampoo for matrices and stacks of them, AdamW for the rest, as one torch optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from isthmus.errors import ConfigError, IsthmusError, ShapeError
from isthmus.optim.bases import full_precision
from isthmus.optim.blocks import VARIANTS, Blocks, begin_blocks, state_shapes
from isthmus.optim.refreshes import Alone, Collectives, Refresh, plan_refreshes
from isthmus.optim.settings import check_gradients, check_group, check_settings, split
from isthmus.optim.tiles import Stack, Tile, cut, stack_up
from isthmus.optim.vectors import adamw_shapes, adamw_state, adamw_step

MAX_BLOCK = 2048
"""Most rows and columns of a block, by default."""


STRAIGHTEN_ROUNDS = 8
"""Once in so many rounds of refreshes the bases are made orthonormal to rounding again."""


class Shampoo(Optimizer):
    """Shampoo for matrices and stacks of matrices, AdamW for everything else, with decoupled weight decay.

    A parameter [m, n] is a matrix, one [e, m, n] is e separate matrices, as a layer's experts are; a matrix is cut into
    blocks. All blocks of one shape are worked on at once. One whose gradient is zero throughout changes in nothing,
    neither weights nor state, and is not decayed. Vectors, and groups with ``matrices=False``, take AdamW: embeddings
    and output heads belong there (``shampoo_groups`` makes the groups of a model).

    State is fp32 whatever the parameters are: for a block 2 (m n + m² + n²) elements, 24 bytes per element of a
    square one (AdamW: 8).

    Args:
        params: As any optimizer's. A group may have its own ``lr``, ``betas``, ``eps`` and ``weight_decay``, and
            ``matrices=False``.
        lr: Learning rate.
        betas: Decay of the running means of gradients, of their squares, and of the Kronecker factors.
        eps: Added to the root of the mean square.
        weight_decay: Per step, times the learning rate.
        variant: ``"soap"``: Adam in the eigenbases of G Gᵀ and Gᵀ G (Vyas et al. 2024, arXiv:2409.11321).
            ``"kl-soap"``: each factor is weighed with the other's inverse (Lin et al. 2025, arXiv:2509.03378).
            ``"shampoo"``: L^-1/4 M R^-1/4 (Gupta et al. 2018, arXiv:1802.09568) with the norm of AdamW's step (Shi et
            al. 2023, arXiv:2309.06497). ``"kl-shampoo"``: L^-1/2 M R^-1/2 of the weighed factors, likewise.
        refresh_steps: Every block's eigenbases are refreshed once in as many steps, each block in its turn.
        max_block: Most rows and columns of a block.
        collectives: Where several processes see the same gradients: how they divide the refreshes.

    Raises:
        ConfigError: A setting is out of its range.
        ShapeError: A parameter is empty or complex, or one in a group of matrices has no or more than three dimensions.

    Example:
        >>> optimizer = Shampoo(shampoo_groups(model, weight_decay=0.1), lr=3e-3)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float, float] = (0.95, 0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        variant: str = "soap",
        refresh_steps: int = 10,
        max_block: int = MAX_BLOCK,
        collectives: Collectives | None = None,
    ) -> None:
        check_settings(variant, refresh_steps=refresh_steps, max_block=max_block)
        self._variant, self.refresh_steps, self._max_block = VARIANTS[variant], refresh_steps, max_block
        self._collectives = collectives or Alone()
        self._layouts: list[_Layout] = []
        self._turns: list[list[Refresh]] = []
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "matrices": True, "variant": variant, "turn": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer`` does.

        Raises:
            ConfigError: A setting is out of its range.
            ShapeError: See ``Shampoo``.
        """
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1])
        except IsthmusError:
            del self.param_groups[-1]
            raise
        self._turns = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; parameters without a gradient are left alone.

        Args:
            closure: Computes the loss again and returns it.

        Raises:
            ShapeError: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = [each for group in self.param_groups for each in group["params"]]
        check_gradients(parameters)
        if not self._turns:
            self._lay_out()
        with torch.autocast(parameters[0].device.type, enabled=False):
            for group, layout in zip(self.param_groups, self._layouts, strict=True):
                self._step_vectors(group, layout.vectors)
                for index in range(len(layout.stacks)):
                    self._step_stack(group, layout, index)
            self._refresh()
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave, bit for bit: state stays fp32 under parameters of any type.

        Raises:
            ConfigError: The state is of another variant; nothing was changed.
            ShapeError: It belongs to other parameters or to another ``max_block``; nothing was changed.
        """
        self._lay_out()
        taken: dict[Tensor, Mapping[str, Tensor]] = {}

        def check(_: Optimizer, final: dict[str, Any]) -> None:  # after all other hooks
            taken.update(self._by_parameter(final))

        def take(_: Optimizer) -> None:  # before all others; torch has cast the state to the parameters' types
            self._take(taken)

        before = self.register_load_state_dict_pre_hook(check)
        after = self.register_load_state_dict_post_hook(take, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        settings = ("refresh_steps", "_max_block", "_variant", "_collectives")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in settings}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_variant" in state:  # a copy, not a loaded state
            self._layouts = []
            self._lay_out()
            self._take(dict(self.state))

    def _lay_out(self) -> None:
        """Cut what is not cut yet, and plan the refreshes."""
        for group in self.param_groups[len(self._layouts) :]:
            self._layouts.append(_Layout(group, self._max_block))
        stacks = [stack for layout in self._layouts for stack in layout.stacks]
        every, owners = self.refresh_steps, self._collectives.num_ranks
        self._turns = plan_refreshes(stacks, every=every, owners=owners)

    def _by_parameter(self, state_dict: Mapping[str, Any]) -> dict[Tensor, Mapping[str, Tensor]]:
        """A state's tensors by our parameters, if they fit."""
        groups = state_dict["param_groups"]
        for saved, own in zip(groups, self.param_groups, strict=False):
            if saved.get("variant") != own["variant"]:
                what = "the optimizer's state is of another variant of Shampoo"
                raise ConfigError(what, got=repr(saved.get("variant")), wanted=repr(own["variant"]))
        keys = [key for group in groups for key in group["params"]]
        parameters = [each for group in self.param_groups for each in group["params"]]
        stored = state_dict["state"]
        found = {each: stored[key] for key, each in zip(keys, parameters, strict=False) if key in stored}
        shapes = {parameter: own for layout in self._layouts for parameter, own in layout.state_shapes().items()}
        for parameter, tensors in found.items():
            _check_fit(shapes[parameter], tensors)
        return found

    def _take(self, stored: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
        """Make all state anew, with the values of ``stored``."""
        self.state = defaultdict(dict)
        for layout in self._layouts:
            layout.blocks = [None] * len(layout.stacks)
            for parameter in layout.vectors:
                if parameter in stored:
                    self.state[parameter] = adamw_state(parameter)
            for index, stack in enumerate(layout.stacks):
                if any(_key("step", tile) in stored.get(layout.parameters[tile.parameter], {}) for tile in stack.tiles):
                    self._begin(layout, index)
        for parameter, tensors in stored.items():
            for name, tensor in tensors.items():
                self.state[parameter][name].copy_(tensor)

    def _step_vectors(self, group: dict[str, Any], vectors: Sequence[Tensor]) -> None:
        trained = [parameter for parameter in vectors if parameter.grad is not None]
        for parameter in trained:
            if parameter not in self.state:
                self.state[parameter] = adamw_state(parameter)
        settings = {name: group[name] for name in ("lr", "eps", "weight_decay")}
        adamw_step(trained, [self.state[parameter] for parameter in trained], betas=group["betas"][:2], **settings)

    def _step_stack(self, group: dict[str, Any], layout: _Layout, index: int) -> None:
        stack = layout.stacks[index]
        gradients = [parameter.grad for parameter in layout.parameters]
        if all(gradients[tile.parameter] is None for tile in stack.tiles):
            return
        blocks = layout.blocks[index] or self._begin(layout, index)
        direction = stack.gather(gradients)
        counted = blocks.direct(direction, group["betas"], group["eps"])
        if group["weight_decay"]:
            direction.addcmul_(stack.gather(layout.parameters), counted, value=group["weight_decay"])
        stack.subtract(layout.parameters, direction.mul_(group["lr"]))

    def _begin(self, layout: _Layout, index: int) -> Blocks:
        """Make a stack's state, and let its parameters' states be views of it."""
        stack = layout.stacks[index]
        blocks = layout.blocks[index] = begin_blocks(stack.shape, stack.device, self._variant)
        for name, tensor in blocks.tensors.items():
            for tile, part in zip(stack.tiles, stack.divided(tensor), strict=True):
                self.state[layout.parameters[tile.parameter]][_key(name, tile)] = part
        return blocks

    def _refresh(self) -> None:
        """Rotate the bases of the blocks whose turn it is; rotations are found by their owners and come to all."""
        round_, turn = divmod(self.param_groups[0]["turn"], self.refresh_steps)
        every = [blocks for layout in self._layouts for blocks in layout.blocks]
        found: list[tuple[int, Blocks, list[Tensor]]] = []
        with full_precision():
            for refresh in self._turns[turn]:
                blocks = every[refresh.stack]
                if blocks is not None:
                    part, is_own = blocks[refresh.part], refresh.owner == self._collectives.rank
                    found.append((refresh.owner, part, part.rotations() if is_own else part.room()))
            for owner in sorted({owner for owner, _, _ in found}):
                sent = [each for its_owner, _, rotations in found if its_owner == owner for each in rotations]
                self._collectives.broadcast(sent, owner)
            for _, part, rotations in found:
                part.rotate(*rotations, straighten=round_ % STRAIGHTEN_ROUNDS == 0)


class _Layout:
    """A group's parameters: which are vectors, and how the others are cut."""

    def __init__(self, group: Mapping[str, Any], max_block: int) -> None:
        self.parameters, self.vectors = split(group)
        tiles = cut([parameter.shape for parameter in self.parameters], max_block)
        self.stacks: list[Stack] = stack_up(tiles, [parameter.device for parameter in self.parameters])
        self.blocks: list[Blocks | None] = [None] * len(self.stacks)

    def state_shapes(self) -> dict[Tensor, dict[str, tuple[int, ...]]]:
        """What each parameter's state may hold."""
        shapes = {each: adamw_shapes(each) for each in self.vectors}
        for tile in (tile for stack in self.stacks for tile in stack.tiles):
            own = shapes.setdefault(self.parameters[tile.parameter], {})
            own |= {_key(name, tile): shape for name, shape in state_shapes(tile.count, *tile.shape).items()}
        return shapes


def _key(name: str, tile: Tile) -> str:
    return f"{name}.{tile.index}" if tile.index else name


def _step_of(name: str) -> str:
    """The name of the count of steps that goes with a tensor."""
    _, dot, index = name.partition(".")
    return f"step{dot}{index}"


def _check_fit(own: Mapping[str, tuple[int, ...]], stored: Mapping[str, Tensor]) -> None:
    """Refuse a parameter's stored state of other names or shapes; tiles that were not begun may be missing."""
    begun = {name for name in own if _step_of(name) in stored}
    for name in sorted(begun | stored.keys()):
        mine = own.get(name, "nothing")
        theirs = tuple(stored[name].shape) if name in stored else "nothing"
        if mine != theirs:
            raise ShapeError(
                f"the optimizer's state does not fit: it differs in '{name}'",
                got=theirs,
                wanted=mine,
                mend="Build the optimizer over the same parameters and with the same max_block as the one saved.",
            )
