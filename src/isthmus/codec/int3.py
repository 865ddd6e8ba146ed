"""int3: 3.125 bits per element, for thin links."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.codec.blocks import BlockCodec

_BITS = 3
_PER_GROUP = 8
"""Codes that fill three bytes."""

_SHIFTS = torch.arange(0, _BITS * _PER_GROUP, _BITS, dtype=torch.int32, device="cpu")
_BYTES = torch.tensor([0, 8, 16], dtype=torch.int32, device="cpu")


def _pack(codes: Tensor) -> Tensor:
    num_rows, length = codes.shape
    whole = pad(codes, (0, -length % _PER_GROUP)).view(num_rows, -1, _PER_GROUP).to(torch.int32) & 7
    groups = (whole << _SHIFTS.to(codes.device)).sum(-1, dtype=torch.int32, keepdim=True)
    packed = (groups >> _BYTES.to(codes.device)) & 255
    return packed.view(num_rows, -1)[:, : (length * _BITS + 7) // 8]


def _unpack(data: Tensor) -> Tensor:
    num_rows, length = data.shape
    whole = pad(data, (0, -length % _BITS)).view(num_rows, -1, _BITS).to(torch.int32)
    groups = (whole << _BYTES.to(data.device)).sum(-1, dtype=torch.int32, keepdim=True)
    codes = (groups >> _SHIFTS.to(data.device)) & 7
    return ((codes ^ 4) - 4).to(torch.int8).view(num_rows, -1)


INT3 = BlockCodec("int3", bits=_BITS, pack=_pack, unpack=_unpack, shrink=(1.0, 0.8, 0.64))
"""Eight codes in three bytes, two's complement, the first in the lowest bits; a row's last bytes hold what is left."""
