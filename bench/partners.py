"""How islands choose partners, measured without a model: how far apart do they stay when all drift?

    python bench/partners.py
    python bench/partners.py --islands 3 5 8 64 --lost 0 0.1 0.3

Every island holds a vector that takes a step of its own, random and of unit variance, in each round; islands depart one
after the other in an order that changes, answer the longest-waiting knock or knock at the partner least recently met,
and meet as the pair rule says. Printed is the disagreement, the root mean square of what islands differ from their mean
by, over the later half of the rounds; the share of departures with a publication; and the most partners of an island.

Ways: ``corners`` as isthmus does it, empty corners of the cube played by the island below them; ``cube`` with empty
corners left out; ``powers``, offsets of powers of two on a ring; ``all``, everybody with everybody.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from isthmus.roster import partners

Table = Mapping[int, list[int]]

ROUNDS, SIZE = 400, 64


def corners(count: int) -> Table:
    return {slot: [each.slot for each in partners(slot, range(count))] for slot in range(count)}


def cube(count: int) -> Table:
    bits = (count - 1).bit_length()
    return {slot: [slot ^ 1 << bit for bit in range(bits) if slot ^ 1 << bit < count] for slot in range(count)}


def powers(count: int) -> Table:
    offsets = [1 << bit for bit in range((count - 1).bit_length())]
    return {
        slot: sorted({(slot + sign * offset) % count for offset in offsets for sign in (1, -1)} - {slot})
        for slot in range(count)
    }


def everybody(count: int) -> Table:
    return {slot: [other for other in range(count) if other != slot] for slot in range(count)}


WAYS: dict[str, Callable[[int], Table]] = {"corners": corners, "cube": cube, "powers": powers, "all": everybody}


class Islands:
    """Islands of one way, which drift and meet."""

    def __init__(self, table: Table, lost: float, seed: int) -> None:
        self.table, self.lost, self.rng = table, lost, np.random.default_rng(seed)
        self.held = np.zeros((len(table), SIZE))
        self.said: dict[int, tuple[int, np.ndarray]] = {}
        self.knocks: dict[int, list[int]] = {slot: [] for slot in table}
        self.met: dict[tuple[int, int], int] = {}
        self.published = 0

    def round(self) -> float:
        """One departure of everybody, but for those that are lost; the disagreement after it."""
        self.held += self.rng.standard_normal(self.held.shape)
        for slot in self.rng.permutation(len(self.table)).tolist():
            if self.rng.random() >= self.lost:
                self.depart(slot)
        return float(np.sqrt(((self.held - self.held.mean(0)) ** 2).mean()))

    def depart(self, slot: int) -> None:
        if self.knocks[slot]:
            self.meet(slot, self.knocks[slot][0])
        elif slot not in self.said:
            last = {other: self.met.get((min(slot, other), max(slot, other)), -1) for other in self.table[slot]}
            other = min(self.table[slot], key=lambda each: (last[each], (slot ^ each).bit_length()))
            self.said[slot] = other, self.held[slot].copy()
            self.knocks[other].append(slot)
            self.published += 1

    def meet(self, slot: int, other: int) -> None:
        self.knocks[slot].remove(other)
        _, said = self.said.pop(other)
        mean = (self.held[slot] + said) / 2
        self.held[other] += mean - said
        self.held[slot] = mean
        self.met[min(slot, other), max(slot, other)] = len(self.met) + self.published
        self.published += 1


def measure(way: str, count: int, lost: float, seeds: int) -> dict[str, float]:
    apart, published = [], []
    for seed in range(seeds):
        islands = Islands(WAYS[way](count), lost, seed)
        apart.append(np.mean([islands.round() for _ in range(ROUNDS)][ROUNDS // 2 :]))
        published.append(islands.published / (ROUNDS * count))
    most = max(map(len, WAYS[way](count).values()))
    return {"disagreement": float(np.mean(apart)), "published": float(np.mean(published)), "partners": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--islands", type=int, nargs="+", default=[3, 5, 6, 7, 8, 9, 12, 16, 33, 64])
    parser.add_argument("--lost", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    for lost in args.lost:
        print(f"{lost:.0%} of departures lost: disagreement (published, partners)")
        for count in args.islands:
            found = {way: measure(way, count, lost, args.seeds) for way in WAYS}
            cells = (
                f"{way} {f['disagreement']:.2f} ({f['published']:.2f}, {f['partners']})" for way, f in found.items()
            )
            print(f"  {count:2d} islands: " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
