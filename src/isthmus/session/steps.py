"""Measures training steps and writes them down, several to a record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from isthmus.clock import Clock
from isthmus.island import Ranks
from isthmus.observe import records
from isthmus.session.engine import Engine
from isthmus.session.trainee import Training


class StepMeter:
    """Sums what steps took until ``every_steps`` of them make a record.

    Args:
        engine: The island's engine.
        clock: Measures.
        training: For the learning rate.
        every_steps: Steps in one record.
        ranks: The island's, over which a loss is the mean.
    """

    def __init__(self, engine: Engine, clock: Clock, training: Training, every_steps: int, ranks: Ranks) -> None:
        self._ranks = ranks
        self._engine, self._clock, self._training, self._every_steps = engine, clock, training, every_steps
        self._last_s = self._clock.now_s()
        self._clear()

    @contextmanager
    def measure(self, *, tokens: int, loss: Tensor | float | None) -> Iterator[None]:
        """Measure what one call of ``Island.step`` takes, and write a record when one is due."""
        started_s = self._clock.now_s()
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss)))
        yield
        ended_s = self._clock.now_s()
        self._sync_s += ended_s - started_s
        self._step_s += ended_s - self._last_s
        self._last_s = ended_s
        self._num_steps += 1
        self._tokens += tokens
        if self._num_steps >= self._every_steps:
            has_loss = bool(self._losses)
            total, told = self._ranks.total(self._loss() if has_loss else 0.0, float(has_loss))
            self._write(total / told if told else float("nan"))

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Count the time inside as waiting for the link or for another island."""
        started_s = self._clock.now_s()
        yield
        self._blocked_s += self._clock.now_s() - started_s

    def flush(self) -> None:
        """Write down the steps that no record holds yet, with this rank's loss: the others may be gone."""
        if self._num_steps:
            self._write(self._loss())

    def _loss(self) -> float:
        return float(torch.stack(self._losses).mean()) if self._losses else float("nan")

    def _write(self, loss: float) -> None:
        self._engine.journal.write(
            records.StepDone(
                **self._engine.journal.stamp(),
                loss_nats=records.finite(loss),
                step_tokens=self._tokens,
                step_s=self._step_s,
                sync_s=self._sync_s,
                blocked_s=self._blocked_s,
                learning_rate=self._training.learning_rate,
                progress_tokens=self._engine.memory.run_tokens,
                num_steps=self._num_steps,
            )
        )
        self._clear()

    def _clear(self) -> None:
        self._losses: list[Tensor] = []
        self._num_steps = self._tokens = 0
        self._step_s = self._sync_s = self._blocked_s = 0.0
