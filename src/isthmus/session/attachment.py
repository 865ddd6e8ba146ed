"""The same session through an optimizer's own step hook, for any trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from isthmus.island import Ranks, local_part
from isthmus.session.island import Island

log = logging.getLogger("isthmus")


class Attachment:
    """A session that counts a step whenever the optimizer takes one; made by ``attach``.

    Args:
        island: The island.
        optimizer: The optimizer whose steps are counted.
        tokens_per_step: Tokens of one optimizer step, over all of the island.
    """

    def __init__(
        self, island: Island, optimizer: torch.optim.Optimizer, tokens_per_step: int | Callable[[], int]
    ) -> None:
        self.island = island
        self._tokens = tokens_per_step if callable(tokens_per_step) else lambda: tokens_per_step
        self._rehearsal = False
        self._ended = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    @property
    def done(self) -> bool:
        """Whether the loop should end; see ``Island.done``."""
        return self.island.done

    def detach(self) -> None:
        """Count no further steps."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        self.island.__exit__(kind, error, trace)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._rehearsal = _is_rehearsal(optimizer, self.island.ranks)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._rehearsal or self._ended:
            return
        self.island.step(tokens=self._tokens())
        if self.island.done:
            self._ended = True
            if self.island.progress >= 1.0:
                self.island.settle()
                log.info("%s: the run has ended; what is trained from here on is not part of it", self.island.name)


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run_dir: str | Path,
    *,
    name: str,
    tokens_per_step: int | Callable[[], int],
    data: object | None = None,
    masters: Mapping[str, Tensor] | None = None,
) -> Attachment:
    """Join a run and let the optimizer's step hook drive it: for trainers whose loop is not one's own.

    The hook fires once per optimizer step, so gradient accumulation and skipped steps of a gradient scaler are counted
    right. The step that ``torch.distributed.checkpoint`` makes up to give an optimizer its state is not counted.

    Args:
        model: See ``Island.join``.
        optimizer: See ``Island.join``.
        run_dir: See ``Island.join``.
        name: See ``Island.join``.
        tokens_per_step: Tokens of one optimizer step over all of the island, or a function that says so after each.
        data: See ``Island.join``.
        masters: See ``Island.join``.

    Example:
        >>> with isthmus.attach(model, optimizer, "runs/mine", name="us-east", tokens_per_step=8192):
        ...     trainer.fit(model)
    """
    island = Island.join(run_dir, name=name, model=model, optimizer=optimizer, data=data, masters=masters)
    return Attachment(island, optimizer, tokens_per_step)


def _is_rehearsal(optimizer: torch.optim.Optimizer, ranks: Ranks) -> bool:
    """Whether this step only makes an optimizer's state: it has none yet, its rates are 0, and so are all gradients."""
    if optimizer.state or any(float(group["lr"]) != 0.0 for group in optimizer.param_groups):
        return False
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    (moves,) = ranks.largest(float(any(bool(local_part(grad).any()) for grad in grads)))
    return not moves
