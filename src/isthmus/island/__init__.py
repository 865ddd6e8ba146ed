"""One island's inside: its ranks, how they hold the model, and the numeric precision they compute in."""

from isthmus.island.blocks import compile_blocks, recompute_activations
from isthmus.island.collectives import RankCollectives, open_collectives
from isthmus.island.held import WholeState, hold, local_part, part_of, reshard, spread_like, state_part
from isthmus.island.layout import Layout, Parallel
from isthmus.island.precision import PRECISIONS, Precision, native_bf16
from isthmus.island.process import is_first_rank, start_ranks, word_of_rank_0
from isthmus.island.ranks import Alone, Ranks, TorchRanks, is_gateway, open_ranks
from isthmus.island.together import at_gateway, together

__all__ = [
    "PRECISIONS",
    "Alone",
    "Layout",
    "Parallel",
    "Precision",
    "RankCollectives",
    "Ranks",
    "TorchRanks",
    "WholeState",
    "at_gateway",
    "compile_blocks",
    "hold",
    "is_first_rank",
    "is_gateway",
    "local_part",
    "native_bf16",
    "open_collectives",
    "open_ranks",
    "part_of",
    "recompute_activations",
    "reshard",
    "spread_like",
    "start_ranks",
    "state_part",
    "together",
    "word_of_rank_0",
]
