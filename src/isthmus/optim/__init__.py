"""Inner optimizers, built by name. What one keeps stays on its island."""

from isthmus.optim.collectives import Collectives
from isthmus.optim.footprint import state_bytes
from isthmus.optim.groups import OptimizerSettings, decay_groups, shampoo_groups
from isthmus.optim.registry import OPTIMIZERS, build_optimizer, require_known
from isthmus.optim.shampoo import Shampoo

__all__ = [
    "OPTIMIZERS",
    "Collectives",
    "OptimizerSettings",
    "Shampoo",
    "build_optimizer",
    "decay_groups",
    "require_known",
    "shampoo_groups",
    "state_bytes",
]
