"""What docs/reliability.md says is shown by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_names_tests_that_exist() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| what fails")
    ]
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *def (test_\w+)", written, flags=re.MULTILINE))
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= there, row
