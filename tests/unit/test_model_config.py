from __future__ import annotations

import dataclasses
import time

import pytest

from isthmus.errors import ConfigError
from isthmus.model import PRESETS, num_parameters, preset


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("micro", 150_000, 300_000),
        ("nano", 500_000, 800_000),
        ("dense", 50_000, 800_000),
        ("small", 18_000_000, 23_000_000),
        ("32b", 31_000_000_000, 33_500_000_000),
    ],
)
def test_a_preset_has_the_size_it_is_named_for(name: str, smallest: int, largest: int) -> None:
    assert smallest <= num_parameters(preset(name)).total <= largest


def test_counting_32_billion_parameters_takes_no_time_and_no_memory() -> None:
    started = time.process_time()
    num_parameters(preset("32b"))
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", [name for name, config in PRESETS.items() if not config.is_dense])
def test_a_token_meets_one_thirty_second_of_the_expert_parameters(name: str) -> None:
    counts = num_parameters(PRESETS[name])
    assert counts.expert_active * 32 == counts.expert_total


@pytest.mark.parametrize("name", ["micro", "nano", "small", "32b"])
def test_the_dense_twin_has_as_many_active_parameters_router_aside(name: str) -> None:
    config = preset(name)
    router = config.num_layers * config.num_experts * config.d_model
    twin = num_parameters(config.dense_twin())
    assert twin.total == twin.active == num_parameters(config).active - router
    assert twin.expert_total == 0


def test_the_dense_preset_is_the_twin_of_nano() -> None:
    assert preset("dense") == preset("nano").dense_twin()


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="micro, nano, dense, small, 32b"):
        preset("nanno")


@pytest.mark.parametrize(
    "wrong",
    [
        {"d_model": 0},
        {"expert_hidden": 0},
        {"num_kv_heads": 3},
        {"head_dim": 31},
        {"top_k": 33},
        {"shared_hidden": -1},
        {"balance_rate": -1.0},
        {"num_experts": 0, "top_k": 0, "shared_hidden": 0},
    ],
)
def test_a_shape_that_does_not_fit_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"model\."):
        dataclasses.replace(preset("nano"), **wrong)
