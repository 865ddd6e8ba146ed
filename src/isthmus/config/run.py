"""``run.toml``: what all islands of a run share; its hash names the run.

A key's description is the comment that is written above it in a new file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from isthmus.config.tables import Relation, Table, refuse_relations
from isthmus.roster import IslandName

MAX_OUTER_GAIN = 4.0
"""The largest η/(1−μ): what an outer step makes of steady progress."""

OWN_MODEL = "own"
"""The preset of a model that the training loop brings itself."""

BYTE_TOKENS = "bytes"
"""The tokenizer that takes each byte for a token."""

RUN_NAME_LENGTH = 12
"""Hex characters of the hash by which a run is called."""


class RunTable(Table):
    """``[run]``: what is trained, for how long, and who may sign its roster."""

    name: IslandName = Field(description="What people call the run: a-z, 0-9 and -, at most 32.")
    token_budget: int = Field(ge=1, description="The run ends when all islands together have trained so many tokens.")
    owner: str = Field(min_length=1, description="The owner's public key: only rosters signed by it count.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Initial weights and the order of data follow from it.")


class ModelTable(Table):
    """``[model]``: a preset, and any field of ``isthmus.model.ModelConfig`` that is to differ from it.

    The fields are checked against the model's own when the files of a run are loaded (``resolve_model``).
    """

    model_config = ConfigDict(extra="allow")

    preset: str = Field(
        default="nano",
        description=f'A preset of isthmus.model, or "{OWN_MODEL}": your training loop brings the model. '
        "Any field of the preset may stand below with another value.",
    )

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The fields that differ from the preset."""
        return self.model_extra or {}


class MixingTable(Table):
    """``[mixing]``: how islands trade. H is ``window_steps``, P ``fragments``, τ ``flight_steps``.

    η and μ are ``outer_lr`` and ``outer_momentum``.
    """

    rule: Literal["pair", "mesh"] = Field(
        default="pair",
        description='"pair": islands trade in pairs, and a lost one costs the others nothing. "mesh": all average with '
        "all (streaming DiLoCo), for few islands: bytes grow with their number, and a lost one stops the averaging.",
    )
    window_steps: int = Field(
        default=50,
        ge=1,
        description="Steps between two departures of a fragment: fewer mix more often and send more bytes.",
    )
    fragments: int = Field(
        default=4,
        ge=1,
        description="Parts of the model that depart one after the other, so the link sees no burst.",
    )
    flight_steps: int = Field(
        default=5, ge=0, description="The earliest arrival, in steps after a departure; nothing waits for it."
    )
    meetings: int = Field(
        default=1,
        ge=1,
        le=6,
        description="Meetings that follow a departure, one after the other, each with another partner: log2 of the "
        "islands spread a round's progress to all before the next, and train as a mesh does or better, for as many "
        "times the bytes.",
    )
    momentum: Literal["local", "mixed"] = Field(
        default="local",
        description='What outer momentum is made of: "local" is own progress, "mixed" is corrected by every '
        "meeting as the weights are, so that islands that agree have the momentum of their mean.",
    )
    outer_lr: float = Field(
        default=0.7,
        gt=0,
        description=f"Outer step; outer_lr / (1 - outer_momentum) above {MAX_OUTER_GAIN:g} is refused.",
    )
    outer_momentum: float = Field(default=0.5, ge=0, lt=1, description="Nesterov momentum of the outer step.")
    calm_rounds: int = Field(
        default=2,
        ge=0,
        description="In so many first rounds the outer step is 1 without momentum: plain training.",
    )
    calm_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="So is it in this last share of the run, where the noise has to settle.",
    )
    codec: str = Field(
        default="int4", description="How publications are coded; what coding loses is sent again next time."
    )
    embedding_codec: str = Field(
        default="coded",
        description='The same for embeddings and head; "coded" is as the rest. Norms, router and biases are '
        "always lossless.",
    )

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken = self.window_relations(self.window_steps)
        gain = self.outer_lr / (1 - self.outer_momentum)
        if gain > MAX_OUTER_GAIN * (1 + 1e-9):
            got = f"outer_lr {self.outer_lr:g} / (1 - outer_momentum {self.outer_momentum:g}) = {gain:.3g}"
            broken.append(("outer_lr", got, f"at most {MAX_OUTER_GAIN:g}: beyond it islands diverge"))
        if self.rule == "mesh" and self.meetings > 1:
            broken.append(("meetings", self.meetings, 'mixing.rule = "pair", or 1: in a mesh one meeting reaches all'))
        if self.rule == "mesh" and self.momentum != "local":
            broken.append(("momentum", self.momentum, 'mixing.rule = "pair", or "local"'))
        refuse_relations(broken)
        return self

    def window_relations(self, window_steps: int) -> list[Relation]:
        """What is wrong between a window of ``window_steps`` (the run's or an island's own) and P and τ."""
        broken: list[Relation] = []
        if self.fragments > window_steps:
            wanted = f"at least mixing.fragments = {self.fragments}: one departure a step at most"
            broken.append(("window_steps", window_steps, wanted))
        if self.flight_steps >= window_steps:
            wanted = f"more than mixing.flight_steps = {self.flight_steps}"
            broken.append(("window_steps", window_steps, wanted))
        elif (needed := self.meetings * (self.flight_steps + 1)) > window_steps:
            wanted = f"at least mixing.meetings x (mixing.flight_steps + 1) = {needed}"
            broken.append(("window_steps", window_steps, wanted))
        return broken


class TrainTable(Table):
    """``[train]``: the inner training that all islands share."""

    sequence_length: int = Field(default=256, ge=2, description="Tokens in a sequence.")
    optimizer: str = Field(
        default="shampoo", description='"shampoo", "adamw" or "muon"; an island may have another, and another rate.'
    )
    refresh_steps: int = Field(default=10, ge=1, description="Steps between two refreshes of Shampoo's eigenbases.")
    learning_rate: float = Field(
        default=1.6e-2,
        gt=0,
        description="The peak; its course follows the run's tokens. Larger models want less.",
    )
    warmup_share: float = Field(default=0.02, ge=0, lt=1, description="The share of the budget until the peak.")
    final_lr_share: float = Field(default=0.1, ge=0, le=1, description="What is left of the peak at the end.")
    weight_decay: float = Field(default=0.1, ge=0, description="Decoupled, per step, times the learning rate.")
    clip_norm: float = Field(default=1.0, gt=0, description="Gradients above this norm are scaled down to it.")


class RunDataTable(Table):
    """``[data]``: the tokens, and the held-out sets that every island evaluates on."""

    tokenizer: str = Field(
        default=BYTE_TOKENS,
        min_length=1,
        description=f'"{BYTE_TOKENS}", or the path of a Hugging Face tokenizer.json from the run directory.',
    )
    tokenizer_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="The SHA-256 of that file, so that all sites have the same; empty with byte tokens.",
    )
    evaluate: tuple[str, ...] = Field(
        default=("python code", "technical english"), description="Held-out sets, scored in bits per byte."
    )
    evaluate_bytes: int = Field(default=1_000_000, ge=1, description="Bytes of each set that are scored.")

    @model_validator(mode="after")
    def _relations(self) -> Self:
        broken: list[Relation] = []
        if (self.tokenizer == BYTE_TOKENS) != (self.tokenizer_sha256 == ""):
            wanted = "the tokenizer file's SHA-256 in hex, and none with byte tokens"
            broken.append(("tokenizer_sha256", repr(self.tokenizer_sha256), wanted))
        refuse_relations(broken)
        return self


class EvalTable(Table):
    """``[eval]``: how often an island evaluates."""

    every_tokens: int = Field(default=0, ge=0, description="Tokens of the run between two; 0: only at the end.")


class RunConfig(Table):
    """All of ``run.toml``."""

    run: RunTable
    model: ModelTable = ModelTable()
    mixing: MixingTable = MixingTable()
    train: TrainTable = TrainTable()
    data: RunDataTable = RunDataTable()
    eval: EvalTable = EvalTable()

    @property
    def hash(self) -> str:
        """SHA-256 in hex of the canonical JSON of all values, defaults included; layout does not count."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def short_hash(self) -> str:
        """The first characters of the hash, by which the run is called."""
        return self.hash[:RUN_NAME_LENGTH]
