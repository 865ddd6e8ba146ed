"""What both ends of an edge hold bit for bit, and code their publications against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from isthmus.fragments import Fragment
from isthmus.island import Ranks
from isthmus.parts import Part, Source
from isthmus.session.groups import Group, Matrices
from isthmus.session.stored import row_parts, rows_to_save, take

Reference = Matrices
"""c of one edge and fragment, as far as it is this rank's; None stands for no reference (c = 0)."""


class References:
    """c of every edge and fragment. Edges that have the same one, as all have in the beginning, share its memory.

    Args:
        slow: The slow weights that the run begins with, by fragment.
        peers: The other islands; what the run began with is kept until the last of them was met.
        fragments: How the model is cut.
        ranks: The island's.
    """

    def __init__(
        self, slow: Sequence[Matrices], peers: Sequence[str], fragments: Sequence[Fragment], ranks: Ranks
    ) -> None:
        self._peers, self._fragments, self._ranks = tuple(peers), tuple(fragments), ranks
        self._groups = [tuple(matrices) for matrices in slow]
        self._met: dict[tuple[str, int], Reference | None] = {}
        self._initial: dict[int, Reference] = {}
        if self._peers:
            self._initial = {index: _copy(matrices) for index, matrices in enumerate(slow)}

    def of(self, peer: str, fragment: int) -> Reference | None:
        """The reference of an edge; to read."""
        key = (peer, fragment)
        return self._met[key] if key in self._met else self._initial[fragment]

    def has(self, peer: str, fragment: int) -> bool:
        """Whether there is an entry for an edge."""
        return (peer, fragment) in self._met or fragment in self._initial

    def keep(self, peers: Sequence[str]) -> None:
        """Forget the references of all but these, who are the other islands from now on."""
        self._peers = tuple(peers)
        self._met = {key: reference for key, reference in self._met.items() if key[0] in peers}

    def next_of(self, peers: Sequence[str], fragment: int) -> Reference:
        """Where the next reference of these edges is to be written: over their own, if it is no other edge's, too.

        So a piece of it is to be written after the same piece of their own was read.
        """
        own = self.of(peers[0], fragment)
        others = (peer for peer in self._peers if peer not in peers)
        if own is not None and all(self.of(peer, fragment) is not own for peer in others):
            return own
        return self._empty(fragment)

    def set(self, peers: Sequence[str], fragment: int, reference: Reference | None) -> None:
        """Give these edges a reference, or none."""
        for peer in peers:
            self._met[peer, fragment] = reference
        if all((other, fragment) in self._met for other in self._peers):
            self._initial.pop(fragment, None)

    def state_dict(self) -> dict[str, Any]:
        """All references by entry name, those that several edges share once.

        ``shared`` names the peer under which the others find it.
        """
        first: dict[int, str] = {}
        references: dict[tuple[str, int], Mapping[str, Tensor | Part] | None] = {}
        shared: dict[tuple[str, int], str] = {}
        for key, reference in self._met.items():
            owner = key[0] if reference is None else first.setdefault(id(reference), key[0])
            if owner != key[0]:
                shared[key] = owner
            else:
                references[key] = None if reference is None else self._saved(key[1], reference)
        initial = {fragment: self._saved(fragment, reference) for fragment, reference in self._initial.items()}
        return {"initial": initial, "references": references, "shared": shared}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave.

        Raises:
            ShapeError: It belongs to another model.
        """
        stored, shared = state["references"], state.get("shared", {})
        self._met.clear()
        for fragment in list(self._initial):  # before memory for references is taken
            if all((peer, fragment) in stored or (peer, fragment) in shared for peer in self._peers):
                del self._initial[fragment]
        for fragment, tensors in state["initial"].items():
            self._initial[fragment] = self._placed(fragment, tensors)
        references = {
            key: None if tensors is None else self._placed(key[1], tensors) for key, tensors in stored.items()
        }
        references |= {key: references[owner, key[1]] for key, owner in shared.items()}
        for (peer, fragment), reference in references.items():
            if peer in self._peers:
                self.set([peer], fragment, reference)

    def _saved(self, fragment: int, reference: Reference) -> Mapping[str, Tensor | Part]:
        return rows_to_save(self._fragments[fragment].entries, reference, self._ranks)

    def _placed(self, fragment: int, stored: Mapping[str, Source]) -> Reference:
        reference = self._empty(fragment)
        take("reference", row_parts(self._fragments[fragment].entries, reference, self._ranks), stored)
        return reference

    def _empty(self, fragment: int) -> Reference:
        return {group: group.empty() for group in self._groups[fragment]}


def _copy(matrices: Mapping[Group, Tensor]) -> Matrices:
    return {group: group.empty().copy_(matrix) for group, matrix in matrices.items()}
