"""How long an island waits is said in its island.toml, and gone by."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config import load_run
from isthmus.config.island import CheckpointTable, FinishTable, JoinTable, LeaveTable, LinkTable
from isthmus.errors import ConfigError
from isthmus.session import Island
from isthmus.session.site import link_settings
from isthmus.transport import LinkSettings
from small_runs import Loop, in_memory, write_small_run

OWN = {
    "link": {"heartbeat_s": 1.25, "silence_s": 7.5, "handshake_s": 3.5, "start_s": 33.0, "ask_again_s": 2.25},
    "join": {"wait_s": 0.5},
    "finish": {"wait_s": 4.5},
    "leave": {"grace_s": 6.5, "notice_every_s": 0.75, "notice_file": "going"},
    "checkpoint": {"wait_s": 8.5},
}
TABLES = (LinkTable, JoinTable, FinishTable, LeaveTable, CheckpointTable)


def island(root: Path) -> Island:
    paths = write_small_run(root / "run", "us-east", island=OWN)
    return Loop().join(paths, "us-east", open_link=in_memory(paths))


def test_all_times_of_the_file_are_set_here():
    names = {name for table in TABLES for name in table.model_fields if name.endswith("_s")}
    assert names == {name for table in OWN.values() for name in table if name.endswith("_s")}


def test_the_link_goes_by_its_times(tmp_path: Path):
    paths = write_small_run(tmp_path / "run", "us-east", island=OWN)
    settings = link_settings(load_run(paths.root, "us-east"), 1, dial={})
    times = (settings.heartbeat_s, settings.timeout_s, settings.handshake_timeout_s, settings.start_timeout_s)
    assert times == (1.25, 7.5, 3.5, 33.0)
    assert {name for name in LinkSettings.__struct_fields__ if name.endswith("_s") and "bits" not in name} == {
        "heartbeat_s",
        "timeout_s",
        "handshake_timeout_s",
        "start_timeout_s",
    }, "a time of the link that no file says"


def test_the_session_goes_by_its_times(tmp_path: Path):
    joined = island(tmp_path)
    plan, site = joined.engine.plan, joined._site
    assert (plan.join_wait_s, plan.finish_wait_s, plan.hello_every_s) == (0.5, 4.5, 2.25)
    assert (site.notice._poll_s, site.loaded.island.leave.grace_s) == (0.75, 6.5)
    joined.close("interrupted")


@pytest.mark.parametrize(("result", "waited_s"), [("interrupted", 8.5), ("failed", 8.5)])
def test_leaving_waits_for_a_save_no_longer_than_the_file_says(tmp_path, monkeypatch, result, waited_s):
    joined, waited = island(tmp_path), list[float]()
    monkeypatch.setattr(joined.engine, "finish_saves", waited.append)
    joined.close(result)
    assert waited == [waited_s]


def test_a_peer_that_may_not_be_silent_between_two_signs_of_life_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"link.silence_s: got 3.0; wanted at least 2 x link.heartbeat_s = 4"):
        write_small_run(tmp_path / "run", "us-east", island={"link": {"silence_s": 3.0}})
