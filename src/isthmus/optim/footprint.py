"""What an optimizer's state takes, without making it."""

from __future__ import annotations

from torch import nn

from isthmus.optim.groups import shampoo_groups
from isthmus.optim.registry import require_known
from isthmus.optim.settings import split
from isthmus.optim.shampoo import MAX_BLOCK
from isthmus.optim.tiles import cut

_FP32_BYTES = 4


def state_bytes(model: nn.Module, name: str) -> int:
    """Bytes of the state of the optimizer ``name`` over a model, which may lie on the meta device.

    Raises:
        ConfigError: There is no optimizer of that name.
    """
    require_known(name)
    matrices = [each for group in shampoo_groups(model, 0.0) for each in split(group)[0]]
    size = sum(parameter.numel() for parameter in matrices)
    rest = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) - size
    own = size if name == "muon" else 2 * size
    if name == "shampoo":
        tiles = [*cut([parameter.shape for parameter in matrices], MAX_BLOCK)]
        own += 2 * sum(tile.count * (m * m + n * n) for tile in tiles for m, n in (tile.shape,))
    return int(own + 2 * rest) * _FP32_BYTES
