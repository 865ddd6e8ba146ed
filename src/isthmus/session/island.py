"""One island of a run, as a training loop sees it."""

from __future__ import annotations

import operator
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from isthmus.checkpoint import IslandLock, LoadedInfo, Reader, load_latest
from isthmus.clock import SystemClock
from isthmus.errors import CheckpointError, ConfigError
from isthmus.island import Ranks, at_gateway, open_ranks, together
from isthmus.observe import records
from isthmus.session.copies import Place
from isthmus.session.cutting import cut_model
from isthmus.session.engine import Engine
from isthmus.session.frozen import check_state
from isthmus.session.leasing import Lease
from isthmus.session.site import OpenLink, Site, open_tcp_link, read_files
from isthmus.session.steps import StepMeter
from isthmus.session.trainee import Training
from isthmus.session.waiting import Waiter
from isthmus.terms import Goodbye, Phase

_PROVISIONAL = "the weights at the end are provisional: not every fragment was agreed with every island of the run"

_SAVE_S = 10.0
"""How long leaving waits for a checkpoint that is being written, after a failure."""

Result = Literal["done", "interrupted", "failed"]
"""How an island's part of the run ended."""


class Island:
    """One island of a run, joined by ``Island.join`` and left at the end of its ``with`` block.

    Call ``step`` after every optimizer step. Departures, arrivals and checkpoints happen inside it; it does not wait
    for the link or for another island. Leave the loop when ``done``.

    Example:
        >>> with Island.join("runs/mine", name="us-east", model=model, optimizer=optimizer, data=data) as island:
        ...     while not island.done:
        ...         loss = train_one_step()
        ...         island.step(tokens=8192, loss=loss)
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stop_reason: str | None = None
        self._result: Result | None = None
        self._settled = False
        self._removed = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._lock = IslandLock(site.loaded.own_paths.root)
        at_gateway(site.ranks, self._lock.acquire)
        try:
            state, info = _newest_checkpoint(site)
            self._open(state, resumed_from=info.name if info else None)
        except BaseException:
            self._lock.release()
            raise
        for skipped in info.skipped if info else ():
            what = f"checkpoint {skipped.name} is damaged and was passed over: {skipped.reason}"
            self.record(records.Alarm, what=what, severity="error")

    @classmethod
    def join(
        cls,
        run_dir: str | Path,
        *,
        name: str | Lease,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: object | None = None,
        masters: Mapping[str, Tensor] | None = None,
        precision: str = "",
        manifest_digest: str = "",
        open_link: OpenLink = open_tcp_link,
    ) -> Self:
        """Join a run as one of its islands; returns when the island may train.

        Weights, optimizer, data cursor and random numbers go on from the island's newest checkpoint, if it has one. An
        island without one that finds the run under way takes over the run's weights first.

        Where torch's default process group has several ranks, all of them call it, and everything else here, alike:
        each with its model: parameters are DTensors, sharded in any way, or whole and the same at all ranks. Rank 0 is
        the island to others.

        Args:
            run_dir: The run directory, with ``run.toml``, ``roster.toml`` and ``islands/NAME``.
            name: The island's name in the roster, or what holds it (``hold_lease``).
            model: The model, built alike on every island, with fp32 parameters. Changed in place.
            optimizer: Any torch optimizer over the model's parameters. Its state stays on this island.
            data: What the loop reads from; saved and resumed if it has ``state_dict`` and ``load_state_dict``.
            masters: The fp32 masters of low-precision parameters, by parameter name.
            precision: What the island computes in, for the records.
            manifest_digest: Names the data beside every score.
            open_link: Makes the island's link.

        Raises:
            ConfigError: The files of the run are wrong; it lists everything.
            LockError: Another process is this island.
            ShapeError: The model cannot be mixed, or another island's is different; it names the first difference.
            CheckpointError: There are checkpoints, and none can be used.
            LinkError: The link cannot be opened.
        """
        ranks = open_ranks()
        lease = name if isinstance(name, Lease) else Lease(name)
        loaded = read_files(ranks, Path(run_dir), lease.name)
        mixing = loaded.run.mixing
        cut = cut_model(
            model,
            num_fragments=mixing.fragments,
            peers=tuple(peer.name for peer in loaded.roster.peers(lease.name)),
            embedding_codec=mixing.embedding_codec,
            mixed_momentum=mixing.momentum == "mixed",
            masters=masters,
            ranks=ranks,
            place=Place(on_host=loaded.island.island.slow_state == "host"),
        )
        training = Training(model, optimizer, data, ranks, masters)
        site = Site(loaded, cut, training, SystemClock(), open_link, precision, manifest_digest, ranks, lease)
        site.wait_for_window()
        island = cls(site)
        island._get_ready()
        return island

    # -- what a loop needs ---------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine of the current incarnation."""
        return self._engine

    @property
    def ranks(self) -> Ranks:
        """The processes that the island is made of."""
        return self._site.ranks

    @property
    def name(self) -> str:
        """The island's name."""
        return self._engine.plan.name

    @property
    def progress(self) -> float:
        """The run's progress in [0, 1], by tokens of all islands; drive the learning rate with it."""
        return self.engine.core.progress

    @property
    def tokens(self) -> int:
        """Tokens that this island has trained."""
        return self.engine.memory.tokens

    @property
    def run_tokens(self) -> int:
        """Tokens that all islands have trained, as last heard."""
        return self.engine.memory.run_tokens

    @property
    def step_count(self) -> int:
        """Steps that this island has trained."""
        return self.engine.memory.step

    @property
    def done(self) -> bool:
        """Whether the loop should end: the token budget is spent, or a signal asked to leave."""
        return self.progress >= 1.0 or self._stops

    def step(self, *, tokens: int, loss: Tensor | float | None = None) -> None:
        """Count one optimizer step and trade what is due.

        Args:
            tokens: Tokens of this step, over all of the island.
            loss: Its mean loss in nats, for the records, where there are several ranks this one's; a tensor is read
                only when a record is written.
        """
        whole = _whole_tokens(tokens)
        with self._meter.measure(tokens=whole, loss=loss):
            if self._stop_reason is None and (reason := self._site.must_leave) is not None:
                self.request_stop(reason)
            self.engine.trained(tokens=whole, cursor=self._site.training.cursor)
            if self.engine.phase is Phase.JOINING:
                with self._meter.blocked():
                    self._wait_until_ready()
        if self._site.newer is not None and self.engine.phase is Phase.TRAINING and not self.engine.memory.end_plan:
            self._take_roster()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Hold the slow weights, which are the published ones, in the model; the fast ones come back afterwards."""
        with self.engine.slow.swapped_in():
            yield

    def leave_on_signals(self, *signals: signal.Signals) -> None:
        """Let SIGTERM and SIGINT, or the signals given, end the loop at the next step boundary, saved and cleanly.

        A second signal ends the process the usual way.
        """

        def leave(number: int, frame: FrameType | None) -> None:
            self.request_stop(signal.Signals(number).name)
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)

        for each in signals or (signal.SIGTERM, signal.SIGINT):
            self._handlers[each] = signal.signal(each, leave)

    def request_stop(self, reason: str) -> None:
        """End the loop at the next step boundary: ``done`` turns true, and leaving the island saves it."""
        self._stop_reason = reason
        self._site.accord.request_stop()

    def save(self) -> None:
        """Write a checkpoint now, and wait for it; of an island of several ranks, all call it."""
        self.engine.save()

    def state_dict(self) -> dict[str, Any]:
        """All of the island's state, for a loop that keeps its own checkpoints; store it before the next step.

        All ranks call it; where there are several, each has ``Part``s of tensors in it, and gets back its own.
        """
        return self.engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state; partners see a restart, and every edge is made to agree again.

        Raises:
            CheckpointError: It is of another run.
            ShapeError: It is of another model.
        """
        check_state(state, self.engine.plan.run)
        self._meter.flush()
        self.engine.effects.link.close(timeout_s=1.0)
        self._open(state, resumed_from="a state of the training loop's own")
        self._wait_until_ready()

    def record(self, make: Callable[..., records.Record], **fields: object) -> None:
        """Write a record of the loop's own, such as ``records.Evaluation``, stamped with time, step and tokens."""
        self.engine.journal.write(make(**self.engine.journal.stamp(), **fields))

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.close("failed", detail="" if error is None else f"{kind.__name__}: {error}")
        elif self._result is None:
            self.finish()

    def settle(self) -> None:
        """Hold the run's last meetings; the model then holds the slow weights, the same at both islands of a pair.

        Goes on as long as meetings are completed, and waits at most ``finish.wait_s`` for the next one. What was not
        agreed with everybody by then is ``provisional``. ``finish`` calls it; call it yourself to evaluate or export
        the joint model before leaving. Idempotent.
        """
        if self._settled:
            return
        self._settled = True
        self.save()
        self.engine.finish()
        self._waiter.until(lambda: self.engine.phase is Phase.DONE or self._stops, "the last meetings of the run")
        self.engine.slow.take_in()
        self.save()
        if self.provisional:
            self.record(records.Alarm, what=_PROVISIONAL, severity="warning")

    def finish(self) -> None:
        """End the island's part and leave: with the run's last meetings if its token budget is spent, else saved."""
        if self.progress >= 1.0:
            self.settle()
            self.engine.slow.take_in()
            others_s = self._site.loaded.island.finish.wait_s
            self._waiter.until(
                lambda: not self.engine.core.waits_for or self._stops,
                "the others to end",
                at_most_s=others_s,
            )
            self.close("done")
        else:
            self._leave()

    def _leave(self) -> None:
        """Publish what there is, save, and leave once it is sent, or when the time for that is over."""
        started_s, grace_s = self.engine.now_s(), self._site.loaded.island.leave.grace_s
        if self._removed:  # nobody takes anything from it any more
            grace_s = 0.0
        else:
            self.engine.leave()
        self.save()
        self._waiter.until(
            lambda: self.engine.has_sent,
            "its last publications to be sent",
            at_most_s=max(0.0, started_s + grace_s - self.engine.now_s()),
        )
        asked = "another rank was asked to stop" if self._stops else "the loop ended before the run's token budget"
        self.close("interrupted", detail=self._stop_reason or asked)

    @property
    def provisional(self) -> bool:
        """Whether the weights at the end are not, bit for bit, those of all islands of the run."""
        return self.engine.core.provisional

    @property
    def digest(self) -> str:
        """SHA-256 of the slow weights in hex; after ``finish`` the same at all islands unless ``provisional``."""
        return self.engine.slow.digest()

    def close(self, result: Result, *, detail: str = "") -> None:
        """Leave without the run's last meetings and without saving; ``finish`` calls it. Idempotent."""
        if self._result is not None:
            return
        self._result = result
        self._meter.flush()
        wait_s = self._site.loaded.island.checkpoint.wait_s
        self.engine.finish_saves(min(_SAVE_S, wait_s) if result == "failed" else wait_s)
        link = self.engine.effects.link
        for peer in self.engine.core.company.living:
            link.send(peer, Goodbye(detail or result))
        link.close(timeout_s=5.0)
        done = result == "done"
        provisional, digest = done and self.provisional, self.digest if done else ""
        self.record(records.Finished, reason=result, provisional=provisional, joint_digest=digest, detail=detail)
        self._site.close()
        self._lock.release()
        for each, handler in self._handlers.items():
            signal.signal(each, handler)
        self._handlers.clear()

    def _open(self, state: Mapping[str, Any] | None, *, resumed_from: str | None, waits: bool = True) -> None:
        site = self._site
        self._resumed = resumed_from is not None
        self._engine = site.open(state, resumed_from=resumed_from, waits=waits)
        self._waiter = Waiter(self._engine)
        every_steps = site.loaded.island.records.every_steps
        self._meter = StepMeter(self._engine, site.clock, site.training, every_steps, site.ranks)

    def _take_roster(self) -> None:
        """Go by a newer roster: with a new link, and what partners see is a restart; nothing is waited for."""
        remains, version = self._site.take_roster(), self._site.loaded.roster.version
        if (wrong := self._site.store_roster()) is not None:
            self.record(records.Alarm, what=wrong, severity="error")
        if not remains:
            self._removed = True
            self.request_stop(f"this island is not in version {version} of the roster")
            return
        self._meter.flush()
        state = self.engine.state_dict()
        self.engine.effects.link.close(timeout_s=0.0)
        self._open(state, resumed_from=f"where it was, by version {version} of the roster", waits=False)
        self._wait_until_ready()

    def _get_ready(self) -> None:
        """Wait as ``join`` does; leave if that fails."""
        try:
            self._wait_until_ready()
        except BaseException as error:
            self.close("failed", detail=str(error))
            raise

    def _wait_until_ready(self) -> None:
        self._waiter.until_ready(lambda: self._stops, resumed=self._resumed)

    @property
    def _stops(self) -> bool:
        """Whether this or another rank of the island was asked to stop, as all ranks know by now."""
        return self._site.accord.stops


def _newest_checkpoint(site: Site) -> tuple[Mapping[str, Any] | None, LoadedInfo | None]:
    ranks, folder = site.ranks, site.loaded.own_paths.checkpoints
    reader = Reader(ranks.rank, ranks.size, partial(together, ranks), lambda own: ranks.collect(own)[0])
    try:
        found = load_latest(site.storage, reader)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read", got=error, mend="Give the island access to it.") from error
    return (None, None) if found is None else found


def _whole_tokens(tokens: int) -> int:
    """A step's tokens as an int, whatever kind of integer they are."""
    try:
        whole = operator.index(tokens)
    except TypeError:
        whole = -1
    if whole < 0:
        raise ConfigError("a step's tokens cannot be counted", got=repr(tokens), wanted="a whole number, 0 or more")
    return whole
