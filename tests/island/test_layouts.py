"""Whatever an island's layout, it publishes and holds what one process would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

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
    torchrun(ranks, HERE / "losses.py", *layouts)
