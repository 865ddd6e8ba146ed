"""Made-up rows of a study, without a single training step."""

from __future__ import annotations

import math
import random

from isthmus.lab.findings import ArmInfo, StudyInfo, Tuning
from isthmus.lab.table import RunRow, Score

SETS = ("python code", "technical english")
EFFECTS = {"standard": 0.0, "one island": -0.008, "pair 2": 0.004, "pair 8": 0.016, "mesh 8": 0.006, "adamw": 0.045}
LENGTHS = (500_000, 2_000_000, 8_000_000)
KEY = "run.token_budget"
RATE = "optimizer.learning_rate"
RATES = (0.001, 0.003, 0.01)


def score(value: float | None, *, set_name: str = SETS[0], tokens: int = 1000, subject="joint", final=True) -> Score:
    return Score(
        set_name=set_name,
        subject=subject,
        run_tokens=tokens,
        bits_per_byte=value,
        standard_error=None if value is None else 0.01,
        final=final,
    )


def row(arm: str = "a", seed: int = 0, value: float | None = 2.0, **changes) -> RunRow:
    """A run that ended at ``value`` on the one set that it was scored on."""
    tokens = changes.get("tokens", 1000)
    fields = {
        "study": "made up",
        "stage": "compare",
        "arm": arm,
        "case": {},
        "seed": seed,
        "values": {},
        "digest": "0",
        "outcome": "done",
        "islands": 1,
        "tokens": tokens,
        "steps": {"first": 10},
        "scores": (score(value, tokens=tokens),),
        "cpu_s": 100.0,
        "train_cpu_s": 95.0,
        "virtual_s": 1000.0,
        "sent_bytes": 0,
        "meetings": 0,
        "late": 0,
        "versions": {"isthmus": "0.1.0", "torch": "2.13.0"},
    }
    return RunRow(**fields | changes)


def rows_by_seed(arm: str, values, **changes) -> list[RunRow]:
    """One run for each value, with seeds from 0."""
    return [row(arm, seed, value, **changes) for seed, value in enumerate(values)]


def whole_study(seeds=range(5), lengths=LENGTHS) -> list[RunRow]:
    """Six arms at three lengths, each scored 20 times on two sets, and the tuning of two of them."""
    chance = random.Random(1)
    rows = [_run(chance, arm, length, seed) for arm in EFFECTS for length in lengths for seed in seeds]
    for arm in ("standard", "adamw"):
        for rate in RATES:
            effect = EFFECTS[arm] + 0.02 * math.log10(rate / RATES[1 if arm == "standard" else 2]) ** 2
            for seed in (100, 101):
                scores = tuple(score(2.2 * (1 + effect), set_name=name, tokens=lengths[0]) for name in SETS)
                rows.append(row(arm, seed, stage="tune", case={KEY: lengths[0]}, values={RATE: rate}, scores=scores))
    return rows


def _run(chance: random.Random, arm: str, length: int, seed: int) -> RunRow:
    islands = int(arm.split()[-1]) if arm.split()[-1].isdigit() else 1
    luck = random.Random(seed).gauss(0, 0.004)
    scores = []
    for part in range(1, 21):
        tokens = length * part // 20 + seed * 64
        for name in SETS:
            level = (1.7 + 700 / math.sqrt(tokens)) * (1.1 if name == SETS[1] else 1.0)
            apart = EFFECTS[arm] * (500_000 / length) ** 0.3 + luck + chance.gauss(0, 0.0015)
            value = level * math.exp(apart)
            scores.append(score(value, set_name=name, tokens=tokens, final=part == 20))
            if part == 20:
                own = value * 1.0001 if islands > 2 else value
                scores.append(score(own, set_name=name, tokens=tokens, subject="first"))
    cpu_s = 40 * length / LENGTHS[0] * (1 + 0.03 * islands)
    return row(
        arm,
        seed,
        case={KEY: length},
        values={RATE: 0.003},
        scores=tuple(scores),
        islands=islands,
        tokens=length,
        cpu_s=cpu_s,
        train_cpu_s=cpu_s * (0.985 - 0.004 * islands),
        virtual_s=length / 500,
        sent_bytes=0 if islands == 1 else length * 11 * islands,
        meetings=0 if islands == 1 else length // 5000 * islands,
        late=0 if islands == 1 else length // 90000,
    )


def whole_info(**changes) -> StudyInfo:
    notes = {
        "standard": "One place, one model: plain training, tuned by itself.",
        "one island": "One island with the outer step of the others, and no partner.",
        "pair 2": "Two islands, the pair rule, int4 at 100 Mbit/s and 80 ms.",
        "pair 8": "Eight islands, the pair rule over a butterfly.",
        "mesh 8": "Eight islands, everybody averages with everybody.",
        "adamw": "Plain training with AdamW instead of eigenbasis Shampoo.",
    }
    tuned = {
        "standard": (Tuning(grid={RATE: RATES}, chosen={RATE: 0.003}),),
        "adamw": (Tuning(grid={RATE: RATES}, chosen={RATE: 0.01}, at_edge=(RATE,)),),
    }
    fields = {
        "name": "training length",
        "control": "standard",
        "margin": 0.005,
        "arms": tuple(
            ArmInfo(name=arm, note=note, tuned=tuned.get(arm, ()), values={} if arm in tuned else {RATE: 0.003})
            for arm, note in notes.items()
        ),
        "expected_runs": len(whole_study()),
        "note": "Does the distance to plain training close with the length of the run?",
        "commands": ("isthmus lab studies/training-length.toml",),
    }
    return StudyInfo(**fields | changes)
