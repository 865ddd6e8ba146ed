"""The bundled trainer: one island's whole run, on the same public session as any other loop."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from isthmus.checkpoint import export_safetensors, file_order
from isthmus.config import BYTE_TOKENS, DEFAULT_SOURCES, LoadedRun, load_run, resolve_model
from isthmus.data import (
    HeldOut,
    Manifest,
    Stream,
    TrainSpec,
    WindowStream,
    describe,
    describe_manifest,
    load_tokenizer,
    open_held_out,
    open_train,
)
from isthmus.errors import ConfigError
from isthmus.island import (
    Layout,
    Parallel,
    Precision,
    WholeState,
    compile_blocks,
    is_gateway,
    native_bf16,
    open_collectives,
    recompute_activations,
    start_ranks,
)
from isthmus.model import ModelConfig, build_model, next_token_loss
from isthmus.observe import records
from isthmus.observe.summary import write_summary
from isthmus.optim import build_optimizer
from isthmus.schedule import learning_rate_scale
from isthmus.scoring import NamedScore, Scorer, held_out_specs
from isthmus.session import Island, Lease, hold_lease, open_tcp_link

log = logging.getLogger("isthmus")

QUICK_SHARE = 8
"""Evaluations on the way use this part of the bytes that the last one uses."""


@dataclasses.dataclass(frozen=True)
class Drill:
    """What a start is to do otherwise than its files say, so that many islands can be tried on one machine.

    Attributes:
        step_s: A step takes at least so many seconds; 0 for as fast as it can.
        dial: Where peers are found.
    """

    step_s: float = 0.0
    dial: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


NO_DRILL = Drill()


def run_island(run_dir: Path, name: str | None, drill: Drill = NO_DRILL) -> int:
    """Train as one island of a run until its token budget is spent, then evaluate and export the joint model.

    Args:
        run_dir: The run directory.
        name: The island; None for any that is free of those that are leased.
        drill: What to do otherwise than the files say.

    Returns:
        The exit code: 0 when done or when asked to leave.
    """
    with hold_lease(run_dir, name) as lease:
        loaded = load_run(run_dir, lease.name)
        with start_ranks(loaded.island.island.device):
            return _run_island(run_dir, lease, loaded, drill)


def _run_island(run_dir: Path, lease: Lease, loaded: LoadedRun, drill: Drill) -> int:
    name = loaded.member.name
    own, run = loaded.island.island, loaded.run
    if own.threads is not None:
        torch.set_num_threads(own.threads)
    torch.manual_seed(run.run.seed + own.seed_offset)
    trainer, texts = Trainer(loaded), Texts(loaded)
    if is_gateway():
        for line in describe_manifest(texts.manifest):
            log.info("%s", line)
        log.info("%s trains on %s in %s", name, trainer.device, trainer.precision.name)

    with Island.join(
        run_dir,
        name=lease,
        model=trainer.layout.model,
        optimizer=trainer.optimizer,
        data=texts.stream,
        precision=trainer.precision.name,
        manifest_digest=texts.manifest.digest,
        open_link=partial(open_tcp_link, dial=drill.dial),
    ) as island:
        island.leave_on_signals()
        pace = Pace(drill.step_s)
        next_evaluation = island.run_tokens + run.eval.every_tokens
        while not island.done:
            tokens, loss = trainer.step(texts.stream, island.progress)
            pace.wait()
            island.step(tokens=tokens, loss=loss)
            if run.eval.every_tokens and island.run_tokens >= next_evaluation and not island.done:
                next_evaluation = island.run_tokens + run.eval.every_tokens
                with island.evaluating():
                    record_scores(island, texts, texts.quick.score(trainer.model), final=False)
        if island.progress >= 1.0:
            island.settle()
            record_scores(island, texts, texts.whole.score(trainer.model), final=True)
            export(loaded, island, trainer, texts.manifest)
    if is_gateway():
        write_summary(run_dir)
    return 0


class Pace:
    """Lets steps take a time, counted from when the last one ended, or longer.

    Args:
        step_s: Seconds; 0 for none.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_s = time.monotonic() + step_s

    def wait(self) -> None:
        """Wait until the time of a step is over; time that was lost before is not caught up on."""
        if self._step_s:
            time.sleep(max(0.0, self._due_s - time.monotonic()))
            self._due_s = time.monotonic() + self._step_s


class Trainer:
    """What an island trains with, as the files of the run and its own say: model, optimizer, device, precision."""

    def __init__(self, loaded: LoadedRun) -> None:
        own, train = loaded.island.island, loaded.run.train
        self.loaded = loaded
        self.device = pick_device(own.device)
        self.config: ModelConfig = resolve_model(loaded.run.model)
        self.model = build_model(self.config, loaded.run.run.seed).to(self.device)
        parallel = Parallel(**loaded.island.parallel.model_dump())
        self.precision = Precision(pick_precision(own.precision, self.device))
        if self.precision.name == "bf16-weights" and parallel.fsdp > 1:
            raise ConfigError(
                "the precision bf16-weights cannot be computed on weights that FSDP divides",
                got=f"parallel.fsdp = {parallel.fsdp}",
                mend='Set island.precision = "bf16-autocast", or parallel.fsdp = 1.',
            )
        if own.recompute:
            recompute_activations(self.model)
        self.layout = Layout(self.model, parallel, batch_size=own.batch_size, parts=own.parts)
        if own.compile:
            compile_blocks(self.model)
        self.optimizer = build_optimizer(
            self.model,
            own.optimizer or train.optimizer,
            learning_rate=base_learning_rate(loaded),
            weight_decay=train.weight_decay,
            refresh_steps=train.refresh_steps,
            collectives=open_collectives(),
        )

    def step(self, stream: Stream, progress: float) -> tuple[int, Tensor]:
        """Take one step on the stream's next batch; its tokens, and its mean loss in nats.

        The learning rate is that of the progress after it: a first step at a rate of 0 would be lost, and a router,
        which tells by its weights that a step has passed, would not see it.
        """
        batch = stream.next_batch()
        done = progress + batch[:, 1:].numel() / self.loaded.run.run.token_budget
        set_learning_rate(self.optimizer, self.loaded, done)
        clip_norm, parts = self.loaded.run.train.clip_norm, self.loaded.island.island.parts
        own = batch.to(self.device)
        loss = train_step(self.layout, self.optimizer, self.precision, own, clip_norm=clip_norm, parts=parts)
        return batch[:, 1:].numel(), loss


def train_step(
    layout: Layout,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    batch: Tensor,
    *,
    clip_norm: float,
    parts: int = 1,
) -> Tensor:
    """One optimizer step on the whole island's ``batch``, int64 [B, S + 1]; this rank's mean loss in nats, detached.

    Gradients of ``parts`` parts of it, worked on one after the other, add up to those of the whole.
    """
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for index, own in enumerate(layout.own(batch).chunk(parts)):
        with layout.part_of_step(is_last=index == parts - 1):
            loss = next_token_loss(precision(layout.model, own[:, :-1]), own[:, 1:]) / parts
            loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    layout.finish_gradients()
    layout.clip_gradients(clip_norm)
    optimizer.step()
    return torch.stack(losses).sum()


class Texts:
    """What an island reads: its part of the training text, and the held-out sets for its scores."""

    def __init__(self, loaded: LoadedRun) -> None:
        data, length = loaded.run.data, loaded.run.train.sequence_length
        spec, sets = _sources(loaded)
        tokenizer = load_tokenizer(spec.tokenizer)
        self.stream: WindowStream = open_train(spec)
        self.manifest: Manifest = describe(spec, sets)
        self.whole = Scorer(sets, tokenizer, sequence_length=length)
        quick_bytes = data.evaluate_bytes // QUICK_SHARE
        self.quick = Scorer(sets, tokenizer, sequence_length=length, max_bytes=quick_bytes)


def prepare_texts(loaded: LoadedRun) -> Manifest:
    """Put an island's texts in its cache, where it finds them ready; says what they are."""
    spec, sets = _sources(loaded)
    open_train(spec)
    return describe(spec, sets)


def open_stream(loaded: LoadedRun) -> WindowStream:
    """An island's part of the training text."""
    return open_train(_train_spec(loaded))


def _sources(loaded: LoadedRun) -> tuple[TrainSpec, Mapping[str, HeldOut]]:
    """What an island trains on, and the opened sets that it is scored on."""
    data, root = loaded.run.data, loaded.paths.root
    specs = held_out_specs(data.evaluate, root, data.evaluate_bytes)
    return _train_spec(loaded), open_held_out(specs, root / loaded.island.data.cache)


def _train_spec(loaded: LoadedRun) -> TrainSpec:
    root, tokenizer = loaded.paths.root, loaded.run.data.tokenizer
    return train_spec(loaded, None if tokenizer == BYTE_TOKENS else root / tokenizer, root / loaded.island.data.cache)


def train_spec(loaded: LoadedRun, tokenizer: Path | None, cache_dir: Path) -> TrainSpec:
    """What one island trains on: by default its slot's part of the text that any installation has."""
    run, own = loaded.run, loaded.island
    slots = loaded.roster.slots
    equal = tuple(1.0 if slot in slots else 0.0 for slot in range(max(slots) + 1))
    default = own.data.sources == (DEFAULT_SOURCES,)
    globs = () if default else tuple(str(loaded.paths.root / source) for source in own.data.sources)
    return TrainSpec(
        slot=loaded.member.slot,
        seed=run.run.seed + own.island.seed_offset,
        sequence_length=run.train.sequence_length,
        batch_size=own.island.batch_size,
        shares=own.data.shares or equal,
        globs=globs,
        tokenizer=tokenizer,
        cache_dir=cache_dir,
        held_out=held_out_specs(run.data.evaluate, loaded.paths.root, None),
    )


def pick_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the accelerator, or the CPU where there is none.

    Raises:
        ConfigError: There is no such device.
    """
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            mend = 'Name a device that this machine\'s torch has, such as "cpu", or "auto".'
            raise ConfigError("island.device cannot be used", got=repr(name), wanted=str(error), mend=mend) from error
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def pick_precision(name: str, device: torch.device) -> str:
    """The precision of that name; ``auto`` is bf16 autocast where the device multiplies bf16 natively, else fp32."""
    if name != "auto":
        return name
    return "bf16-autocast" if native_bf16(device) else "fp32"


def base_learning_rate(loaded: LoadedRun) -> float:
    """The island's own peak learning rate, or the run's."""
    return loaded.island.island.learning_rate or loaded.run.train.learning_rate


def set_learning_rate(optimizer: torch.optim.Optimizer, loaded: LoadedRun, progress: float) -> None:
    """Set every group's rate by the run's progress."""
    train = loaded.run.train
    scale = learning_rate_scale(progress, warmup_share=train.warmup_share, final_share=train.final_lr_share)
    for group in optimizer.param_groups:
        group["lr"] = base_learning_rate(loaded) * scale


def record_scores(island: Island, texts: Texts, scores: list[NamedScore], *, final: bool) -> None:
    """Write down the scores of the slow weights."""
    for named in scores:
        island.record(
            records.Evaluation,
            set_name=named.set_name,
            bits_per_byte=records.finite(named.score.bits_per_byte),
            standard_error=records.finite(named.score.standard_error),
            num_bytes=named.score.num_bytes,
            run_tokens=island.run_tokens,
            manifest_digest=texts.manifest.digest,
            xz_bits_per_byte=named.xz_bits_per_byte,
            final=final,
        )


def export(loaded: LoadedRun, island: Island, trainer: Trainer, manifest: Manifest) -> None:
    """Write the joint model as ``model.safetensors`` beside the records, the same bytes at both islands of a pair.

    Integers count what an island has done since its last step and are not traded: the joint model has none yet.
    """
    path = loaded.own_paths.root / "model.safetensors"
    whole = WholeState(trainer.model)
    tensors = {
        name: tensor if tensor.dtype.is_floating_point else torch.zeros(tensor.shape, dtype=tensor.dtype)
        for name, tensor in whole.tensors.items()
    }
    metadata = {
        "run": loaded.run.hash,
        "model": json.dumps(dataclasses.asdict(trainer.config)),
        "digest": island.digest,
        "provisional": str(island.provisional).lower(),
        "manifest": manifest.digest,
        "tokenizer": loaded.run.data.tokenizer,
        "tokenizer_sha256": loaded.run.data.tokenizer_sha256,
        "sequence_length": str(loaded.run.train.sequence_length),
        "tokens": str(island.run_tokens),
    }
    try:
        if is_gateway():
            export_safetensors(path, tensors, metadata)
            log.info("%s exported %s%s", island.name, path, " (provisional: cut off from others)" * island.provisional)
    finally:
        whole.gather_rest(file_order(tensors))
