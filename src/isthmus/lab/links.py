"""Links of a run, from its settings and its seed alone."""

from __future__ import annotations

import itertools
import math
import random

from isthmus.lab.setup import Setup
from isthmus.lab.study_file import LinkTable
from isthmus.transport import LinkQuality


def qualities(setup: Setup) -> dict[tuple[str, str], LinkQuality]:
    """The quality of every direction, by sender and receiver.

    What all links share, then what a pair draws, then what a pair or a direction has of its own.
    """
    names = sorted(island.name for island in setup.islands)
    values = {
        direction: {**setup.links.shared, **drawn}
        for pair in itertools.combinations(names, 2)
        for drawn in [_draw(setup, pair)]
        for direction in (pair, pair[::-1])
    }
    for sender, receiver, own in setup.links.own:
        values[sender, receiver] |= own
    return {direction: _quality(LinkTable.model_validate(each)) for direction, each in values.items()}


def outages(setup: Setup) -> tuple[tuple[float, float, str, str], ...]:
    """From when until when, in virtual seconds, nothing passes between which two islands; in time."""
    return setup.links.outages


def _draw(setup: Setup, pair: tuple[str, str]) -> dict[str, float]:
    """A pair's own values: the same in every arm that draws from the same spans with this seed."""
    return {
        key: math.exp(_chance(setup.seed, key, pair).uniform(math.log(low), math.log(high)))
        for key, (low, high) in setup.links.uneven.items()
    }


def _chance(seed: int, key: str, pair: tuple[str, str]) -> random.Random:
    return random.Random(f"{seed}/{key}/{'/'.join(pair)}")


def _quality(link: LinkTable) -> LinkQuality:
    return LinkQuality(
        delay_s=link.rtt_ms / 1000 / 2,
        rate_bits_per_s=None if link.rate_mbit is None else link.rate_mbit * 1e6,
        loss=link.loss,
        duplication=link.duplication,
        reordering=link.reordering,
    )
