"""int4: 4.125 bits per element, the codec of steady trade."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.codec.blocks import BlockCodec

_LOW_NIBBLES = torch.tensor(0x0F0F, dtype=torch.int16, device="cpu")
_SIGNS = torch.tensor(0x88, dtype=torch.uint8, device="cpu")
_NIBBLE = torch.tensor(4, dtype=torch.int16, device="cpu")
_HALF = torch.tensor(8, dtype=torch.int8, device="cpu")


def _pack(codes: Tensor) -> Tensor:
    whole = pad(codes, (0, 1)) if codes.shape[1] % 2 else codes.contiguous()
    pairs = whole.view(torch.int16) & _LOW_NIBBLES
    return pairs | (pairs >> _NIBBLE)


def _unpack(data: Tensor) -> Tensor:
    pairs = (data ^ _SIGNS).to(torch.int16)
    return ((pairs | (pairs << _NIBBLE)) & _LOW_NIBBLES).view(torch.int8).sub_(_HALF)


INT4 = BlockCodec("int4", bits=4, pack=_pack, unpack=_unpack)
"""Two codes per byte, two's complement, the first in the low nibble; an odd row ends in a zero nibble."""
