"""One island's inside: its ranks, how they hold the model, and the numeric precision they compute in."""

from isthmus.island.held import hold, local_part, reshard
from isthmus.island.precision import PRECISIONS, Precision, native_bf16
from isthmus.island.ranks import Alone, Ranks, TorchRanks, open_ranks
from isthmus.island.together import at_gateway, together

__all__ = [
    "PRECISIONS",
    "Alone",
    "Precision",
    "Ranks",
    "TorchRanks",
    "at_gateway",
    "hold",
    "local_part",
    "native_bf16",
    "open_ranks",
    "reshard",
    "together",
]
