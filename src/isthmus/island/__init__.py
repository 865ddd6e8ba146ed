"""One island's inside: the numeric precision it computes in."""

from isthmus.island.precision import PRECISIONS, Precision, native_bf16

__all__ = ["PRECISIONS", "Precision", "native_bf16"]
