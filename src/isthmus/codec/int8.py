"""int8: 8.125 bits per element, for surges."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.codec.blocks import BlockCodec


def _pack(codes: Tensor) -> Tensor:
    return codes.view(torch.uint8)


def _unpack(data: Tensor) -> Tensor:
    return data.view(torch.int8)


INT8 = BlockCodec("int8", bits=8, pack=_pack, unpack=_unpack)
"""One byte per code, two's complement."""
