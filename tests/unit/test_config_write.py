from __future__ import annotations

import stat
from pathlib import Path

import pytest

from isthmus.config import NewIsland, RunPaths, load_run, load_shared, write_example, write_run
from isthmus.errors import ConfigError

TABLES = {"run": {"name": "demo", "token_budget": 1000, "seed": 3}, "mixing": {"window_steps": 12}}


def test_an_example_is_loaded_by_both_islands_and_has_defaults(tmp_path: Path) -> None:
    written = write_example(tmp_path / "My Run!")
    for slot, name in enumerate(("us-east", "asia")):
        loaded = load_run(tmp_path / "My Run!", name)
        assert loaded.run.hash == written.hash
        assert loaded.run.run.name == "my-run"
        assert loaded.member.slot == slot
        assert loaded.member.addresses == (loaded.island.link.listen,)
        assert loaded.identity.name == name
        assert loaded.window_steps == 50


def test_an_example_of_many_islands_has_meetings_that_reach_all(tmp_path: Path) -> None:
    for islands, meetings in ((1, 1), (2, 1), (3, 2), (8, 3), (64, 6)):
        names = [f"island-{slot}" for slot in range(islands)]
        assert write_example(tmp_path / f"of-{islands}", names).mixing.meetings == meetings


def test_private_keys_are_for_the_owner_alone(tmp_path: Path) -> None:
    write_example(tmp_path / "run")
    paths = RunPaths(tmp_path / "run")
    for key in (paths.owner_key, *(island.key for island in paths.present())):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.run.stat().st_mode) & 0o077


def test_two_examples_have_different_keys_and_hashes(tmp_path: Path) -> None:
    assert write_example(tmp_path / "a" / "run").hash != write_example(tmp_path / "b" / "run").hash


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="would overwrite"):
        write_example(tmp_path)
    with pytest.raises(ConfigError, match="would overwrite"):
        write_example(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    write_example(tmp_path, names=("a", "b", "c"))
    assert [island.name for island in load_shared(tmp_path).roster.islands] == ["a", "b", "c"]


def test_addresses_say_where_islands_are_reached_and_listen(tmp_path: Path) -> None:
    write_example(tmp_path / "run", addresses={"us-east": "east.example.net:7000", "asia": "[2001:db8::1]:7001"})
    east, asia = (load_run(tmp_path / "run", name) for name in ("us-east", "asia"))
    assert east.member.addresses == ("east.example.net:7000",)
    assert (east.island.link.listen, asia.island.link.listen) == ("0.0.0.0:7000", "[::]:7001")


def test_an_island_without_an_address_beside_one_that_has_it_only_dials(tmp_path: Path) -> None:
    write_example(tmp_path / "run", addresses={"us-east": "east.example.net:7000"})
    asia = load_run(tmp_path / "run", "asia")
    assert asia.member.addresses == ()
    assert asia.island.link.listen == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("addresses", "wanted"),
    [({"asai": "a:1"}, "of no island; got asai. Did you mean asia?"), ({"asia": "a"}, "the address of asia is wrong")],
)
def test_wrong_addresses_are_refused_before_anything_is_written(
    tmp_path: Path, addresses: dict[str, str], wanted: str
) -> None:
    with pytest.raises(ConfigError, match=wanted.replace("?", r"\?")):
        write_example(tmp_path / "run", addresses=addresses)
    assert not (tmp_path / "run").exists()


def test_a_run_is_written_with_the_values_given(tmp_path: Path) -> None:
    islands = [
        NewIsland("big", {"island": {"batch_size": 12}, "link": {"rate_mbit": 8, "dial": {"small": ["h:1"]}}}),
        NewIsland("small", {"island": {"batch_size": 4, "threads": 1}}, ("h:2",)),
    ]
    run = write_run(tmp_path / "run", TABLES, islands)
    big, small = (load_run(tmp_path / "run", name) for name in ("big", "small"))
    assert big.run.hash == run.hash
    assert (run.run.seed, run.mixing.window_steps) == (3, 12)
    assert (big.member.addresses, small.member.addresses) == ((), ("h:2",))
    assert big.island.link.rate_mbit == 8.0
    assert big.island.link.dial == {"small": ("h:1",)}
    assert (big.island.island.batch_size, small.island.island.threads) == (12, 1)


def test_wrong_values_are_all_told_and_nothing_is_written(tmp_path: Path) -> None:
    islands = [NewIsland("big", {"island": {"batch_size": 0}}), NewIsland("../up", {})]
    with pytest.raises(ConfigError) as caught:
        write_run(tmp_path / "run", {"run": {"name": "demo"}, "model": {"preset": "none"}}, islands)
    text = str(caught.value)
    assert "run.toml: run.token_budget: the key is missing" in text
    assert "big/island.toml: island.batch_size: got 0" in text
    assert "island.name: got '../up'" in text
    assert not (tmp_path / "run").exists()


def test_two_islands_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = [NewIsland("a", {"island": {"batch_size": 1}})] * 2
    with pytest.raises(ConfigError, match="no two islands with one name"):
        write_run(tmp_path / "run", TABLES, twice)
    assert not (tmp_path / "run").exists()
