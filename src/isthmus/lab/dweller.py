"""One island of a virtual run: the bundled trainer and the session's engine, on a memory link and a virtual clock."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from isthmus.checkpoint import MemoryStorage, load_latest
from isthmus.clock import VirtualClock
from isthmus.config import LoadedRun
from isthmus.data import WindowStream
from isthmus.errors import IsthmusError
from isthmus.observe import records
from isthmus.observe.journal import RecordWriter
from isthmus.session import Effects, Engine, Training, cut_model, plan_of, run_started
from isthmus.train import Trainer
from isthmus.transport import MemoryLink

NEVER_STEPS = 10**9
"""An island that nothing will crash need not save."""


class DivergedError(IsthmusError):
    """A loss is not finite: there is nothing left to train."""


class Dweller:
    """What of one island outlives its crashes: files, records, its part of the text; and the engine's making.

    Args:
        loaded: The run as this island sees it.
        stream: Its part of the text.
        clock: The world's.
        step_s: Virtual seconds of one step.
        saves: Whether it writes checkpoints, for crashes to come.
        manifest_digest: Names the data beside every score.
    """

    def __init__(
        self,
        loaded: LoadedRun,
        stream: WindowStream,
        clock: VirtualClock,
        *,
        step_s: float,
        saves: bool,
        manifest_digest: str,
    ) -> None:
        self.loaded, self.stream, self.step_s = loaded, stream, step_s
        self.storage = MemoryStorage()
        self.train_cpu_s = 0.0
        self._clock, self._saves, self._manifest_digest = clock, saves, manifest_digest
        self._writer: RecordWriter | None = None
        self._engine: Engine | None = None
        self._trainer: Trainer | None = None
        self._counts = (0, 0)

    @property
    def name(self) -> str:
        """The island's name."""
        return self.loaded.member.name

    def open_records(self, num_bytes: int) -> None:
        """Go on with the first ``num_bytes`` of the records; what a stopped run wrote after its snapshot is gone."""
        path = self.loaded.own_paths.records
        if path.exists():
            os.truncate(path, num_bytes)
        self._writer = RecordWriter(path, self._clock)

    def close(self) -> None:
        """Flush and close the records."""
        if self._writer is not None:
            self._writer.close()

    def start(self, link: MemoryLink, incarnation: int) -> Engine:
        """Start the island's process, from its newest checkpoint if it has one."""
        found = load_latest(self.storage)
        state, resumed_from = (found[0], found[1].name) if found else (None, None)
        engine = self.make(link, incarnation, state)
        precision = self.trainer.precision.name
        facts = {"precision": precision, "manifest_digest": self._manifest_digest}
        self._write(run_started(self.loaded, engine, **facts, resumed_from=resumed_from))
        return engine

    def make(self, link: MemoryLink, incarnation: int, state: Mapping[str, Any] | None) -> Engine:
        """An engine with a model of its own, in a given state or fresh."""
        self._trainer, mixing = Trainer(self.loaded), self.loaded.run.mixing
        self.stream.seek(0)
        cut = cut_model(
            self.trainer.model,
            num_fragments=mixing.fragments,
            peers=tuple(peer.name for peer in self.loaded.roster.peers(self.name)),
            embedding_codec=mixing.embedding_codec,
            mixed_momentum=mixing.momentum == "mixed",
        )
        plan = plan_of(self.loaded, cut)
        if not self._saves:
            plan = dataclasses.replace(plan, save_every_steps=NEVER_STEPS)
        effects = Effects(
            link=link,
            clock=self._clock,
            storage=self.storage,
            sink=self._write,
            codec=mixing.codec,
            layout_lines=cut.layout_lines,
        )
        training = Training(self.trainer.model, self.trainer.optimizer, self.stream)
        self._engine = Engine(plan, cut.slow, training, effects, incarnation, state)
        return self._engine

    def train(self) -> tuple[int, int]:
        """Train one step; its tokens, and the data cursor after it.

        Raises:
            DivergedError: The loss is not finite.
        """
        engine = self.engine
        started_s = time.process_time()
        tokens, loss = self.trainer.step(self.stream, engine.core.progress)
        nats = float(loss)
        self.train_cpu_s += time.process_time() - started_s
        self._record_step(engine, tokens, nats)
        if not math.isfinite(nats):
            raise DivergedError(f"the loss of {self.name} is not finite at step {engine.memory.step + 1}", got=nats)
        return tokens, self.stream.cursor

    @property
    def steps(self) -> int:
        """Steps that its process has trained, or had when it died."""
        return self._counts[0] if self._engine is None else self._engine.memory.step

    @property
    def tokens(self) -> int:
        """Tokens of those steps."""
        return self._counts[1] if self._engine is None else self._engine.memory.tokens

    @property
    def engine(self) -> Engine:
        """The engine of the current start."""
        assert self._engine is not None
        return self._engine

    @property
    def trainer(self) -> Trainer:
        """The trainer of the current start."""
        assert self._trainer is not None
        return self._trainer

    def record(self, make: Callable[..., records.Record], **fields: object) -> None:
        """Write a record of the lab's own, stamped."""
        self._write(make(**self.engine.journal.stamp(), **fields))

    def state_dict(self) -> dict[str, Any]:
        """What outlives a crash of the island, and a stop of the whole run."""
        assert self._writer is not None
        self._writer.flush()
        return {
            "records_bytes": self.loaded.own_paths.records.stat().st_size,
            "storage": self.storage.state_dict(),
            "train_cpu_s": self.train_cpu_s,
            "counts": (self.steps, self.tokens),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave; ``open_records`` has cut the records already."""
        self.storage.load_state_dict(state["storage"])
        self.train_cpu_s, self._counts = state["train_cpu_s"], state["counts"]

    def _record_step(self, engine: Engine, tokens: int, nats: float) -> None:
        stamp = engine.journal.stamp()
        stamp["step"] += 1
        stamp["tokens"] += tokens
        self._write(
            records.StepDone(
                **stamp,
                loss_nats=records.finite(nats),
                step_tokens=tokens,
                step_s=self.step_s,
                sync_s=0.0,
                blocked_s=0.0,
                learning_rate=float(self.trainer.optimizer.param_groups[0]["lr"]),
                progress_tokens=engine.memory.run_tokens + tokens,
            )
        )

    def _write(self, record: records.Record) -> None:
        assert self._writer is not None
        self._writer.write(record)
