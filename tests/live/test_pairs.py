"""Many real islands in pairs, as processes of their own over TLS."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from isthmus.checkpoint import load_exported
from isthmus.config import RunPaths
from isthmus.observe import records
from small_runs import children, last_step, records_of, trainer, until, write_text_run

pytestmark = pytest.mark.slow

NAMES = ("us-east", "asia", "europe", "us-west", "india")


def five(tmp_path: Path, *, tokens: int) -> RunPaths:
    run = {"mixing": {"meetings": 2, "window_steps": 12, "flight_steps": 2}}
    return write_text_run(tmp_path / "run", *NAMES, tokens=tokens, more_texts=60, run=run)


def models(paths: RunPaths, *names: str) -> list[dict[str, torch.Tensor]]:
    """What these islands exported, without what each counts of its own."""
    loaded = [load_exported(paths.island(name).root / "model.safetensors")[0] for name in names]
    return [{name: tensor for name, tensor in each.items() if not name.endswith(".load")} for each in loaded]


def test_five_islands_export_one_model_bit_for_bit_though_one_was_killed_on_the_way(tmp_path: Path):
    paths = five(tmp_path, tokens=5 * 250 * 64)
    with children() as start:
        running = {name: start(*trainer(paths, name)) for name in NAMES}
        until(lambda: last_step(paths, "asia") > 40, "steps", *running.values())
        os.kill(running["asia"].process.pid, signal.SIGKILL)
        running["asia"].ends()
        running["asia"] = start(*trainer(paths, "asia"))
        for child in running.values():
            child.ends_well()
    finished = [records_of(paths, name, records.Finished)[-1] for name in NAMES]
    assert [(each.reason, each.provisional) for each in finished] == [("done", False)] * 5
    assert len({each.joint_digest for each in finished}) == 1
    first, *others = models(paths, *NAMES)
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)
    for name in NAMES:
        assert len({meeting.peer for meeting in records_of(paths, name, records.Meeting)}) >= 2


def test_of_five_islands_four_end_the_run_when_one_is_lost_for_good(tmp_path: Path):
    paths = five(tmp_path, tokens=5 * 120 * 64)
    for name in NAMES:
        config = paths.island(name).config
        config.write_text(config.read_text().replace("wait_s = 60.0", "wait_s = 3.0"))
    with children() as start:
        running = {name: start(*trainer(paths, name)) for name in NAMES}
        until(lambda: last_step(paths, "us-east") > 20, "steps", *running.values())
        os.kill(running["us-east"].process.pid, signal.SIGKILL)
        running.pop("us-east").ends()
        for child in running.values():
            child.ends_well()
    finished = [records_of(paths, name, records.Finished)[-1] for name in running]
    assert [(each.reason, each.provisional) for each in finished] == [("done", False)] * 4
    assert len({each.joint_digest for each in finished}) == 1
