"""All codecs by name; a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from isthmus.codec.base import Codec
from isthmus.codec.bf16 import Bf16
from isthmus.codec.fp32 import Fp32
from isthmus.codec.int2 import INT2
from isthmus.codec.int3 import INT3
from isthmus.codec.int4 import INT4
from isthmus.codec.int8 import INT8
from isthmus.errors import CodecError

_ALL: tuple[Codec, ...] = (Fp32(), Bf16(), INT8, INT4, INT3, INT2)

CODECS: Mapping[str, Codec] = MappingProxyType({codec.name: codec for codec in _ALL})
"""Codecs by name, finest first."""


def codec_named(name: str) -> Codec:
    """The codec of that name.

    Raises:
        CodecError: There is none.
    """
    try:
        return CODECS[name]
    except KeyError:
        raise CodecError("there is no such codec", got=name, wanted=f"one of {', '.join(CODECS)}") from None
