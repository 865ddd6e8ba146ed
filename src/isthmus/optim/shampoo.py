"""Distributed Shampoo for matrices and stacks of them, AdamW for the rest, as one torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from isthmus.errors import ShapeError
from isthmus.optim.bases import turn
from isthmus.optim.blocks import VARIANTS, Blocks
from isthmus.optim.refreshes import Alone, Collectives, Refresh, plan_refreshes
from isthmus.optim.settings import check_group, check_settings, is_matrix
from isthmus.optim.tiles import Stack, Tile, cut, stack_up
from isthmus.optim.vectors import adamw_state, adamw_step

MAX_BLOCK = 2048
"""Most rows and columns of a block, by default."""


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
        refresh_steps: int = 20,
        max_block: int = MAX_BLOCK,
        collectives: Collectives | None = None,
    ) -> None:
        check_settings(variant, refresh_steps=refresh_steps, max_block=max_block)
        self._variant, self.refresh_steps, self._max_block = VARIANTS[variant], refresh_steps, max_block
        self._collectives = collectives or Alone()
        self._layouts: list[_Layout] = []
        self._turns: list[list[Refresh]] = []
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "matrices": True, "turn": 0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as ``torch.optim.Optimizer`` does.

        Raises:
            ConfigError: A setting is out of its range.
            ShapeError: See ``Shampoo``.
        """
        super().add_param_group(param_group)
        check_group(self.param_groups[-1])
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
        if not self._turns:
            self._lay_out()
        for group, layout in zip(self.param_groups, self._layouts, strict=True):
            _refuse_sparse(group["params"])
            self._step_vectors(group, layout.vectors)
            for index in range(len(layout.stacks)):
                self._step_stack(group, layout, index)
        self._refresh(self._turns[self.param_groups[0]["turn"] % self.refresh_steps])
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave, bit for bit: state stays fp32 under parameters of any type.

        Raises:
            ShapeError: The state belongs to other parameters or to another ``max_block``.
        """
        stored = state_dict["state"]
        super().load_state_dict({**state_dict, "state": {}})
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        self._lay_out({parameter: stored[key] for key, parameter in zip(keys, own, strict=True) if key in stored})

    def __getstate__(self) -> dict[str, Any]:
        settings = ("refresh_steps", "_max_block", "_variant", "_collectives")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in settings}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layouts, self._turns = [], []
        self._lay_out(dict(self.state))

    def _lay_out(self, stored: Mapping[Tensor, Mapping[str, Tensor]] | None = None) -> None:
        """Cut what is not cut yet, and plan the refreshes; with ``stored``, make all state anew from it."""
        if stored is not None:
            self._layouts = []
            self.state.clear()
        for group in self.param_groups[len(self._layouts) :]:
            self._layouts.append(_Layout(group, self._max_block))
        stacks = [stack for layout in self._layouts for stack in layout.stacks]
        every, owners = self.refresh_steps, self._collectives.num_ranks
        self._turns = plan_refreshes(stacks, every=every, owners=owners)
        if stored is not None:
            self._take(stored)

    def _take(self, stored: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
        for layout in self._layouts:
            for parameter in layout.vectors:
                if parameter in stored:
                    self.state[parameter] = adamw_state(parameter)
            for index, stack in enumerate(layout.stacks):
                if any(layout.parameters[tile.parameter] in stored for tile in stack.tiles):
                    self._begin(layout, index)
        for parameter, tensors in stored.items():
            _fill(self.state[parameter], tensors)

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
        direction, counted = blocks.direction(stack.gather(gradients), group["betas"], group["eps"])
        if group["weight_decay"]:
            direction.addcmul_(stack.gather(layout.parameters), counted, value=group["weight_decay"])
        stack.subtract(layout.parameters, direction.mul_(group["lr"]))

    def _begin(self, layout: _Layout, index: int) -> Blocks:
        """Make a stack's state, and let its parameters' states be views of it."""
        stack = layout.stacks[index]
        blocks = layout.blocks[index] = Blocks(stack.shape, stack.device, self._variant)
        for name, tensor in blocks.tensors.items():
            for tile, part in zip(stack.tiles, stack.divided(tensor), strict=True):
                self.state[layout.parameters[tile.parameter]][_key(name, tile)] = part
        return blocks

    def _refresh(self, turn_of: Sequence[Refresh]) -> None:
        """Turn the bases of the blocks whose turn it is; rotations are found by their owners and come to all."""
        every = [blocks for layout in self._layouts for blocks in layout.blocks]
        found: list[tuple[Blocks, slice, int, list[Tensor]]] = []
        for refresh in turn_of:
            blocks = every[refresh.stack]
            if blocks is not None:
                factors = blocks.factors(refresh.blocks)
                own = refresh.owner == self._collectives.rank
                rotations = [turn(factor) if own else torch.empty_like(factor) for factor in factors]
                found.append((blocks, refresh.blocks, refresh.owner, rotations))
        for owner in sorted({owner for _, _, owner, _ in found}):
            sent = [rotation for *_, by, rotations in found if by == owner for rotation in rotations]
            self._collectives.broadcast(sent, owner)
        for blocks, part, _, (left, right) in found:
            blocks.turn(part, left, right)


class _Layout:
    """A group's parameters: which are vectors, and how the others are cut."""

    def __init__(self, group: Mapping[str, Any], max_block: int) -> None:
        matrices = group["matrices"]
        self.parameters = [each for each in group["params"] if matrices and is_matrix(each)]
        self.vectors = [each for each in group["params"] if not (matrices and is_matrix(each))]
        tiles = cut([parameter.shape for parameter in self.parameters], max_block)
        self.stacks: list[Stack] = stack_up(tiles, [parameter.device for parameter in self.parameters])
        self.blocks: list[Blocks | None] = [None] * len(self.stacks)


def _key(name: str, tile: Tile) -> str:
    return f"{name}_{tile.index}" if tile.index else name


def _fill(own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    for name in sorted(own.keys() | stored.keys()):
        mine = tuple(own[name].shape) if name in own else "nothing"
        theirs = tuple(stored[name].shape) if name in stored else "nothing"
        if mine != theirs:
            raise ShapeError(
                f"the optimizer's state does not fit: it differs in '{name}'",
                got=theirs,
                wanted=mine,
                mend="Build the optimizer over the same parameters and with the same max_block as the one saved.",
            )
        own[name].copy_(stored[name])


def _refuse_sparse(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ShapeError(
                "Shampoo takes dense gradients",
                got=f"a gradient of layout {parameter.grad.layout} for a parameter {tuple(parameter.shape)}",
                mend="Build the embedding with sparse=False, or give it to torch.optim.SparseAdam.",
            )
