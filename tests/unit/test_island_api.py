from __future__ import annotations

import copy
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from isthmus.cli.main import main
from isthmus.config import LoadedRun, RunPaths
from isthmus.errors import CheckpointError, ConfigError, LinkError, LockError, ShapeError
from isthmus.observe import records
from isthmus.session import Island
from isthmus.session.site import open_tcp_link
from isthmus.transport import TcpLink
from isthmus.transport.link import Link
from small_runs import (
    STEP_TOKENS,
    Loop,
    alarms,
    change_file,
    in_memory,
    records_of,
    train,
    until,
    write_small_run,
)


@pytest.fixture
def solo(tmp_path: Path) -> RunPaths:
    return write_small_run(tmp_path / "run", "solo")


@pytest.fixture
def pair(tmp_path: Path) -> RunPaths:
    return write_small_run(tmp_path / "run", "us-east", "asia", tokens=10**6)


@pytest.fixture
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Pair:
    """Two islands in this process that take turns, by default over memory links."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths, self.open_link = paths, in_memory(paths)
        self.loops = {name: Loop(seed) for seed, name in enumerate(("us-east", "asia"))}
        self.islands: dict[str, Island] = {}
        for name in self.loops:
            self.join(name)

    def join(self, name: str) -> Island:
        self.islands[name] = self.loops[name].join(self.paths, name, open_link=self.open_link)
        return self.islands[name]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for name, loop in self.loops.items():
                train(self.islands[name], loop)

    def end(self) -> None:
        """Both ends of the last meetings are in this process: neither may wait before the other has begun.

        As in processes of their own, one that is done stays in reach until the other is too.
        """
        engines = [island.engine for island in self.islands.values()]
        for engine in engines:
            engine.finish()
        until(lambda: [engine.pump() for engine in engines] and all(e.phase == "done" for e in engines), "the end")


def meetings(paths: RunPaths, name: str) -> int:
    return len(records_of(paths, name, records.Meeting))


# -- what a loop needs -------------------------------------------------------------------------------------------------


def test_evaluating_holds_the_slow_weights_and_brings_the_fast_ones_back(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 10)
        fast = loop.weights()
        slow = {name: tensor.clone() for name, tensor in island.engine.slow.slow_weights().items()}
        with island.evaluating():
            held = dict(loop.model.named_parameters())
            assert all(torch.equal(held[name], tensor) for name, tensor in slow.items())
            assert not torch.equal(loop.weights(), fast)
        assert torch.equal(loop.weights(), fast)


def test_the_fast_weights_come_back_after_an_evaluation_that_fails(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 10)
        fast = loop.weights()
        with pytest.raises(ZeroDivisionError), island.evaluating():
            raise ZeroDivisionError
        assert torch.equal(loop.weights(), fast)


def test_progress_follows_the_tokens_and_ends_the_loop(tmp_path: Path):
    paths, loop = write_small_run(tmp_path / "run", "solo", tokens=4 * STEP_TOKENS), Loop()
    with loop.join(paths, "solo", open_link=in_memory(paths)) as island:
        for share in (0.25, 0.5, 0.75, 1.0):
            assert not island.done
            train(island, loop)
            assert island.progress == share
        assert island.done
    (finished,) = records_of(paths, "solo", records.Finished)
    assert (finished.reason, finished.provisional, finished.joint_digest) == ("done", False, island.digest)
    assert not island.provisional


def test_the_run_has_the_progress_of_all_islands(pair: RunPaths):
    both = Pair(pair)
    both.train(16)
    for island in both.islands.values():
        assert island.tokens == 16 * STEP_TOKENS
        assert island.run_tokens >= (16 + 12) * STEP_TOKENS  # others say theirs at departures


def test_a_request_to_stop_ends_the_loop_saved_and_the_next_start_goes_on(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 5)
        assert not island.done
        island.request_stop("maintenance")
        assert island.done
    (finished,) = records_of(solo, "solo", records.Finished)
    assert (finished.reason, finished.detail, finished.joint_digest) == ("interrupted", "maintenance", "")
    again = Loop()
    with again.join(solo, "solo", open_link=in_memory(solo)) as island:
        assert (island.step_count, island.tokens, again.cursor) == (5, 5 * STEP_TOKENS, 5)
        assert torch.equal(again.weights(), loop.weights())
    assert [joined.how for joined in records_of(solo, "solo", records.Joined)] == ["fresh", "checkpoint"]


def test_leaving_and_resuming_equals_never_having_left(tmp_path: Path):
    whole, parts = (write_small_run(tmp_path / name, "solo") for name in ("whole", "parts"))
    loop = Loop()
    with loop.join(whole, "solo", open_link=in_memory(whole)) as island:
        train(island, loop, 30)
        wanted = loop.weights()
    for steps in (7, 12, 11):
        loop = Loop()
        with loop.join(parts, "solo", open_link=in_memory(parts)) as island:
            train(island, loop, steps)
    assert torch.equal(loop.weights(), wanted)


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_the_loop_and_a_second_one_is_the_usual(solo: RunPaths, number: signal.Signals):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        island.leave_on_signals()
        train(island, loop)
        os.kill(os.getpid(), number)
        assert island.done
        usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        assert signal.getsignal(number) == usual[number]
    (finished,) = records_of(solo, "solo", records.Finished)
    assert (finished.reason, finished.detail) == ("interrupted", number.name)


def test_an_error_in_the_loop_is_written_down_and_nothing_is_saved(solo: RunPaths):
    loop = Loop()
    island = loop.join(solo, "solo", open_link=in_memory(solo))
    train(island, loop, 3)
    with pytest.raises(ZeroDivisionError), island:
        raise ZeroDivisionError("by hand")
    (finished,) = records_of(solo, "solo", records.Finished)
    assert (finished.reason, finished.detail) == ("failed", "ZeroDivisionError: by hand")
    assert not records_of(solo, "solo", records.Checkpoint)
    with Loop().join(solo, "solo", open_link=in_memory(solo)) as again:
        assert again.step_count == 0


def test_records_of_the_loops_own_are_stamped(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 2)
        island.record(records.Note, text="half way")
    (note,) = records_of(solo, "solo", records.Note)
    assert (note.island, note.step, note.tokens, note.text) == ("solo", 2, 2 * STEP_TOKENS, "half way")


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_state_brings_a_live_island_back_to_where_it_was(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 12)
        state = copy.deepcopy(island.state_dict())
        then = loop.weights()
        train(island, loop, 12)
        later = loop.weights()
        island.load_state_dict(state)
        assert (island.step_count, loop.cursor) == (12, 12)
        assert torch.equal(loop.weights(), then)
        train(island, loop, 12)
        assert torch.equal(loop.weights(), later)
    incarnations = [started.incarnation for started in records_of(solo, "solo", records.RunStarted)]
    assert incarnations[0] < incarnations[1]


@pytest.mark.slow
def test_an_island_of_a_pair_that_goes_back_meets_its_partner_again_and_both_end_as_one(pair: RunPaths):
    both = Pair(pair)
    both.train(20)
    state = copy.deepcopy(both.islands["asia"].state_dict())
    both.train(20)
    both.islands["asia"].load_state_dict(state)
    met = meetings(pair, "us-east")
    assert both.islands["asia"].step_count == 20
    until(lambda: both.train(1) or meetings(pair, "us-east") > met, "a meeting")
    both.end()
    first, second = both.islands.values()
    assert first.digest == second.digest
    assert not first.provisional


def test_a_state_of_another_model_is_refused_with_the_first_difference(tmp_path: Path):
    one, other = (write_small_run(tmp_path / name, "solo") for name in ("one", "other"))
    loop, wide = Loop(), Loop(width=7)
    with loop.join(one, "solo", open_link=in_memory(one)) as island:
        state = {**copy.deepcopy(island.state_dict()), "run": ""}
    with wide.join(other, "solo", open_link=in_memory(other)) as island:
        with pytest.raises(CheckpointError, match="belongs to another run"):
            island.load_state_dict(state)
        state["run"] = island.engine.plan.run
        with pytest.raises(ShapeError, match=r"differs in the slow weights of '0\.bias'"):
            island.load_state_dict(state)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def two_checkpoints(paths: RunPaths) -> list[Path]:
    loop = Loop()
    with loop.join(paths, "solo", open_link=in_memory(paths)) as island:
        train(island, loop, 3)
        island.save()
        train(island, loop, 3)
    return sorted(paths.island("solo").checkpoints.glob("*.safetensors"))


def test_a_damaged_checkpoint_is_passed_over_with_an_alarm(solo: RunPaths):
    _, newest = two_checkpoints(solo)
    spoil(newest)
    with Loop().join(solo, "solo", open_link=in_memory(solo)) as island:
        assert island.step_count == 3
        island.request_stop("seen enough")
    assert [what for what in alarms(solo, "solo") if "is damaged and was passed over" in what and newest.stem in what]


def test_checkpoints_that_are_all_damaged_are_an_error_and_the_island_can_be_locked_again(solo: RunPaths):
    for path in two_checkpoints(solo):
        spoil(path)
    for _ in range(2):
        with pytest.raises(CheckpointError):
            Loop().join(solo, "solo", open_link=in_memory(solo))


def test_a_checkpoint_of_a_run_that_was_changed_is_refused(solo: RunPaths, capsys: pytest.CaptureFixture[str]):
    two_checkpoints(solo)
    change_file(solo.run, ("flight_steps = 2", "flight_steps = 3"))
    with pytest.raises(ConfigError, match="roster sign"):
        Loop().join(solo, "solo", open_link=in_memory(solo))
    assert main(["roster", "sign", str(solo.root)]) == 0
    with pytest.raises(CheckpointError, match="belongs to another run"):
        Loop().join(solo, "solo", open_link=in_memory(solo))


def test_a_full_disk_is_an_alarm_the_old_checkpoint_stays_and_training_goes_on(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        train(island, loop, 2)
        island.save()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
        try:
            train(island, loop, 3)
            island.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        train(island, loop, 3)
        assert island.step_count == 8
        assert [what for what in alarms(solo, "solo") if "no checkpoint was written" in what]
        saved = [record.step for record in records_of(solo, "solo", records.Checkpoint)]
        assert saved == [2]
    steps = [record.step for record in records_of(solo, "solo", records.StepDone)]
    assert steps == list(range(1, 9))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_second_process_with_the_same_identity_is_refused_and_the_first_one_named(solo: RunPaths):
    loop = Loop()
    with loop.join(solo, "solo", open_link=in_memory(solo)) as island:
        with pytest.raises(LockError, match=f"process {os.getpid()} on"):
            Loop().join(solo, "solo", open_link=in_memory(solo))
        train(island, loop)
        assert island.step_count == 1


def test_an_unknown_island_and_a_missing_run_are_refused(solo: RunPaths, tmp_path: Path):
    with pytest.raises(ConfigError, match="Did you mean solo"):
        Loop().join(solo, "sola")
    with pytest.raises(ConfigError, match="isthmus init"):
        Island.join(tmp_path / "nowhere", name="solo", model=Loop().model, optimizer=Loop().optimizer)


def test_a_bf16_model_without_masters_is_refused_with_the_reason(solo: RunPaths):
    loop = Loop()
    loop.model.to(torch.bfloat16)
    with pytest.raises(ShapeError, match="masters="):
        loop.join(solo, "solo", open_link=in_memory(solo))
    assert not list(solo.island("solo").root.glob("incarnation*"))


def test_a_weight_that_is_no_number_is_not_published_and_training_goes_on(pair: RunPaths):
    both = Pair(pair)
    both.train(16)
    loop = both.loops["asia"]
    with torch.no_grad():
        next(loop.model.parameters())[0, 0] = float("nan")
    both.train(24)
    assert [what for what in alarms(pair, "asia") if "a fast weight is not finite" in what]
    for island in both.islands.values():
        assert island.step_count == 40
        assert all(tensor.isfinite().all() for tensor in island.engine.slow.slow_weights().values())
    healthy = both.loops["us-east"].weights()
    assert healthy.isfinite().all()


def test_a_model_of_another_shape_is_refused_by_name_and_the_healthy_island_goes_on(pair: RunPaths):
    open_link, loop = in_memory(pair), Loop()
    with loop.join(pair, "us-east", open_link=open_link) as island:
        train(island, loop, 2)
        change_file(pair.island("asia").config, ("[join]\n", "[join]\n# patient\n"), ("wait_s = 0.0", "wait_s = 20.0"))
        with pytest.raises(ShapeError, match=r"another model; got .*0\.bias"):
            join_beside(island, loop, Loop(width=7), pair, open_link)
        train(island, loop, 2)
        assert island.step_count > 4
        island.request_stop("seen enough")
    assert [what for what in alarms(pair, "us-east") if "asia trains another model" in what and "0.bias" in what]


def join_beside(island: Island, loop: Loop, other: Loop, paths: RunPaths, open_link: object) -> None:
    """Join as asia, while us-east trains a step whenever asia waits."""

    class Turns:
        def __init__(self, link: Link) -> None:
            self._link = link

        def __getattr__(self, name: str) -> object:
            return getattr(self._link, name)

        def wait(self, timeout_s: float) -> None:
            train(island, loop)

    other.join(paths, "asia", open_link=lambda loaded, incarnation: Turns(open_link(loaded, incarnation)))


def test_a_port_that_is_taken_is_an_error_that_names_the_address(solo: RunPaths):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = solo.island("solo").config.read_text()
        listen = next(line for line in text.splitlines() if line.startswith("listen ="))
        change_file(solo.island("solo").config, (listen, f'listen = "{address}"'))
        with pytest.raises(LinkError, match=address):
            Loop().join(solo, "solo")
    assert not records_of(solo, "solo", records.RunStarted)


@pytest.mark.slow
def test_training_goes_on_when_the_link_process_dies_once_and_again(pair: RunPaths):
    links: list[TcpLink] = []

    def open_link(loaded: LoadedRun, incarnation: int) -> Link:
        links.append(open_tcp_link(loaded, incarnation))
        return links[-1]

    def steps_until(what: str, island: Island, loop: Loop) -> None:
        until(lambda: train(island, loop) or [text for text in alarms(pair, "us-east") if what in text], what)

    loop = Loop()
    with loop.join(pair, "us-east", open_link=open_link) as island:
        train(island, loop, 3)
        (link,) = links
        first = link.process_id
        os.kill(first, signal.SIGKILL)
        steps_until("the link process died", island, loop)
        assert link.process_id != first
        os.kill(link.process_id, signal.SIGKILL)
        steps_until("the link is lost for good", island, loop)
        before = island.step_count
        train(island, loop, 20)
        assert island.step_count == before + 20
        island.request_stop("seen enough")
    (finished,) = records_of(pair, "us-east", records.Finished)
    assert finished.reason == "interrupted"
