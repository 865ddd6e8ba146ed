"""Makes slow state of a user's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from isthmus.errors import ShapeError
from isthmus.fragments import (
    canonical_name,
    cut,
    entries_of,
    first_difference,
    layout_digest,
    layout_lines,
    tensors_of,
)
from isthmus.island import Ranks, reshard
from isthmus.session.copies import BESIDE, Place
from isthmus.session.slow import SlowState


@dataclass(frozen=True)
class Cut:
    """A model as islands see it: slow state, and its layout as a digest and in words."""

    slow: SlowState
    layout: bytes
    layout_lines: tuple[str, ...]


def cut_model(
    model: nn.Module,
    *,
    num_fragments: int,
    peers: tuple[str, ...],
    embedding_codec: str,
    masters: Mapping[str, Tensor] | None = None,
    ranks: Ranks | None = None,
    mixed_momentum: bool = False,
    place: Place = BESIDE,
) -> Cut:
    """Cut a model into fragments and make its slow state.

    Args:
        model: The model, with the weights that the run begins with.
        num_fragments: P.
        peers: Names of the other islands.
        embedding_codec: How embeddings are coded.
        masters: fp32 masters of low-precision parameters, by parameter name.
        ranks: The island's; all of them make the call.
        mixed_momentum: Correct momentum by every meeting as the weights are.
        place: Where slow state lies.

    Raises:
        ShapeError: A parameter cannot be mixed, with the reason; or the ranks have built different models.
    """
    entries = entries_of(model)
    if ranks is not None:
        _require_same_layout(ranks.collect("\n".join(layout_lines(entries)).encode()))
    tensors = tensors_of(model)
    own = {canonical_name(name): tensor for name, tensor in (masters or {}).items()}
    fast = {name: own.get(name, tensor) for name, tensor in tensors.items()}
    mirrors = {name: tensors[name] for name in own if name in tensors}
    fragments = cut(entries, num_fragments)
    slow = SlowState(
        fragments,
        fast,
        peers=peers,
        embedding_codec=embedding_codec,
        mirrors=mirrors,
        ranks=ranks,
        settle=partial(reshard, model),
        mixed_momentum=mixed_momentum,
        place=place,
    )
    return Cut(slow, layout_digest(entries), layout_lines(entries))


def _require_same_layout(told: Sequence[bytes]) -> None:
    """Refuse ranks whose models have other tensors than rank 0's."""
    for rank, lines in enumerate(told):
        difference = first_difference(lines.decode().split("\n"), told[0].decode().split("\n"))
        if difference is not None:
            raise ShapeError(
                f"rank {rank} of this island has built another model than rank 0",
                got=difference.replace("this island's", "its").replace("the other island's", "rank 0's"),
                mend="Every rank builds the whole model, and divides it as DTensors; pipeline stages cannot be joined.",
            )
