"""What is done to every block of the bundled model from outside: activations computed again, and compilation."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from torch import nn
from torch.utils.checkpoint import checkpoint

from isthmus.model.decoder import Block

Kind = TypeVar("Kind", bound=nn.Module)


def recompute_activations(model: nn.Module) -> None:
    """Keep of a block's activations its inputs alone, and compute the others again in backward."""
    for block in modules_of(model, Block):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]


def compile_blocks(model: nn.Module) -> None:
    """Let ``torch.compile`` make each block's kernels when it is first called; names stay what they are."""
    for block in modules_of(model, Block):
        block.compile()


def modules_of(model: nn.Module, kind: type[Kind]) -> list[Kind]:
    """The modules of a kind that are part of a model."""
    return [module for module in model.modules() if isinstance(module, kind)]
