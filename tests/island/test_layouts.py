"""Whatever an island's layout, it publishes and holds what one process would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from torchrun import torchrun

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "layouts.py"


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [(2, ("ddp", "fsdp", "tp", "ep")), (3, ("fsdp",)), (4, ("hsdp", "fsdp-tp", "fsdp-ep"))],
)
def test_payloads_references_and_weights_are_bit_for_bit_those_of_one_process(ranks: int, layouts: Sequence[str]):
    torchrun(ranks, SCRIPT, *layouts)
