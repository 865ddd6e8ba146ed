"""What a run writes down: one frozen record per thing that happened, one JSON object per line.

Every record says when (``t_s`` on the process's own monotonic clock, ``wall_s`` on the wall clock), which
island, and how far that island was (``step`` and ``tokens``, its own T). ``kind`` is the tag that tells them
apart. Fields may be added with a default within one schema version; a reader skips kinds it does not know.

JSON has no NaN: a float that may be non-finite is ``None`` then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import msgspec

from isthmus.terms import Phase

SCHEMA_VERSION = 1
"""Raised when the meaning of an existing field changes."""

Severity = Literal["info", "warning", "error"]


class Stamp(TypedDict):
    """The fields every record shares, to be unpacked into one: ``Note(**stamp, text=...)``."""

    t_s: float
    wall_s: float
    island: str
    step: int
    tokens: int


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """When, who and how far.

    ``t_s`` counts from the start of the process and restarts with it; ``wall_s`` is Unix time, the axis on
    which islands are laid side by side. ``tokens`` is the island's own T.
    """

    t_s: float
    wall_s: float
    island: str
    step: int
    tokens: int


class RunStarted(Common, frozen=True, kw_only=True, tag_field="kind", tag="run_started"):
    """An island's process came up; the first record of every process.

    ``window_steps`` is H, ``num_fragments`` P, ``delay_steps`` τ; the batch is what one optimizer step takes,
    ``token_budget`` the whole run's. ``rate_limit_bytes_per_s`` is ``None`` on an unlimited link. ``config``
    echoes the files of the run as plain JSON values, without secrets.
    """

    schema: int = SCHEMA_VERSION
    run: str
    run_name: str = ""
    isthmus_version: str
    torch_version: str
    python_version: str
    slot: int
    incarnation: int
    batch_sequences: int
    batch_tokens: int
    precision: str
    device: str = ""
    codec: str
    window_steps: int
    num_fragments: int
    delay_steps: int = 0
    num_parameters: int
    token_budget: int
    manifest_digest: str
    rate_limit_bytes_per_s: float | None = None
    resumed_from: str | None = None
    command: str = ""
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)


class PhaseChange(Common, frozen=True, kw_only=True, tag_field="kind", tag="phase"):
    """The island moved on: joining, training, finishing, done."""

    phase: Phase


class Waiting(Common, frozen=True, kw_only=True, tag_field="kind", tag="waiting"):
    """The island waits: for whom, why, and for how much longer at most (``None``: without end)."""

    peers: tuple[str, ...]
    reason: str
    at_most_s: float | None = None


class Joined(Common, frozen=True, kw_only=True, tag_field="kind", tag="joined"):
    """The island has its weights: fresh from the seed, from its checkpoint, or adopted from others.

    ``lost_tokens`` were trained before a crash and are in nobody's weights; ``waited_for`` names whom it
    waited for.
    """

    how: Literal["fresh", "checkpoint", "adopted"]
    lost_tokens: int = 0
    waited_for: tuple[str, ...] = ()
    waited_s: float = 0.0


class StepDone(Common, frozen=True, kw_only=True, tag_field="kind", tag="step"):
    """``num_steps`` optimizer steps, the last of them ``step``.

    ``loss_nats`` is their mean; ``step_tokens`` and the seconds are their sums. ``step_s`` is the whole time
    of the steps, of which ``sync_s`` inside ``island.step()``, of which ``blocked_s`` waiting for the link or
    a peer. ``progress_tokens`` are the run's tokens, as last heard from all islands.
    """

    loss_nats: float | None
    step_tokens: int
    step_s: float
    sync_s: float
    blocked_s: float
    learning_rate: float
    progress_tokens: int
    num_steps: int = 1


class Departure(Common, frozen=True, kw_only=True, tag_field="kind", tag="departure"):
    """The outer step of one fragment, and what became of its publication.

    ``round`` counts this fragment's departures at this island from 0. ``rms`` is that of y − c, ``None``
    where the edge has no reference or it is not finite. With ``published`` it went to ``peer``, by the mesh rule the
    first of all, as ``publication``, to answer a knock if ``answer``; otherwise ``reason`` says why none did.
    """

    fragment: int
    round: int
    outer_lr: float
    momentum: float
    rms: float | None
    published: bool
    peer: str | None = None
    answer: bool = False
    publication: int = 0
    reason: str = ""


class Published(Common, frozen=True, kw_only=True, tag_field="kind", tag="published"):
    """A publication's last byte was handed to the network.

    ``payload_bytes`` are the packed codes, ``wire_bytes`` what crossed the link for them; ``num_parameters``
    is the fragment's; ``seconds`` from the first byte to the last. ``final`` marks the lossless meetings of
    the run's end.
    """

    fragment: int
    peer: str
    publication: int
    epoch: int
    version: int
    codec: str
    num_parameters: int
    payload_bytes: int
    wire_bytes: int
    seconds: float
    final: bool = False


class Received(Common, frozen=True, kw_only=True, tag_field="kind", tag="received"):
    """A partner's publication is here whole and verified; fields as in ``Published``."""

    fragment: int
    peer: str
    publication: int
    epoch: int
    version: int
    codec: str
    payload_bytes: int
    wire_bytes: int
    final: bool = False


class Meeting(Common, frozen=True, kw_only=True, tag_field="kind", tag="meeting"):
    """A meeting was completed at this end: its correction was applied at ``arrived_step``.

    ``version`` is the one the meeting started from. ``age_s`` runs from this end's departure to the arrival;
    ``late`` means later than the slot it had to cross the link (H/P steps) and τ steps more. ``adopted``: a newcomer
    took the merged reference. ``reference`` is the start of H(c') in hex, the same at both ends. A meeting of all by
    the mesh rule is one record for every other island; the weights of them all and ``weight`` sum to 1.
    """

    fragment: int
    peer: str
    epoch: int
    version: int
    publication: int
    peer_publication: int
    weight: float
    peer_weight: float
    departed_step: int
    arrived_step: int
    age_s: float
    late: bool
    reference: str
    adopted: bool = False
    final: bool = False


class PeerChange(Common, frozen=True, kw_only=True, tag_field="kind", tag="peer"):
    """A peer can be reached, or no longer can; ``reason`` is for people.

    ``left``: it has said that it leaves; ``ended``: it was done.
    """

    peer: str
    up: bool
    reason: str = ""
    incarnation: int = 0
    rtt_s: float | None = None
    ended: bool = False
    left: bool = False


class Alarm(Common, frozen=True, kw_only=True, tag_field="kind", tag="alarm"):
    """Something a person should look at."""

    what: str
    peer: str | None = None
    severity: Severity = "warning"


class LinkRate(Common, frozen=True, kw_only=True, tag_field="kind", tag="link"):
    """Bytes that crossed the link, all framing and encryption counted, in a batch of windows.

    Window k starts at ``at_s[k]`` (on the clock of ``t_s``) and lasts ``window_s``; a window without traffic
    may be left out.
    """

    window_s: float
    at_s: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]


class Evaluation(Common, frozen=True, kw_only=True, tag_field="kind", tag="evaluation"):
    """Bits per byte of the slow weights on one held-out set.

    ``run_tokens`` are the tokens of all islands behind these weights; ``xz_bits_per_byte`` is ``xz -6`` on
    the same bytes; ``manifest_digest`` names the bytes. ``final`` marks the end of the run. A set of
    one document has no ``standard_error``.
    """

    set_name: str
    bits_per_byte: float | None
    standard_error: float | None
    num_bytes: int
    run_tokens: int
    manifest_digest: str
    xz_bits_per_byte: float | None = None
    weights: str = "slow"
    final: bool = False


class Checkpoint(Common, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """A checkpoint is durable; ``name`` is relative to the island's directory.

    ``seconds`` is from its begin on; ``blocked_s`` what of that training has waited for it.
    """

    name: str
    num_bytes: int
    seconds: float
    blocked_s: float | None = None


class Finished(Common, frozen=True, kw_only=True, tag_field="kind", tag="finished"):
    """The last record of a process that ended on purpose.

    ``provisional``: the island was cut off, its weights are not the joint ones. ``joint_digest`` is the hash
    of the exported weights, in hex.
    """

    reason: Literal["done", "interrupted", "failed"]
    provisional: bool = False
    joint_digest: str = ""
    detail: str = ""


class Note(Common, frozen=True, kw_only=True, tag_field="kind", tag="note"):
    """Anything dropped, skipped or retried, in words."""

    text: str


Record = (
    RunStarted | PhaseChange | Waiting | Joined | StepDone | Departure | Published | Received | Meeting
    | PeerChange | Alarm | LinkRate | Evaluation | Checkpoint | Finished | Note
)  # fmt: skip


def finite(value: float) -> float | None:
    """The value itself, or ``None`` where JSON could not hold it."""
    return value if math.isfinite(value) else None
