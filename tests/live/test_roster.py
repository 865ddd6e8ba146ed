"""Rosters that change while real islands train."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.config import RunPaths, load_shared
from isthmus.observe import records
from small_runs import change_file, children, last_step, records_of, trainer, until, write_text_run

pytestmark = pytest.mark.slow


def sites(paths: RunPaths, *names: str) -> dict[str, RunPaths]:
    """A directory of its own for every island, with what is shared and what is its own, as on machines of their own."""
    made = {}
    for name in names:
        root = paths.root.parent / f"at-{name}"
        root.mkdir()
        for shared in (paths.run, paths.roster):
            shutil.copy(shared, root)
        shutil.copytree(paths.island(name).root, RunPaths(root).island(name).root)
        made[name] = RunPaths(root)
    return made


def met(paths: RunPaths, name: str) -> set[str]:
    return {meeting.peer for meeting in records_of(paths, name, records.Meeting)}


def test_an_island_is_added_to_a_run_and_another_removed_while_all_train(tmp_path: Path, capsys):
    more = {"more_texts": 60, "island": {"batch_size": 4}}
    paths = write_text_run(tmp_path / "run", "us-east", "asia", "europe", tokens=6_000_000, **more)
    change_file(paths.island("asia").config, ("fsdp = 1", "fsdp = 2"))
    at = sites(paths, "us-east", "asia", "europe")
    with children() as start:
        running = {name: start(*trainer(at[name], name, 2 if name == "asia" else 1)) for name in at}
        until(lambda: all(last_step(at[name], name) > 20 for name in at), "steps", *running.values())
        assert main(["roster", "add", str(paths.root), "india"]) == 0
        capsys.readouterr()
        config = paths.island("india").config
        own = paths.island("asia").config.read_text()
        sources = next(line for line in own.splitlines() if line.startswith("sources"))
        change_file(config, ('sources = ["default"]', sources))
        at |= sites(paths, "india")
        shutil.copy(paths.roster, at["us-east"].roster)
        running["india"] = start(*trainer(at["india"], "india"))
        until(lambda: last_step(at["india"], "india") > 20, "steps of the new island", *running.values())
        until(lambda: "india" in met(at["asia"], "asia") | met(at["europe"], "europe"), "a meeting", *running.values())
        assert [load_shared(at[name].root).roster.version for name in at] == [2] * 4
        joined = records_of(at["india"], "india", records.Joined)[0]
        assert joined.how == "adopted"

        assert main(["roster", "remove", str(paths.root), "europe"]) == 0
        shutil.copy(paths.roster, at["india"].roster)
        running.pop("europe").ends_well()
        said = records_of(at["europe"], "europe", records.Finished)[-1]
        assert (said.reason, said.detail) == ("interrupted", "this island is not in version 3 of the roster")
        rest = [name for name in at if name != "europe"]
        until(lambda: all(load_shared(at[name].root).roster.version == 3 for name in rest), "version 3")
        before = {name: last_step(at[name], name) for name in rest}
        until(lambda: all(last_step(at[name], name) > before[name] + 20 for name in rest), "steps", *running.values())
        for name in rest:
            longest = max(step.step_s for step in records_of(at[name], name, records.StepDone)[5:])
            assert longest < 10.0
