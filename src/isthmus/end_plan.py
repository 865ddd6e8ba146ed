"""How a run ends: which meetings, in which order, bring all islands to the same bits. Pure.

A meeting of the end carries slow weights as they are, in fp32 and without a reference, and both ends take the mean by
mass, the lower slot's term first. So islands that have met along all dimensions of a hypercube hold the same bits:
whoever sums the same two halves, sums the same two tensors in the same order. Islands beyond a power of two first hand
their mass to one within it, and take the outcome from there. Where some cannot reach each other, the mass goes up a
tree of those that can, and the outcome down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from isthmus.terms import EndPlan, EndStep, Standing

MAX_SLOTS = 64
"""Plan numbers leave room for so many authors ..."""

MAX_INCARNATIONS = 2**31
"""... and so many starts of each."""


def next_number(known: Sequence[int], slot: int, incarnation: int = 0) -> int:
    """A plan number above all known ones, which no other island would choose, nor this one after a restart."""
    starts = MAX_SLOTS * MAX_INCARNATIONS
    return (max(known, default=0) // starts + 1) * starts + incarnation % MAX_INCARNATIONS * MAX_SLOTS + slot


def plan_end(
    standings: Mapping[str, Standing], slots: Mapping[str, int], *, run: str, author: str, number: int
) -> EndPlan | None:
    """The plan for the islands that stand at the end; None where they are not all connected.

    If one of them holds the outcome of an earlier plan whole, all take that: of several the one with the newest vote,
    for only that can be what a majority has voted for. Otherwise their weights are merged.

    Args:
        standings: The newest word of every island that takes part.
        slots: Slot of every island of the run.
        run: The run's hash.
        author: Who makes the plan.
        number: Its number.
    """
    members = sorted(standings, key=slots.__getitem__)
    base, held = max((each.vote, each.result) for each in standings.values())
    links = reachable(standings)
    if held:
        holders = [name for name in members if standings[name].result == held]
        tree = list(_spread(holders, members, links))
        if len(tree) < len(members) - len(holders):
            return None
        steps = [_step(source, target, 1, 0, slots) for source, target in tree]
    else:
        masses = {name: standings[name].mass for name in members}
        if not sum(masses.values()):
            masses = dict.fromkeys(members, 1)
        butterfly = [*_butterfly(members, masses, slots)]
        steps = butterfly
        if not all(each.high in links[each.low] for each in butterfly):
            tree = list(_spread(members[:1], members, links))
            if len(tree) < len(members) - 1:
                return None
            steps = [*_up_and_down(tree, masses, slots)]
    return EndPlan(
        run=run,
        number=number,
        author=author,
        members=tuple(members),
        steps=tuple(steps),
        result=held or number,
        base=base,
        binding=2 * len(members) > len(slots),
    )


def unwanted(standings: Mapping[str, Standing], author: str) -> set[str]:
    """Those that can be reached, but only over islands that take nothing from them."""
    if not any(each.shuns for each in standings.values()):
        return set()
    return _joined(author, reachable(standings, all_meet=True)) - _joined(author, reachable(standings))


def _joined(author: str, links: Mapping[str, set[str]]) -> set[str]:
    """All that an island can reach, over others or not."""
    joined, fresh = {author}, [author]
    while fresh:
        more = links[fresh.pop()] - joined
        joined |= more
        fresh += more
    return joined


def reachable(standings: Mapping[str, Standing], *, all_meet: bool = False) -> dict[str, set[str]]:
    """Whom each can meet: one of the two has reached the other, and both would take what the other publishes.

    ``all_meet`` leaves that last aside.
    """
    links: dict[str, set[str]] = {name: set() for name in standings}
    for name, standing in standings.items():
        for other in standing.reach:
            shun = not all_meet and other in links and (other in standing.shuns or name in standings[other].shuns)
            if other in links and other != name and not shun:
                links[name].add(other)
                links[other].add(name)
    return links


def _butterfly(members: Sequence[str], masses: Mapping[str, int], slots: Mapping[str, int]) -> Iterator[EndStep]:
    """All that is summed along a hypercube of the first members, a power of two; the rest before and after."""
    inner = 1 << (len(members).bit_length() - 1)
    mass = [masses[name] for name in members]
    for place in range(inner, len(members)):
        yield _step(members[place - inner], members[place], mass[place - inner], mass[place], slots)
        mass[place - inner] += mass[place]
    for dimension in range(inner.bit_length() - 1):
        bit = 1 << dimension
        for place in range(inner):
            if not place & bit:
                yield _step(members[place], members[place | bit], mass[place], mass[place | bit], slots)
        mass[:inner] = [mass[place] + mass[place ^ bit] for place in range(inner)]
    for place in range(inner, len(members)):
        yield _step(members[place - inner], members[place], 1, 0, slots)


def _up_and_down(
    tree: Sequence[tuple[str, str]], masses: Mapping[str, int], slots: Mapping[str, int]
) -> Iterator[EndStep]:
    """Mass goes up a tree of (parent, child), leaves first, and the outcome down."""
    mass = dict(masses)
    for parent, child in reversed(tree):
        yield _step(parent, child, mass[parent], mass[child], slots)
        mass[parent] += mass[child]
    for parent, child in tree:
        yield _step(parent, child, 1, 0, slots)


def _spread(sources: Sequence[str], members: Sequence[str], links: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Who gives to whom, so that all members come to have what sources have: those that have, give in turn."""
    having, wanting = list(sources), [name for name in members if name not in sources]
    while wanting:
        given = []
        for giver in having:
            taker = next((name for name in wanting if name in links[giver]), None)
            if taker is not None:
                wanting.remove(taker)
                given.append(taker)
                yield giver, taker
        if not given:
            return
        having += given


def _step(one: str, other: str, one_mass: int, other_mass: int, slots: Mapping[str, int]) -> EndStep:
    if not one_mass and not other_mass:  # somebody must say something
        one_mass = 1
    if slots[one] < slots[other]:
        return EndStep(low=one, high=other, low_mass=one_mass, high_mass=other_mass)
    return EndStep(low=other, high=one, low_mass=other_mass, high_mass=one_mass)
