from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from isthmus.errors import IdentityError
from isthmus.identity import certificate_to_base64, create_identity, create_owner_key
from isthmus.roster import (
    Member,
    Roster,
    choose_partner,
    least_recently_met,
    newest,
    partners,
    player,
    sign_roster,
    verify_roster,
)

RUN = "0f" * 32
OWNER = create_owner_key()


@cache
def certificate(name: str) -> str:
    return certificate_to_base64(create_identity(name).certificate_pem)


def member(name: str, slot: int, **values: object) -> Member:
    return Member.model_validate({"name": name, "slot": slot, "certificate": certificate(name), **values})


def roster(version: int = 1, **values: object) -> Roster:
    islands = (member("us-east", 0, addresses=("10.0.0.1:47110",)), member("asia", 1))
    return Roster.model_validate({"version": version, "run": RUN, "islands": islands, **values})


def met_table(num_islands: int) -> dict[int, list[int]]:
    return {slot: [p.slot for p in partners(slot, range(num_islands))] for slot in range(num_islands)}


def test_partners_are_one_bit_away_at_powers_of_two() -> None:
    assert met_table(2) == {0: [1], 1: [0]}
    assert met_table(4) == {0: [1, 2], 1: [0, 3], 2: [3, 0], 3: [2, 1]}
    assert met_table(8)[5] == [4, 7, 1]


def test_corners_without_an_island_are_played_by_the_one_below_them() -> None:
    assert met_table(3) == {0: [1, 2], 1: [0, 2], 2: [1, 0]}
    assert met_table(5) == {0: [1, 2, 4], 1: [0, 4, 3], 2: [3, 0, 4], 3: [2, 1], 4: [1, 2, 0]}
    assert met_table(9)[8] == [1, 2, 4, 0]
    assert [partner.slot for partner in partners(1, (1, 5, 63))] == [5, 63]
    assert [player(corner, (1, 5, 63)) for corner in (0, 4, 7, 33)] == [1, 1, 1, 1]


@pytest.mark.parametrize("num_islands", [*range(2, 18), 33, 63])
def test_an_island_has_two_partners_at_least_and_less_than_two_along_a_dimension(num_islands: int) -> None:
    sizes = [len(others) for others in met_table(num_islands).values()]
    dimensions = (num_islands - 1).bit_length()
    assert min(sizes) >= min(2, num_islands - 1)
    assert max(sizes) <= max(2 * dimensions - 2, 1)
    assert sum(sizes) / num_islands <= dimensions + 0.5


@pytest.mark.parametrize("num_islands", range(2, 10))
def test_every_edge_has_two_ends_and_all_islands_hang_together(num_islands: int) -> None:
    table = met_table(num_islands)
    assert all(slot in table[other] for slot, others in table.items() for other in others)
    reached = {0}
    for _ in range(num_islands.bit_length()):
        reached |= {other for slot in reached for other in table[slot]}
    assert reached == set(range(num_islands))


def test_the_partner_met_longest_ago_is_chosen_and_one_never_met_before_all() -> None:
    living = {1, 2, 4}
    chosen = choose_partner(0, living, living, {1: 30, 2: 10, 4: 20}, fragment=0, slots=range(8))
    assert chosen == 2
    assert choose_partner(0, living, living, {1: 0, 2: 0}, fragment=0, slots=range(8)) == 4


@pytest.mark.parametrize(("fragment", "slot"), [(0, 1), (1, 2), (2, 4), (3, 1), (7, 2)])
def test_between_equals_the_dimension_of_the_fragment_comes_first(fragment: int, slot: int) -> None:
    assert choose_partner(0, {1, 2, 4}, {1, 2, 4}, {}, fragment=fragment, slots=range(8)) == slot


def test_a_dead_partner_does_not_change_the_order_of_the_others() -> None:
    assert choose_partner(0, {1, 2}, {1, 2}, {}, fragment=3, slots=range(8)) == 1
    assert choose_partner(0, {1, 2}, {1, 2}, {}, fragment=2, slots=range(8)) == 1
    assert choose_partner(0, {1, 2}, {1, 2}, {}, fragment=1, slots=range(8)) == 2


def test_a_living_partner_that_is_not_ready_is_waited_for() -> None:
    assert choose_partner(0, {1, 2, 3}, {2, 3}, {2: 9}, fragment=0, slots=range(8)) == 2
    assert choose_partner(0, {1, 3}, {3}, {}, fragment=0, slots=range(8)) is None


def test_without_a_living_partner_any_other_island_that_is_ready_is_met() -> None:
    assert choose_partner(0, {3, 5, 6}, {5, 6}, {}, fragment=0, slots=range(8)) == 5
    assert choose_partner(0, {3, 5, 6}, {5, 6}, {5: 7}, fragment=0, slots=range(8)) == 6
    assert choose_partner(0, {3}, set(), {}, fragment=0, slots=range(8)) is None
    assert choose_partner(0, {0}, {0}, {}, fragment=0, slots=range(8)) is None


def test_nobody_is_met_least_recently_among_nobody() -> None:
    assert least_recently_met((), {}, first_dimension=0, num_dimensions=1) is None


@settings(max_examples=50)
@given(st.sets(st.integers(0, 63), min_size=2), st.data())
def test_a_chosen_island_lives_is_in_the_roster_and_is_another(slots: set[int], data: st.DataObject) -> None:
    slot = data.draw(st.sampled_from(sorted(slots)))
    living = data.draw(st.sets(st.sampled_from(sorted(slots))))
    ready = living & data.draw(st.sets(st.sampled_from(sorted(slots))))
    chosen = choose_partner(slot, living, ready, {}, fragment=data.draw(st.integers(0, 9)), slots=slots)
    near = {partner.slot for partner in partners(slot, slots)}
    if chosen is None:
        assert not (near & ready if near & living else ready - {slot})
    else:
        assert chosen in living
        assert chosen != slot


def test_a_signed_roster_is_believed() -> None:
    verify_roster(sign_roster(roster(), OWNER), OWNER.public)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"run": "1f" * 32},
        {"islands": (member("us-east", 0), member("asia", 1))},
        {"islands": (member("us-east", 1, addresses=("10.0.0.1:47110",)), member("asia", 0))},
        {"signature": ""},
        {"signature": "00" * 64},
        {"signature": "00"},
    ],
)
def test_a_roster_changed_after_signing_is_refused(change: dict[str, object]) -> None:
    changed = sign_roster(roster(), OWNER).model_copy(update=change)
    with pytest.raises(IdentityError):
        verify_roster(changed, OWNER.public)


def test_another_owners_signature_is_refused() -> None:
    with pytest.raises(IdentityError, match="not the owner's"):
        verify_roster(sign_roster(roster(), create_owner_key()), OWNER.public)


def test_the_higher_version_wins_only_with_a_valid_signature_of_the_same_run() -> None:
    mine, newer = sign_roster(roster(1), OWNER), sign_roster(roster(2), OWNER)
    assert newest(mine, newer, owner=OWNER.public) is newer
    assert newest(newer, mine, owner=OWNER.public) is newer
    assert newest(mine, roster(2), owner=OWNER.public) is mine
    assert newest(mine, sign_roster(roster(2), create_owner_key()), owner=OWNER.public) is mine
    assert newest(mine, sign_roster(roster(2, run="1f" * 32), OWNER), owner=OWNER.public) is mine


@pytest.mark.parametrize(
    ("islands", "wanted"),
    [
        ((member("a", 0), member("b", 0)), "slot"),
        ((member("a", 0), member("a", 1)), "no two islands with one name, no two with one certificate"),
        ((member("a", 0), member("b", 1, certificate=certificate("a"))), "certificate"),
        ((), "at least 1 item"),
    ],
)
def test_names_slots_and_certificates_are_each_one_islands(islands: tuple[Member, ...], wanted: str) -> None:
    with pytest.raises(ValidationError, match=wanted):
        roster(islands=islands)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slot", 64),
        ("slot", -1),
        ("slot", True),
        ("name", "US"),
        ("name", "a" * 33),
        ("name", ""),
        ("name", "../x"),
        ("certificate", "bm90IGE="),
        ("certificate", "?"),
        ("addresses", ("host",)),
        ("addresses", ("host:70000",)),
        ("addresses", ("::1:80",)),
        ("addresses", (":80",)),
    ],
)
def test_a_member_that_could_not_be_reached_or_told_apart_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        Member.model_validate({"name": "a", "slot": 0, "certificate": certificate("a"), key: value})


def test_a_roster_finds_its_islands() -> None:
    found = roster()
    assert found.slots == (0, 1)
    assert found.at(1).name == "asia"
    assert found.find("us-east") == found.islands[0]
    assert found.find("europe") is None
    assert [peer.name for peer in found.peers("asia")] == ["us-east"]
    with pytest.raises(KeyError):
        found.at(2)
    assert found.at(0).certificate_pem.startswith(b"-----BEGIN CERTIFICATE-----")
