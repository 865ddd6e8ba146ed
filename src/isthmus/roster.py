"""Who is in the run: the owner's signed list of islands, and whom an island trades with.

Pure: files are read and written elsewhere, liveness is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from isthmus.addresses import split_address
from isthmus.errors import IdentityError
from isthmus.identity import OwnerKey, certificate_from_base64, certificate_name, verify_owner
from isthmus.windows import check_window, closes_at

MAX_SLOT = 63
"""The highest slot: a run has at most 64 islands, six dimensions."""

NEVER = -1
"""When an island met another that it never met; below every real time."""

_DOMAIN = b"isthmus roster v1\n"


def _checked_address(address: str) -> str:
    split_address(address)
    return address


def _checked_certificate(text: str) -> str:
    try:
        certificate_name(certificate_from_base64(text))
    except IdentityError as error:
        raise ValueError(f"Input should be an identity certificate in base64 ({error})") from error
    return text


Address = Annotated[str, AfterValidator(_checked_address)]
"""Where an island can be reached: ``host:port``, or ``[v6]:port``."""

IslandName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")]
"""How an island is called."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Member(_Frozen):
    """One island of a roster."""

    name: IslandName = Field(description="a-z, 0-9 and -, at most 32; each name, slot and certificate once.")
    slot: int = Field(ge=0, le=MAX_SLOT, description="Its corner of the hypercube, 0 to 63; never given to another.")
    certificate: Annotated[str, AfterValidator(_checked_certificate)] = Field(
        description="Its identity.crt (DER) as one line of base64."
    )
    addresses: tuple[Address, ...] = Field(
        default=(), description="Where others reach it; empty for an island that only dials out."
    )

    windows: tuple[Annotated[str, AfterValidator(check_window)], ...] = Field(
        default=(),
        description="When its capacity is there: 22:00/06:00 (UTC, every day), from one moment to another (ISO 8601, "
        "with a slash between), or PT4H from its start; empty for always.",
    )

    @property
    def certificate_pem(self) -> bytes:
        """The identity certificate as PEM."""
        return certificate_from_base64(self.certificate)


class Roster(_Frozen):
    """The islands of one run; ``signature`` is empty before ``sign_roster``."""

    version: int = Field(ge=1, description="Of several rosters the highest version counts.")
    run: str = Field(pattern=r"^[0-9a-f]{64}$", description="The hash of run.toml.")
    signature: str = Field(
        default="", pattern=r"^([0-9a-f]{2})*$", description="The owner's, over all the rest; in hex."
    )
    retired: tuple[Annotated[int, Field(ge=0, le=MAX_SLOT)], ...] = Field(
        default=(), description="Slots of islands that were removed; given to no other."
    )
    islands: tuple[Member, ...] = Field(min_length=1, max_length=MAX_SLOT + 1)

    @field_validator("islands")
    @classmethod
    def _unique(cls, islands: tuple[Member, ...]) -> tuple[Member, ...]:
        twice = [key for key in ("name", "slot", "certificate") if _repeats(islands, key)]
        if twice:
            raise ValueError(f"Input should have no two islands with one {', no two with one '.join(twice)}")
        return islands

    @model_validator(mode="after")
    def _slots_are_not_given_again(self) -> Self:
        again = sorted({island.slot for island in self.islands} & set(self.retired))
        if again:
            raise ValueError(f"slots {again} are retired: those of removed islands, given to no other")
        return self

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots, ascending."""
        return tuple(sorted(island.slot for island in self.islands))

    def find(self, name: str) -> Member | None:
        """The island called ``name``, or None."""
        return next((island for island in self.islands if island.name == name), None)

    def at(self, slot: int) -> Member:
        """The island in ``slot``; KeyError if there is none."""
        for island in self.islands:
            if island.slot == slot:
                return island
        raise KeyError(slot)

    def away(self, wall_s: float) -> frozenset[str]:
        """The islands whose windows say that they are not there at ``wall_s``, in seconds since the epoch."""
        return frozenset(
            island.name for island in self.islands if closes_at(island.windows, wall_s, started_s=wall_s) is None
        )

    def peers(self, name: str) -> tuple[Member, ...]:
        """All islands but ``name``, by slot."""
        return tuple(sorted((peer for peer in self.islands if peer.name != name), key=lambda peer: peer.slot))


def _repeats(islands: tuple[Member, ...], key: str) -> bool:
    return len({getattr(island, key) for island in islands}) < len(islands)


def canonical_roster(roster: Roster) -> bytes:
    """The bytes that the owner signs: everything but the signature, the same for equal rosters."""
    values = roster.model_dump(mode="json", exclude={"signature"})
    return _DOMAIN + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def sign_roster(roster: Roster, owner_key: OwnerKey) -> Roster:
    """``roster`` with the owner's signature."""
    return roster.model_copy(update={"signature": owner_key.sign(canonical_roster(roster)).hex()})


def verify_roster(roster: Roster, owner: str) -> None:
    """Raise IdentityError unless ``roster`` is signed by the owner whose public key is ``owner``."""
    verify_owner(owner, canonical_roster(roster), bytes.fromhex(roster.signature))


def newest(mine: Roster, other: Roster, *, owner: str) -> Roster:
    """Of two rosters of one run the one with the higher version, if it is validly signed; else ``mine``."""
    if other.run != mine.run or other.version <= mine.version:
        return mine
    try:
        verify_roster(other, owner)
    except IdentityError:
        return mine
    return other


class Partner(NamedTuple):
    """An island that is one dimension of the hypercube away."""

    dimension: int
    slot: int


def partners(slot: int, slots: Collection[int]) -> tuple[Partner, ...]:
    """The islands that one trades with, by dimension; each once.

    Pairing along a hypercube's dimensions in turn spreads every island's progress to all in log2 N rounds. A corner of
    the cube without an island is played by the one whose slot is that corner's without its highest bit, or without its
    two highest, and so on: so each has partners along all dimensions, whatever their number. An island that joins or
    leaves changes the partners of few others.
    """
    return _partners(slot, frozenset(slots))


@lru_cache(maxsize=256)
def _partners(slot: int, slots: frozenset[int]) -> tuple[Partner, ...]:
    num_dimensions = max(slots).bit_length()
    played = [corner for corner in range(1 << num_dimensions) if player(corner, slots) == slot]
    found: dict[int, int] = {}
    for dimension in range(num_dimensions):
        for corner in played:
            other = player(corner ^ (1 << dimension), slots)
            if other != slot:
                found.setdefault(other, dimension)
    return tuple(Partner(dimension, other) for other, dimension in found.items())


def player(corner: int, slots: Collection[int]) -> int:
    """Who stands for a corner of the hypercube: the island in that slot, or the one that plays an empty one."""
    while corner not in slots:
        if not corner:
            return min(slots)
        corner ^= 1 << (corner.bit_length() - 1)
    return corner


def least_recently_met(
    candidates: Collection[Partner], met: Mapping[int, float], *, first_dimension: int, num_dimensions: int
) -> int | None:
    """The slot among ``candidates`` met longest ago, or None if there are none.

    Args:
        candidates: Those to choose from.
        met: When each slot was last met, on any rising scale; a slot that is not there was never met.
        first_dimension: Between equals this one comes first (modulo ``num_dimensions``), then the next ones.
            A fragment passes its own number: fragments spread over the dimensions, alike at both ends.
        num_dimensions: Those of the whole roster, so that who is alive does not change the order.
    """

    def order(partner: Partner) -> tuple[float, int]:
        return met.get(partner.slot, NEVER), (partner.dimension - first_dimension) % num_dimensions

    return min(candidates, key=order).slot if candidates else None


def choose_partner(
    slot: int,
    living: Collection[int],
    ready: Collection[int],
    met: Mapping[int, float],
    *,
    fragment: int,
    slots: Collection[int],
) -> int | None:
    """Whom the island in ``slot`` publishes ``fragment`` to: a slot, or None if nobody is there.

    Of the partners that are ready the one least recently met; where no partner lives, any other island that is ready:
    the least recently met, then the lowest slot.

    Args:
        slot: The island's own slot.
        living: Slots of islands that can be reached and that answer.
        ready: Those of them with whom a reference is agreed on.
        met: When each slot last met this island over this fragment, on any rising scale.
        fragment: The fragment's number; it decides between equals.
        slots: All slots of the roster.
    """
    near = [partner for partner in partners(slot, slots) if partner.slot in living]
    if near:
        candidates = [partner for partner in near if partner.slot in ready]
        num_dimensions = max(slots).bit_length()
        return least_recently_met(candidates, met, first_dimension=fragment, num_dimensions=num_dimensions)
    far = sorted(other for other in slots if other != slot and other in ready)
    return min(far, key=lambda other: met.get(other, NEVER), default=None)
