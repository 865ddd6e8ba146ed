"""Whatever an island's layout, it publishes and holds what one process would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.observe import records
from small_runs import records_of, write_small_run
from torchrun import torchrun

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [(2, ("ddp", "fsdp", "tp", "ep")), (3, ("fsdp",)), (4, ("hsdp", "fsdp-tp", "fsdp-ep"))],
)
def test_payloads_references_and_weights_are_bit_for_bit_those_of_one_process(ranks: int, layouts: Sequence[str]):
    torchrun(ranks, HERE / "layouts.py", *layouts)


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [
        (2, ("ddp", "ddp,parts=2", "fsdp=2,parts=4", "fsdp=2", "tp=2", "ep=2", "ep=2,parts=2")),
        (4, ("ddp", "fsdp=2", "ep=4", "tp=2,ep=2", "fsdp=2,tp=2", "fsdp=2,ep=2")),
    ],
)
def test_losses_and_weights_are_those_of_one_process(ranks: int, layouts: Sequence[str]) -> None:
    torchrun(ranks, HERE / "losses.py", "adamw", *layouts)


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [(2, ("ddp", "fsdp=2", "tp=2", "ep=2")), (3, ("fsdp=3",)), (4, ("fsdp=2", "fsdp=2,tp=2", "fsdp=2,ep=2"))],
)
def test_shampoo_works_on_whole_blocks_whatever_the_layout(ranks: int, layouts: Sequence[str]) -> None:
    torchrun(ranks, HERE / "preconditioned.py", *layouts)


def test_losses_under_shampoo_are_those_of_one_process() -> None:
    torchrun(2, HERE / "losses.py", "shampoo", "ddp", "fsdp=2", "tp=2", "ep=2")


@pytest.mark.parametrize("way", ["join", "attach"])
def test_a_loop_of_ones_own_is_an_island_of_several_ranks(tmp_path: Path, way: str) -> None:
    paths = write_small_run(tmp_path / "run", "solo", tokens=120 * 10)
    torchrun(2, HERE / "own_loop.py", str(paths.root), way)
    (finished,) = records_of(paths, "solo", records.Finished)
    assert (finished.reason, finished.provisional) == ("done", False)
    steps = records_of(paths, "solo", records.StepDone)
    assert [record.step for record in steps] == list(range(1, 121))
    assert len(records_of(paths, "solo", records.Departure)) >= 2 * 120 // 8


def test_ranks_that_do_not_belong_together_are_told_so_alike(tmp_path: Path) -> None:
    paths = write_small_run(tmp_path / "run", "solo", tokens=10_000)
    torchrun(2, HERE / "refusals.py", str(paths.root))


def resume(run_dir: Path, what: str, ranks: int, layout: str, optimizer: str) -> dict[str, Any]:
    """Let a copy of a run begin, or go on."""
    out = run_dir / f"{what}.json"
    torchrun(ranks, HERE / "resume.py", str(run_dir), what, layout, optimizer, str(out))
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("optimizer", "first", "others"),
    [
        ("adamw", (2, "fsdp=2"), [(2, "fsdp=2"), (1, "alone"), (4, "fsdp=2,tp=2")]),
        ("adamw", (4, "fsdp=2,ep=2"), [(2, "tp=2")]),
        ("shampoo", (2, "fsdp=2"), [(2, "fsdp=2"), (1, "alone")]),
        ("shampoo", (1, "alone"), [(2, "ep=2")]),
    ],
)
def test_an_island_goes_on_with_other_ranks_and_another_layout(tmp_path: Path, optimizer, first, others) -> None:
    began_at = write_small_run(tmp_path / "first", "solo", tokens=10**6).root
    begun = resume(began_at, "begin", *first, optimizer)
    for place, other in enumerate(others):
        copy = tmp_path / f"other{place}"
        shutil.copytree(began_at, copy)
        gone_on = resume(copy, "go-on", *other, optimizer)
        assert gone_on["saved"] == begun["saved"]
        assert gone_on["losses"] == pytest.approx(begun["losses"], rel=0, abs=1e-4 if optimizer == "adamw" else 1e-2)
        if other == first:
            assert gone_on == begun, "as if it had never stopped"
