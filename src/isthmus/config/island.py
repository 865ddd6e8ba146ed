"""``island.toml``: an island's own settings; never shared, not hashed.

A key's description is the comment that is written above it in a new file.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from isthmus.config.tables import Relation, Table, refuse_relations
from isthmus.roster import Address, IslandName

DEFAULT_SOURCES = "default"
"""The source that stands for the texts of any installation."""


class IslandTable(Table):
    """``[island]``: how this site trains."""

    name: IslandName = Field(description="Its name in the roster.")
    batch_size: int = Field(ge=1, description="Sequences a step; islands may differ, and weigh by their tokens.")
    parts: int = Field(
        default=1, ge=1, description="A step's sequences are worked on in so many parts, one after the other."
    )
    recompute: bool = Field(
        default=False, description="Keep fewer activations, and compute them again in backward (the bundled model)."
    )
    compile: bool = Field(default=False, description="Let torch.compile make the kernels (the bundled model).")
    precision: Literal["auto", "fp32", "bf16-autocast", "bf16-weights"] = Field(
        default="auto",
        description='"auto": bf16 autocast where the device multiplies bf16 natively, else fp32.',
    )
    device: str = Field(
        default="auto", min_length=1, description='"auto": the accelerator if there is one, else "cpu".'
    )
    slow_state: Literal["device", "host"] = Field(
        default="device",
        description='Where slow weights, velocity and references lie: with the weights, or in (pinned) "host" memory.',
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads; if absent, torch decides.", examples=[8])
    window_steps: int | None = Field(
        default=None,
        ge=1,
        description="Its own mixing.window_steps, for a faster or slower site.",
        examples=[50],
    )
    optimizer: str | None = Field(default=None, description="Its own train.optimizer.", examples=["adamw"])
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="Its own train.learning_rate, say for another batch size.",
        examples=[2e-3],
    )
    seed_offset: int = Field(
        default=0, ge=0, lt=2**31, description="Added to the run's seed for the order of this island's data."
    )


class ParallelTable(Table):
    """``[parallel]``: how the ranks of this island divide the model; ranks beyond the product are copies (DDP)."""

    fsdp: int = Field(default=1, ge=1, description="Parts of all weights, by FSDP2.")
    tp: int = Field(default=1, ge=1, description="Parts of attention and dense feed-forwards, by tensor parallelism.")
    ep: int = Field(default=1, ge=1, description="Parts of the experts, by expert parallelism.")


class IslandDataTable(Table):
    """``[data]``: what this island trains on."""

    sources: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(DEFAULT_SOURCES,),
        min_length=1,
        description="Globs of .py, .txt, .md, .jsonl (also .gz, .zst) from the run directory; "
        f'"{DEFAULT_SOURCES}" is source code that every installation has.',
    )
    shares: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        default=None,
        min_length=1,
        description="How much of the sources each slot gets, from slot 0 on, in any unit, alike in all islands' files: "
        "the parts are disjoint. If absent, every slot of the roster gets as much.",
        examples=[(3.0, 1.0)],
    )

    cache: str = Field(
        default="cache",
        min_length=1,
        description="Where tokens are written once and mapped from afterwards, from the run directory; may be shared.",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        if DEFAULT_SOURCES in self.sources and len(self.sources) > 1:
            broken.append(("sources", list(self.sources), f'"{DEFAULT_SOURCES}" alone, or globs alone'))
        refuse_relations(broken)
        return self


class LinkTable(Table):
    """``[link]``: where this island listens, how fast it may send, and where it finds peers from here."""

    listen: Address = Field(
        default="127.0.0.1:0",
        description="Where it listens; port 0 is any free one, for a site that only dials.",
    )
    rate_mbit: float | None = Field(
        default=None,
        gt=0,
        description="At most so many Mbit/s are sent; if absent, pace alone decides.",
        examples=[100.0],
    )
    dial: dict[IslandName, tuple[Address, ...]] = Field(
        default={},
        description="Where peers are found from here, in place of the roster's addresses.",
        examples=[{"asia": ("10.0.0.2:47111",)}],
    )
    heartbeat_s: float = Field(default=2.0, gt=0, description="Seconds between two signs of life to each peer.")
    silence_s: float = Field(
        default=15.0, gt=0, description="Seconds without a word after which a peer is taken to be lost."
    )
    handshake_s: float = Field(
        default=10.0, gt=0, description="Seconds for a peer to answer a new connection and to show who it is."
    )
    start_s: float = Field(default=20.0, gt=0, description="Seconds for the link's own process to start.")
    ask_again_s: float = Field(
        default=5.0,
        gt=0,
        description="Seconds between two questions to a peer that does not agree on where both stand.",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        if self.silence_s < 2 * self.heartbeat_s:
            broken.append(("silence_s", self.silence_s, f"at least 2 x link.heartbeat_s = {2 * self.heartbeat_s:g}"))
        refuse_relations(broken)
        return self


class CheckpointTable(Table):
    """``[checkpoint]``: how often the island saves."""

    every_steps: int = Field(default=100, ge=1, description="Steps between two saves.")
    keep: int = Field(default=2, ge=1, description="So many newest ones stay.")
    wait_s: float = Field(
        default=600.0, gt=0, description="Seconds that leaving waits for a checkpoint that is being written."
    )


class RecordsTable(Table):
    """``[records]``: how often a training metric is written to records.jsonl."""

    every_steps: int = Field(default=1, ge=1, description="Steps between two training metrics.")


class FinishTable(Table):
    """``[finish]``: the end of the run."""

    wait_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds to wait for others before it goes on without them; more than a fragment in fp32 takes "
        "to cross the link.",
    )


class JoinTable(Table):
    """``[join]``: the start of the island."""

    wait_s: float = Field(default=20.0, ge=0, description="Seconds to wait for others' word before it goes on alone.")


class LeaveTable(Table):
    """``[leave]``: how the island leaves when it is asked to, by a signal or by a notice that its capacity ends."""

    grace_s: float = Field(
        default=20.0, ge=0, description="Seconds that it may take to publish what it has, save and leave."
    )
    notice_file: str | None = Field(
        default=None, description="It leaves when this file is there (a path from the run directory)."
    )
    notice_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="It leaves when this address answers with status 200, as clouds announce preemptions.",
    )
    notice_every_s: float = Field(default=2.0, gt=0, description="Seconds between two looks for a notice.")
    notice_contains: str = Field(default="", description="Of an answer that is always there, what must be in it.")
    notice_headers: dict[str, str] = Field(default={}, description="Headers to ask that address with.")


class IslandConfig(Table):
    """All of ``island.toml``."""

    island: IslandTable
    parallel: ParallelTable = ParallelTable()
    data: IslandDataTable = IslandDataTable()
    link: LinkTable = LinkTable()
    checkpoint: CheckpointTable = CheckpointTable()
    records: RecordsTable = RecordsTable()
    finish: FinishTable = FinishTable()
    join: JoinTable = JoinTable()
    leave: LeaveTable = LeaveTable()
