"""Inner optimizers, built by name. What one keeps stays on its island."""

from isthmus.optim.groups import OptimizerSettings
from isthmus.optim.registry import OPTIMIZERS, build_optimizer

__all__ = ["OPTIMIZERS", "OptimizerSettings", "build_optimizer"]
