"""A sparse mixture-of-experts decoder in plain PyTorch, and its dense twin.

It knows no training loop and no parallelism: tokens in, logits out. Sizes are presets or a ``ModelConfig``; weights
come from a seed.
"""

from isthmus.model.build import Counts, build_model, num_parameters
from isthmus.model.config import ModelConfig
from isthmus.model.decoder import Decoder, loss, next_token_loss
from isthmus.model.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "Counts",
    "Decoder",
    "ModelConfig",
    "build_model",
    "loss",
    "next_token_loss",
    "num_parameters",
    "preset",
]
