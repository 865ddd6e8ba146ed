"""Makes slow state of a user's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from isthmus.fragments import canonical_name, cut, entries_of, layout_digest, layout_lines, tensors_of
from isthmus.island import Ranks, reshard
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
) -> Cut:
    """Cut a model into fragments and make its slow state.

    Args:
        model: The model, with the weights that the run begins with.
        num_fragments: P.
        peers: Names of the other islands.
        embedding_codec: How embeddings are coded.
        masters: fp32 masters of low-precision parameters, by parameter name.
        ranks: The island's; all of them make the call.

    Raises:
        ShapeError: A parameter cannot be mixed, with the reason.
    """
    entries = entries_of(model)
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
    )
    return Cut(slow, layout_digest(entries), layout_lines(entries))
