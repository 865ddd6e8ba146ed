"""Real islands whose names are leased."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.config import RunPaths
from isthmus.leases import write_leases
from isthmus.observe import records
from isthmus.transport.here import host_name
from isthmus.transport.ports import free_address
from lease_servers import Servers, serving
from small_runs import change_file, children, last_step, records_of, trainer, until, write_text_run

pytestmark = pytest.mark.slow


@pytest.fixture
def paths(tmp_path: Path, request: pytest.FixtureRequest) -> RunPaths:
    """A run whose second island is leased, for two seconds at a time."""
    paths = write_text_run(
        tmp_path / "run", "us-east", "spot-0", tokens=getattr(request, "param", 60_000), island={"batch_size": 4}
    )
    write_leases(paths.root, ("spot-*",), (address := free_address(),))
    change_file(paths.leases, ("lease_s = 30.0", "lease_s = 2.0"))
    (paths.root / "address").write_text(address)
    return paths


@pytest.fixture(autouse=True)
def servers(paths: RunPaths) -> Iterator[Servers]:
    with serving(paths.leases_dir, [(paths.root / "address").read_text()]) as servers:
        yield servers


def leaser(paths: RunPaths, log: str, ranks: int = 1) -> tuple[Path, ...]:
    """The bundled trainer as whichever island is free."""
    _, *command = trainer(paths, "spot-0", ranks)
    at = command.index("--island")
    return (paths.root / log, *command[:at], "--lease", *command[at + 2 :])


def machine(paths: RunPaths, name: str) -> RunPaths:
    """The run directory as it is given to another machine."""
    root = paths.root.parent / name
    shutil.copytree(paths.root, root, ignore=shutil.ignore_patterns("data-*", "held"))
    return RunPaths(root)


@pytest.mark.parametrize("paths", [10_000_000], indirect=True)
def test_a_spare_takes_the_island_of_a_machine_that_hangs_which_then_leaves(paths: RunPaths):
    spare_paths = machine(paths, "spare")
    free = free_address().rpartition(":")[2]
    own = spare_paths.island("spot-0").config
    listens = next(line for line in own.read_text().splitlines() if line.startswith("listen"))
    change_file(own, (listens, f'listen = "127.0.0.1:{free}"'))
    with children() as start:
        us_east, first = start(*trainer(paths, "us-east")), start(*leaser(paths, "first.log"))
        until(lambda: last_step(paths, "spot-0") > 10, "steps", us_east, first)
        spare = start(*leaser(spare_paths, "spare.log"))
        until(lambda: "waiting for an island to be free" in spare.said(), "the spare", us_east, first, spare)
        first.signal(signal.SIGSTOP)
        until(lambda: last_step(spare_paths, "spot-0") > 5, "steps of the spare", us_east, spare)
        first.signal(signal.SIGCONT)
        first.ends_well()
        said = records_of(paths, "spot-0", records.Finished)[-1]
        assert (said.reason, said.detail) == (
            "interrupted",
            f"its lease ran out, and {host_name()} has taken the name spot-0",
        )
        until(lambda: records_of(spare_paths, "spot-0", records.Meeting), "a meeting of the spare", us_east, spare)
        for child in (us_east, spare):
            child.signal(signal.SIGTERM)
            child.ends_well()
    assert records_of(spare_paths, "spot-0", records.Joined)[0].how == "adopted"


def test_an_island_of_two_ranks_is_leased_by_the_first_and_given_back_at_the_end(paths: RunPaths, capsys):
    change_file(paths.island("spot-0").config, ("fsdp = 1", "fsdp = 2"))
    with children() as start:
        us_east, leased = start(*trainer(paths, "us-east")), start(*leaser(paths, "leased.log", 2))
        until(lambda: last_step(paths, "spot-0") > 0, "steps", us_east, leased)
        assert main(["leases", "show", str(paths.root)]) == 0
        assert "spot-0  " in (said := capsys.readouterr().out) and "free" not in said
        for child in (us_east, leased):
            child.ends_well()
    assert main(["leases", "show", str(paths.root)]) == 0
    assert capsys.readouterr().out == "spot-0  free\n"
    assert records_of(paths, "spot-0", records.Finished)[-1].reason == "done"


@pytest.mark.parametrize("paths", [10_000_000], indirect=True)
def test_lease_servers_that_are_away_delay_nobody_who_has_a_name(paths: RunPaths, servers: Servers):
    with children() as start:
        us_east, leased = start(*trainer(paths, "us-east")), start(*leaser(paths, "leased.log"))
        until(lambda: last_step(paths, "spot-0") > 5, "steps", us_east, leased)
        servers.kill()
        until(lambda: records_of(paths, "spot-0", records.Alarm), "an alarm", us_east, leased)
        before = last_step(paths, "spot-0")
        until(lambda: last_step(paths, "spot-0") > before + 20, "steps without them", us_east, leased)
        for child in (us_east, leased):
            child.signal(signal.SIGTERM)
            child.ends_well()
    assert "cannot be renewed" in records_of(paths, "spot-0", records.Alarm)[0].what
    assert records_of(paths, "spot-0", records.Finished)[-1].detail == "SIGTERM"
