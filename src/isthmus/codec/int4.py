"""int4: 4.125 bits per element, the codec of steady trade."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.codec.blocks import BlockCodec

_LOW_NIBBLES = 0x0F0F
_SIGNS = 0x88


def _pack(codes: Tensor) -> Tensor:
    pairs = codes.view(torch.int16) & _LOW_NIBBLES
    return (pairs | (pairs >> 4)).to(torch.uint8)


def _unpack(data: Tensor) -> Tensor:
    pairs = (data ^ _SIGNS).to(torch.int16)
    return ((pairs | (pairs << 4)) & _LOW_NIBBLES).view(torch.int8).sub_(8)


INT4 = BlockCodec("int4", bits=4, pack=_pack, unpack=_unpack)
"""Two codes per byte, two's complement, the first in the low nibble; an odd row ends in a zero nibble."""
