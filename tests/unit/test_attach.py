from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import isthmus
from isthmus.session import Attachment
from small_runs import STEP_TOKENS, Loop, in_memory, write_small_run


def attached(
    run_dir: Path, loop: Loop, tokens_per_step: int | Callable[[], int] = STEP_TOKENS, **changes: object
) -> Attachment:
    """A lone island without a link process."""
    paths = write_small_run(run_dir / "run", "solo", **changes)
    island = loop.join(paths, "solo", open_link=in_memory(paths))
    return Attachment(island, loop.optimizer, tokens_per_step)


def test_attach_joins_a_run_by_its_directory_and_leaves_it_saved(tmp_path: Path):
    paths, loop = write_small_run(tmp_path / "run", "solo"), Loop()
    joined = {"name": "solo", "tokens_per_step": STEP_TOKENS, "data": loop}
    with isthmus.attach(loop.model, loop.optimizer, str(paths.root), **joined) as attachment:
        for _ in range(3):
            loop.train_step()
        assert attachment.island.step_count == 3
        weights = loop.weights()
    again = Loop()
    with isthmus.attach(again.model, again.optimizer, str(paths.root), **{**joined, "data": again}) as attachment:
        assert (attachment.island.step_count, again.cursor) == (3, 3)
        assert torch.equal(again.weights(), weights)


def test_gradient_accumulation_counts_once_per_optimizer_step(tmp_path: Path):
    loop = Loop()
    with attached(tmp_path, loop) as attachment:
        for _ in range(3):
            loop.optimizer.zero_grad()
            for _ in range(4):
                loop.backward()
            loop.optimizer.step()
        assert attachment.island.step_count == 3
        assert attachment.island.tokens == 3 * STEP_TOKENS


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_the_made_up_step_of_a_distributed_checkpoint_is_not_counted(tmp_path: Path, kind: type[torch.optim.Optimizer]):
    loop = Loop()
    loop.optimizer = kind(loop.model.parameters(), lr=0.01)
    with attached(tmp_path, loop) as attachment:
        before = loop.weights()
        stored = get_optimizer_state_dict(loop.model, loop.optimizer)
        assert attachment.island.step_count == 0
        assert torch.equal(loop.weights(), before)
        loop.train_step()
        assert attachment.island.step_count == 1
        set_optimizer_state_dict(loop.model, loop.optimizer, stored)
        assert attachment.island.step_count == 1
        loop.train_step()
        assert attachment.island.step_count == 2


def test_the_made_up_step_on_resume_is_not_counted_with_a_tensor_learning_rate(tmp_path: Path):
    loop = Loop()
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=torch.tensor(0.01), foreach=False)
    with attached(tmp_path, loop) as attachment:
        get_optimizer_state_dict(loop.model, loop.optimizer)
        assert attachment.island.step_count == 0
        loop.train_step()
        assert attachment.island.step_count == 1


def test_a_first_step_at_learning_rate_zero_of_a_warm_up_is_counted(tmp_path: Path):
    loop = Loop(learning_rate=0.0)
    with attached(tmp_path, loop) as attachment:
        loop.train_step()
        assert attachment.island.step_count == 1


def test_a_step_that_a_gradient_scaler_skips_is_not_counted(tmp_path: Path):
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with attached(tmp_path, loop) as attachment:
        for poison in (False, True, False):
            loop.optimizer.zero_grad()
            loop.backward()
            for parameter in loop.model.parameters():
                parameter.grad = scaler.scale(parameter.grad)
            if poison:
                next(loop.model.parameters()).grad.fill_(float("inf"))
            scaler.step(loop.optimizer)
            scaler.update()
        assert attachment.island.step_count == 2


def test_tokens_per_step_may_be_a_function_asked_after_each_step(tmp_path: Path):
    loop, sizes = Loop(), iter((7, 11, 13))
    with attached(tmp_path, loop, lambda: next(sizes)) as attachment:
        for counted in (7, 18, 31):
            loop.train_step()
            assert attachment.island.tokens == counted


def test_a_closure_that_the_optimizer_calls_is_one_step(tmp_path: Path):
    loop = Loop()

    def closure() -> torch.Tensor:
        loop.optimizer.zero_grad()
        return loop.backward()

    with attached(tmp_path, loop) as attachment:
        loop.optimizer.step(closure)
        assert attachment.island.step_count == 1


def test_steps_after_the_budget_are_the_islands_alone_and_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    loop = Loop()
    with (
        caplog.at_level(logging.INFO, logger="isthmus"),
        attached(tmp_path, loop, tokens=3 * STEP_TOKENS) as attachment,
    ):
        for _ in range(3):
            assert not attachment.done
            loop.train_step()
        assert attachment.done
        loop.train_step()
        assert attachment.island.step_count == 3
    assert sum("the run has ended" in message for message in caplog.messages) == 1
    assert not attachment.island.provisional


def test_after_detach_steps_are_not_counted(tmp_path: Path):
    loop = Loop()
    with attached(tmp_path, loop) as attachment:
        loop.train_step()
        attachment.detach()
        loop.train_step()
        assert attachment.island.step_count == 1


def test_parameters_and_their_storage_are_never_rebound(tmp_path: Path):
    loop = Loop()
    before = [(parameter, parameter.data_ptr()) for parameter in loop.model.parameters()]
    with attached(tmp_path, loop, tokens=20 * STEP_TOKENS) as attachment:
        while not attachment.done:
            loop.train_step()
    after = [(parameter, parameter.data_ptr()) for parameter in loop.model.parameters()]
    assert all(old is new and at == still for (old, at), (new, still) in zip(before, after, strict=True))


def test_an_error_in_the_loop_leaves_the_island_and_its_hook_behind(tmp_path: Path):
    loop = Loop()
    attachment = attached(tmp_path, loop)
    loop.train_step()
    with pytest.raises(ZeroDivisionError), attachment:
        raise ZeroDivisionError
    loop.train_step()
    assert attachment.island.step_count == 1
