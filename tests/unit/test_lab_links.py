from __future__ import annotations

import math
from pathlib import Path

import pytest

from isthmus.lab.links import outages, qualities
from isthmus.lab.study_file import LinkTable
from isthmus.transport import LinkQuality
from small_studies import BASE, PLAIN, TWO, VARY, setup_of

FOUR = '[[arm]]\nname = "two"\nislands = 4\n'
UNEVEN = "[arm.uneven]\nrate_mbit = [10, 1000]\nrtt_ms = [20, 250]\n"


def test_a_round_trip_is_split_in_halves_and_both_directions_are_alike(tmp_path: Path) -> None:
    base = BASE + "rate_mbit = 25\nloss = 0.01\nduplication = 0.02\nreordering = 0.03\n"
    quality = LinkQuality(delay_s=0.09, rate_bits_per_s=25e6, loss=0.01, duplication=0.02, reordering=0.03)
    assert qualities(setup_of(tmp_path, PLAIN, VARY, base, TWO)) == {("a", "b"): quality, ("b", "a"): quality}


def test_links_are_fast_and_free_of_faults_unless_told_otherwise(tmp_path: Path) -> None:
    links = qualities(setup_of(tmp_path, PLAIN, VARY, BASE.replace("[base.link]\nrtt_ms = 180", ""), TWO))
    assert links["a", "b"] == LinkQuality()


def test_a_pair_has_its_own_and_a_direction_its_own_above_that(tmp_path: Path) -> None:
    links = """
    [[arm.links]]
    from = "b"
    to = "a"
    rate_mbit = 2
    [[arm.links]]
    between = ["a", "b"]
    rtt_ms = 250
    rate_mbit = 10
    """
    found = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, FOUR, links))
    assert found["a", "b"] == LinkQuality(delay_s=0.125, rate_bits_per_s=10e6)
    assert found["b", "a"] == LinkQuality(delay_s=0.125, rate_bits_per_s=2e6)
    assert found["a", "c"] == found["d", "b"] == LinkQuality(delay_s=0.09)
    assert len(found) == 12


def test_an_arms_own_link_holds_for_all_its_pairs(tmp_path: Path) -> None:
    found = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, FOUR, "link.rtt_ms = 20\n"))
    assert {quality.delay_s for quality in found.values()} == {0.01}


def test_uneven_links_are_drawn_from_the_seed_and_from_nothing_else(tmp_path: Path) -> None:
    parts = (PLAIN, VARY, BASE, FOUR, UNEVEN)
    first, again, other = (qualities(setup_of(tmp_path, *parts, seed=seed)) for seed in (11, 11, 12))
    assert first == again
    assert all(first[pair] != other[pair] for pair in first)
    assert all(first[sender, receiver] == first[receiver, sender] for sender, receiver in first)
    assert len({quality.delay_s for quality in first.values()}) == 6


def test_a_pairs_draw_depends_on_no_other_pair_and_no_other_span(tmp_path: Path) -> None:
    four = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, FOUR, UNEVEN))
    two = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, TWO, UNEVEN))
    assert two["a", "b"] == four["a", "b"]
    rates_alone = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, TWO, "[arm.uneven]\nrate_mbit = [10, 1000]\n"))
    assert rates_alone["a", "b"].rate_bits_per_s == four["a", "b"].rate_bits_per_s
    assert rates_alone["a", "b"].delay_s == 0.09


def test_draws_are_log_uniform_within_their_spans(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "two"\nislands = 40\n'
    found = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, arm, UNEVEN))
    rates = [math.log10((quality.rate_bits_per_s or 0) / 1e6) for quality in found.values()]
    assert min(rates) >= 1
    assert max(rates) <= 3
    assert sum(rates) / len(rates) == pytest.approx(2, abs=0.1)
    assert sum(rate < 1.5 for rate in rates) / len(rates) == pytest.approx(0.25, abs=0.05)
    assert all(0.01 <= quality.delay_s <= 0.125 for quality in found.values())


def test_a_pairs_own_wins_over_what_it_drew(tmp_path: Path) -> None:
    own = '[[arm.links]]\nbetween = ["a", "b"]\nrtt_ms = 400\n'
    drawn = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, TWO, UNEVEN))["a", "b"]
    found = qualities(setup_of(tmp_path, PLAIN, VARY, BASE, TWO, UNEVEN, own))["a", "b"]
    assert found.delay_s == 0.2
    assert found.rate_bits_per_s == drawn.rate_bits_per_s


def test_outages_come_in_time_with_the_lower_name_first(tmp_path: Path) -> None:
    links = """
    [[arm.links]]
    between = ["c", "b"]
    outages = [[300, 400.5], [10, 20]]
    [[arm.links]]
    between = ["a", "b"]
    outages = [[100, 160], [160, 170]]
    """
    setup = setup_of(tmp_path, PLAIN, VARY, BASE, FOUR, links)
    assert outages(setup) == ((10, 20, "b", "c"), (100, 160, "a", "b"), (160, 170, "a", "b"), (300, 400.5, "b", "c"))


def test_one_island_has_no_links(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, PLAIN, VARY, BASE, TWO.replace("islands = 2", "islands = 1"), UNEVEN)
    assert qualities(setup) == {}
    assert outages(setup) == ()


def test_every_key_of_a_link_says_what_it_means() -> None:
    assert all(field.description for field in LinkTable.model_fields.values())
