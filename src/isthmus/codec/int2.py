"""int2: 2.125 bits per element, three levels, for very thin links."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.codec.blocks import BlockCodec

_SHIFTS = torch.tensor([0, 2, 4, 6], dtype=torch.int16, device="cpu")


def _pack(codes: Tensor) -> Tensor:
    num_rows, length = codes.shape
    whole = pad(codes, (0, -length % 4)).view(num_rows, -1, 4).to(torch.int16) & 3
    return (whole << _SHIFTS.to(codes.device)).sum(-1, dtype=torch.int16)


def _unpack(data: Tensor) -> Tensor:
    codes = (data.unsqueeze(-1).to(torch.int16) >> _SHIFTS.to(data.device)) & 3
    return ((codes ^ 2) - 2).to(torch.int8).view(data.shape[0], -1)


INT2 = BlockCodec("int2", bits=2, pack=_pack, unpack=_unpack, shrink=(1.0, 0.7, 0.5, 0.35))
"""Four codes per byte, two's complement, the first in the lowest bits; an odd row ends in zeros."""
