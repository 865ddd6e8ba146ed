"""Distributed Shampoo for matrices and stacks of them, AdamW for the rest, as one torch optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from isthmus.errors import ConfigError, IsthmusError, ShapeError
from isthmus.optim.bases import full_precision
from isthmus.optim.blocks import VARIANTS, Blocks, begin_blocks
from isthmus.optim.collectives import Alone, Collectives
from isthmus.optim.layouts import Layout, key_of
from isthmus.optim.refreshes import Refresh, plan_refreshes, plan_share
from isthmus.optim.rounds import Round
from isthmus.optim.settings import check_gradients, check_group, check_settings, require_whole
from isthmus.optim.vectors import adamw_state, adamw_step
from isthmus.parts import Part, Source, fill

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

    Of several processes each owns some blocks: it alone keeps their state, is given their whole gradients however the
    parameters are sharded, and gives their changes to all that hold the weights. So the numbers are those of one
    process. ``state_dict`` then gives ``Part``s of tensors, and any number of processes goes on from them.

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
        collectives: The processes, where several train one model: ``isthmus.island.RankCollectives()``.

    Raises:
        ConfigError: A setting is out of its range, or a parameter is sharded and there are no collectives.
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
        self._layouts: list[Layout] = []
        self._loads = [0] * self._collectives.num_ranks
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
            if self._collectives.num_ranks == 1:
                require_whole(self.param_groups[-1]["params"], "Shampoo without collectives")
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
                for index in range(len(layout.stacks) if layout.rounds is None else 0):
                    self._step_stack(group, layout, index)
                self._step_rounds(group, layout, layout.rounds or ())
                layout.begun = True
            self._refresh()
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    takes_parts = True
    """``load_state_dict`` takes tensors that are stored in parts, too."""

    def state_dict(self) -> dict[str, Any]:
        """Of one process, as any optimizer's; of several, every tensor as the ``Part`` that this one has of it."""
        state = super().state_dict()
        if self._collectives.num_ranks > 1:
            parts = self._parts()
            parameters = [each for group in self.param_groups for each in group["params"]]
            state["state"] = {number: parts[each] for number, each in enumerate(parameters) if each in parts}
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave, bit for bit: state stays fp32 under parameters of any type.

        It may come from another number of processes.

        Raises:
            ConfigError: The state is of another variant; nothing was changed.
            ShapeError: It belongs to other parameters or to another ``max_block``; nothing was changed.
        """
        self._lay_out()
        taken: dict[Tensor, Mapping[str, Source]] = {}

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
        begun = [layout.begun for layout in self._layouts]
        return {**super().__getstate__(), **{name: getattr(self, name) for name in settings}, "begun": begun}

    def __setstate__(self, state: dict[str, Any]) -> None:
        begun = state.get("begun", [])
        super().__setstate__({name: value for name, value in state.items() if name != "begun"})
        if "_variant" in state:  # a copy, not a loaded state
            self._layouts, self._loads = [], [0] * self._collectives.num_ranks
            self._lay_out()
            for layout, has_begun in zip(self._layouts, begun, strict=False):
                layout.begun = has_begun
            self._take(self._parts())

    def _lay_out(self) -> None:
        """Cut what is not cut yet, and plan the refreshes. All processes make the call."""
        for group in self.param_groups[len(self._layouts) :]:
            self._layouts.append(Layout(group, self._max_block, self._collectives, self._loads))
        if self._collectives.num_ranks == 1:
            stacks = [stack for layout in self._layouts for stack in layout.stacks]
            self._turns = plan_refreshes(stacks, every=self.refresh_steps)
        else:
            own, whole = [*zip(*[(each.stacks, each.whole) for each in self._layouts], strict=True)]
            self._turns = plan_share(own, whole, every=self.refresh_steps)

    def _by_parameter(self, state_dict: Mapping[str, Any]) -> dict[Tensor, Mapping[str, Source]]:
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

    def _take(self, stored: Mapping[Tensor, Mapping[str, Source]]) -> None:
        """Make all state anew, with the values of ``stored``."""
        self.state = defaultdict(dict)
        for layout in self._layouts:
            layout.blocks = [None] * len(layout.stacks)
            layout.begun = any(parameter in stored for parameter in layout.parameters)
            for parameter in layout.vectors:
                if parameter in stored:
                    self.state[parameter] = adamw_state(self._collectives.local(parameter))
            for index, stack in enumerate(layout.stacks):
                tiles = [(key_of("step", tile), layout.parameters[tile.parameter]) for tile in stack.tiles]
                is_stored = any(key in stored.get(parameter, {}) for key, parameter in tiles)
                if is_stored or (layout.begun and layout.rounds is not None):  # as a step of several processes does
                    self._begin(layout, index)
        parts = self._parts()
        fill((source, parts[each][name]) for each, sources in stored.items() for name, source in sources.items())

    def _parts(self) -> dict[Tensor, dict[str, Part]]:
        """What this process has of all state; of several, also of tiles that others own."""
        if self._collectives.num_ranks == 1:
            return {each: {name: Part.whole(own) for name, own in state.items()} for each, state in self.state.items()}
        parts: dict[Tensor, dict[str, Part]] = {}
        for layout in self._layouts:
            for parameter in layout.vectors:
                if parameter in self.state:
                    held, own = self._collectives.part_of(parameter), self.state[parameter]
                    like = {name: replace(held, local=own[name]) for name in ("exp_avg", "exp_avg_sq")}
                    parts[parameter] = {"step": Part.whole(own["step"]), **like}
            for tile in layout.whole_tiles() if layout.begun else ():
                parameter = layout.parameters[tile.parameter]
                parts.setdefault(parameter, {}).update(layout.parts_of(tile, self.state[parameter]))
        return parts

    def _step_vectors(self, group: dict[str, Any], vectors: Sequence[Tensor]) -> None:
        trained, gradients, states = [], [], []
        for parameter in vectors:
            if parameter.grad is None:
                continue
            held = self._collectives.local(parameter)
            if parameter not in self.state:
                self.state[parameter] = adamw_state(held)
            if held.numel() == 0:
                self.state[parameter]["step"] += 1
                continue
            trained.append(held)
            gradients.append(self._collectives.local(_placed_alike(parameter.grad, parameter)))
            states.append(self.state[parameter])
        settings = {name: group[name] for name in ("lr", "eps", "weight_decay")}
        adamw_step(trained, gradients, states, betas=group["betas"][:2], **settings)

    def _step_stack(self, group: dict[str, Any], layout: Layout, index: int) -> None:
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

    def _step_rounds(self, group: dict[str, Any], layout: Layout, rounds: Sequence[Round]) -> None:
        """Step with all processes; whatever has no gradient here, may have one elsewhere."""
        local = self._collectives.local
        held = [local(parameter) for parameter in layout.parameters]
        gradients = [None if p.grad is None else local(_placed_alike(p.grad, p)) for p in layout.parameters]
        first = 0
        for each in rounds:
            places = range(first, first + len(each.stacks))
            blocks = [layout.blocks[index] or self._begin(layout, index) for index in places]
            each.step(held, gradients, blocks, group)
            first = places.stop

    def _begin(self, layout: Layout, index: int) -> Blocks:
        """Make a stack's state, and let its parameters' states be views of it."""
        stack = layout.stacks[index]
        blocks = layout.blocks[index] = begin_blocks(stack.shape, stack.device, self._variant)
        for name, tensor in blocks.tensors.items():
            for tile, part in zip(stack.tiles, stack.divided(tensor), strict=True):
                self.state[layout.parameters[tile.parameter]][key_of(name, tile)] = part
        return blocks

    def _refresh(self) -> None:
        """Rotate the bases of this process's blocks whose turn it is."""
        round_, turn = divmod(self.param_groups[0]["turn"], self.refresh_steps)
        every = [blocks for layout in self._layouts for blocks in layout.blocks]
        with full_precision():
            for refresh in self._turns[turn]:
                blocks = every[refresh.stack]
                if blocks is not None:
                    part = blocks[refresh.part]
                    part.rotate(*part.rotations(), straighten=round_ % STRAIGHTEN_ROUNDS == 0)


def _step_of(name: str) -> str:
    """The name of the count of steps that goes with a tensor."""
    _, dot, index = name.partition(".")
    return f"step{dot}{index}"


def _check_fit(own: Mapping[str, tuple[int, ...]], stored: Mapping[str, Source]) -> None:
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


def _placed_alike(gradient: Any, parameter: Any) -> Tensor:
    """A gradient that lies as its parameter does: not one that is still to be summed over ranks, say."""
    placements = getattr(parameter, "placements", None)
    if placements is not None and gradient.placements != placements:
        gradient = gradient.redistribute(parameter.device_mesh, placements)
    own: Tensor = gradient
    return own
