"""The end of a run of pairs: all islands come to one outcome, bit for bit, or know that they did not. No tensors.

Every island says where it stands, and passes on what it hears. When all stand at the end, or have been waited for long
enough, the lowest slot of those present signs a plan (``end_plan.py``), and its members hold the meetings in it. A
member that is lost on the way is left out of the next plan: each keeps its fast weights as they were, and merges anew.

What the run's outcome is, is decided as in Paxos. A plan is a ballot: a member that follows one goes on with no older
one, and begins its meetings only when it has heard that all members follow. It binds only with more than half of the
run's islands as members. Who then holds its outcome whole votes for it. A plan says the newest vote of its members, and
brings about what that was for; a member with a newer vote for something else does not follow. An outcome is the run's
once more than half of the islands have voted for it in one plan. Promises and votes are saved before they are told.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping

from isthmus.end_plan import next_number, plan_end, unwanted
from isthmus.session.company import Company
from isthmus.session.frozen import EndingState
from isthmus.session.memory import Memory, Plan
from isthmus.session.orders import Order, Restore, Save, Send, Warn
from isthmus.session.trade import Trade
from isthmus.terms import Ending, EndPlan, EndStep, Phase, Standing

MOST_PLANS = 50
"""After so many plans that came to nothing an island ends without the run's outcome."""


class RunEnd:
    """One island at the end of its run.

    Args:
        plan: The settings.
        memory: The island's memory.
        company: The other islands.
        trade: Publishes.
        incarnation: The number of this start.
        outbox: Where orders go.
    """

    def __init__(
        self, plan: Plan, memory: Memory, company: Company, trade: Trade, incarnation: int, *, outbox: list[Order]
    ) -> None:
        self._plan, self._memory, self._company, self._trade = plan, memory, company, trade
        self._outbox, self._incarnation = outbox, incarnation
        self._slots = {**plan.peers, plan.name: plan.slot}
        self._state = EndingState(
            begun_s=None, since_s=0.0, said_at_s=float("-inf"), standings={}, heard_at_s={}, plan=None, signature=b"",
            at=[0 for _ in plan.fragments], outcome=[b"" for _ in plan.fragments],
            merged=False, over=False,
        )  # fmt: skip
        self._news = self._unsaved = False
        self._save_again_s = float("-inf")

    # -- what others may ask -------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether this island has ended, with the run's outcome or without."""
        return self._state.over

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The islands that this one waits for."""
        state = self._state
        if state.plan is None:
            return tuple(sorted(self._coming() - state.standings.keys()))
        partners = {step.other(self._plan.name) for _, _, step in self._open_steps()}
        if not partners:
            partners = {name for name, each in self._present().items() if not _has_voted(each, state.plan)}
        return tuple(sorted(partners - {self._plan.name}))

    # -- what happens --------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, *, over: bool = False) -> None:
        """The training is over, or, where the island is started again, the end itself."""
        state = self._state
        state.begun_s, state.over, state.since_s = now_s, over, now_s

    def hear(self, ending: Ending, now_s: float) -> None:
        """Take in what another island knows."""
        state = self._state
        for name, standing in ending.standings.items():
            known = state.standings.get(name)
            if name == self._plan.name or name not in self._slots or (known and known.number >= standing.number):
                continue
            if known is None or standing.says_more(known):
                self._news = True
            if known is None or _progress(standing) != _progress(known):
                state.since_s = now_s
            state.standings[name], state.heard_at_s[name] = standing, now_s
        if ending.plan is not None:
            self._consider(ending.plan, ending.signature, now_s)

    def met(self, fragment: int, tag: int, reference: bytes, now_s: float) -> None:
        """A meeting of the end was applied."""
        state, plan = self._state, self._state.plan
        steps = self._own_steps()[state.at[fragment] :]
        if plan is None or not steps or plan.tag(steps[0][0]) != tag:
            return
        state.at[fragment] += 1
        state.merged = True
        state.outcome[fragment] = reference
        state.since_s = now_s

    def saved(self, *, stored: bool) -> None:
        """A promise or a vote is on the disk, or could not be written: then it is not told, and tried again."""
        if stored:
            self._unsaved, self._save_again_s = False, float("-inf")

    def step(self, now_s: float) -> None:
        """Do what is to be done now."""
        state = self._state
        if state.begun_s is None:
            return
        if self._trade.cannot_publish:
            self._end_alone()
            return
        for fragment in self._plan.fragments:
            self._trade.close(fragment)
        if self._outbox:
            return
        if state.plan is None:
            waited = now_s - state.begun_s >= self._plan.finish_wait_s
            if not (self._trade.is_quiet or waited or self._memory.end_plan):
                return
        self._say(now_s)
        self._lead(now_s)
        if state.plan is not None and not self._unsaved and self._all_follow(state.plan):
            self._hold_meetings()
            self._vote(state.plan)
            self._say(now_s)
        self._conclude(now_s)
        self._pass_on(now_s)

    # -- standing ------------------------------------------------------------------------------------------------------

    def _say(self, now_s: float) -> None:
        """Say where this island stands, if that is news or was not said for a while."""
        state, memory = self._state, self._memory
        known = state.standings.get(self._plan.name)
        said = Standing(
            number=self._incarnation << 32 | ((known.number if known else 0) + 1) & 0xFFFFFFFF,
            mass=known.mass if known else self._mass(),
            reach=tuple(self._company.living),
            shuns=tuple(sorted(self._plan.peers.keys() - self._company.takers(self._plan.peers))),
            plan=memory.end_plan,
            done=sum(state.at),
            result=memory.end_result,
            vote=memory.end_vote,
            digest=memory.end_digest,
        )
        stale = now_s - state.said_at_s >= self._plan.hello_every_s
        if known is None or said.says_more(known) or stale:
            self._news, state.said_at_s = True, now_s
            state.standings[self._plan.name], state.heard_at_s[self._plan.name] = said, now_s

    def _mass(self) -> int:
        """Tokens of a window as this island trains, and no more than it has trained; none of a newcomer."""
        memory = self._memory
        if not memory.complete or not memory.step:
            return 0
        return min(memory.tokens, round(memory.tokens * self._plan.window_steps / memory.step))

    def _pass_on(self, now_s: float) -> None:
        """Tell what is new, once all that is promised by it is on the disk."""
        if self._unsaved and now_s >= self._save_again_s:
            self._save_again_s = now_s + self._plan.hello_every_s
            self._outbox.append(Save(durable=True))
        if self._news and not self._unsaved:
            self._news, state = False, self._state
            message = Ending(standings=dict(state.standings), plan=state.plan, signature=state.signature)
            self._outbox.extend(Send(peer, message) for peer in self._company.living)

    def _expected(self) -> set[str]:
        """All islands but those that cannot come any more: they have ended and left, or are refused."""
        peers, living = self._memory.peers, set(self._company.living)
        going = {name for name in self._plan.peers if peers[name].phase is not Phase.DONE or name in living}
        return self._company.takers(going) | {self._plan.name}

    def _coming(self) -> set[str]:
        """Those of them that are not away by their windows."""
        return self._expected() - (self._company.away - set(self._company.living))

    def _present(self, now_s: float | None = None) -> dict[str, Standing]:
        """Those that have said where they stand, and not too long ago."""
        state = self._state
        now_s = max(state.heard_at_s.values(), default=0.0) if now_s is None else now_s
        patience_s = max(self._plan.finish_wait_s, 3 * self._plan.hello_every_s)
        able = self._company.takers(state.standings.keys() & self._plan.peers.keys()) | {self._plan.name}
        return {
            name: standing
            for name, standing in state.standings.items()
            if name in able and now_s - state.heard_at_s[name] < patience_s
        }

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _lead(self, now_s: float) -> None:
        """Make a plan, if that is this island's to do and one is needed."""
        state, present = self._state, self._present(now_s)
        for name in unwanted(present, self._plan.name) if self._plan.name in present else ():
            del present[name]
        if min(present, key=self._slots.__getitem__, default="") != self._plan.name:
            return
        waited = now_s - state.since_s >= self._plan.finish_wait_s
        if state.plan is None and not (waited or self._coming() <= present.keys()):
            return
        if state.plan is not None and not self._fails(state.plan, present, waited=waited):
            return
        known = [self._memory.end_plan, *(each.plan for each in state.standings.values())]
        plan = plan_end(
            present,
            self._slots,
            run=self._plan.run,
            author=self._plan.name,
            number=next_number(known, self._plan.slot, self._incarnation),
        )
        if plan is not None and len(plan.members) > 1 and self._allows(plan):
            self._follow(plan, b"", now_s)

    def _fails(self, plan: EndPlan, present: Mapping[str, Standing], *, waited: bool) -> bool:
        """Whether a plan does not bring those that are present to one outcome."""
        if not plan.binding and 2 * len(present) <= len(self._slots):
            return False
        lacking = {name for name, each in present.items() if not _has_voted(each, plan)}
        lost = not set(plan.members) <= present.keys()
        refused = any(each.vote > plan.base and each.result != plan.result for each in present.values())
        outside = not lacking <= set(plan.members)
        return bool(lacking) and (lost or refused or outside or waited)

    def _allows(self, plan: EndPlan) -> bool:
        """Whether this island may follow a plan: it is no older one, and takes its vote into account.

        One that has lost what it held follows no plan that takes it to hold it still.
        """
        memory = self._memory
        only_holds = self._plan.name in plan.members and not plan.of(self._plan.name)
        if only_holds and plan.result != memory.end_result:
            return False
        if plan.number < memory.end_plan:
            return False
        if not memory.end_vote or plan.result == memory.end_result:
            return True
        return plan.binding and memory.end_vote < plan.base and not memory.final

    def _consider(self, plan: EndPlan, signature: bytes, now_s: float) -> None:
        state = self._state
        newer = state.plan is None or plan.number > state.plan.number
        heeded = plan.run == self._plan.run and plan.author in self._company.takers(self._plan.peers)
        if heeded and newer and state.begun_s is not None and self._allows(plan):
            self._follow(plan, signature, now_s)

    def _follow(self, plan: EndPlan, signature: bytes, now_s: float) -> None:
        state, memory = self._state, self._memory
        if memory.end_result != plan.result:
            self._restore()
            memory.end_result, memory.end_vote, memory.end_digest = 0, 0, b""
        memory.end_plan = plan.number
        state.num_plans += 1
        state.plan, state.signature, state.since_s = plan, signature, now_s
        made_it = plan.number in (memory.end_vote, memory.end_result)  # before a restart
        state.at = [len(self._own_steps()) if made_it else 0 for _ in self._plan.fragments]
        self._trade.freeze_meetings(plan.number)
        self._news = self._unsaved = True

    def _all_follow(self, plan: EndPlan) -> bool:
        """Whether all members of a plan have said that they go on with no older one."""
        standings = self._state.standings
        return all(name in standings and standings[name].plan == plan.number for name in plan.members)

    def _vote(self, plan: EndPlan) -> None:
        """Vote for the outcome of a plan that is held whole."""
        memory, outcome = self._memory, self._state.outcome
        if not plan.binding or not self._has_outcome or (memory.end_result, memory.end_vote) == self._voted(plan):
            return
        if memory.end_result != plan.result:
            memory.end_digest = hashlib.sha256(b"".join(outcome)).digest()
        memory.end_result, memory.end_vote = self._voted(plan)
        self._unsaved = True

    def _voted(self, plan: EndPlan) -> tuple[int, int]:
        """Result and vote of this island once it has voted; one that may have forgotten a vote does not."""
        return plan.result, plan.number if self._memory.may_vote else 0

    # -- meetings ------------------------------------------------------------------------------------------------------

    def _own_steps(self) -> tuple[tuple[int, EndStep], ...]:
        return () if self._state.plan is None else self._state.plan.of(self._plan.name)

    def _open_steps(self) -> list[tuple[int, int, EndStep]]:
        """Of each fragment that is not done its number, and the place and meeting that are next."""
        steps, at = self._own_steps(), self._state.at
        return [(fragment, *steps[at[fragment]]) for fragment in self._plan.fragments if at[fragment] < len(steps)]

    @property
    def _has_outcome(self) -> bool:
        """Whether this island holds the outcome of its plan, which it takes part in."""
        plan = self._state.plan
        return plan is not None and self._plan.name in plan.members and not self._open_steps()

    def _hold_meetings(self) -> None:
        plan = self._state.plan
        assert plan is not None
        for fragment, place, step in self._open_steps():
            self._hold(step.other(self._plan.name), fragment, plan.tag(place), step.mass_of(self._plan.name))

    def _hold(self, peer: str, fragment: int, tag: int, mass: int) -> None:
        edge = self._memory.edges[peer][fragment]
        stale = (edge.mine is not None and edge.mine.ending != tag) or (
            edge.theirs is not None and edge.theirs.ending < tag
        )
        if stale:
            self._trade.renew(peer, fragment)
        elif edge.mine is None and edge.open and peer in self._company.living:
            self._trade.publish_at_end(peer, fragment, tag=tag, mass=mass)

    # -- the end of the end --------------------------------------------------------------------------------------------

    def _conclude(self, now_s: float) -> None:
        """End with the run's outcome once most hold it; without it when nobody is left to wait for."""
        state = self._state
        if state.over or self._outbox:
            return
        own = self._memory.end_result
        votes = Counter(
            each.vote
            for name, each in state.standings.items()
            if each.vote and (each.result, each.digest) == (own, self._memory.end_digest)
            if name != self._plan.name or not self._unsaved
        )
        if own and 2 * max(votes.values(), default=0) > len(self._slots):
            self._compare(own)
            self._memory.final.update(self._plan.fragments)
            self._unsaved = state.over = True
            return
        provisional = state.plan is not None and not state.plan.binding and self._has_outcome
        alone = self._expected() == {self._plan.name}
        patience = 1 if state.plan is None and len(self._present(now_s)) == 1 else 3
        waited = now_s - state.since_s >= patience * self._plan.finish_wait_s or state.num_plans > MOST_PLANS
        if provisional or (alone and not own) or waited or self._all_said(now_s):
            self._end_alone(restore=not provisional and not own)

    def _all_said(self, now_s: float) -> bool:
        """Whether all that may still come hold the plan's outcome and have voted, as far as they may."""
        plan, present = self._state.plan, self._present(now_s)
        if plan is None or not plan.binding or self._unsaved:
            return False
        agreed = {name for name, each in present.items() if each.digest == self._memory.end_digest}
        return all(name in agreed and _has_voted(present[name], plan) for name in self._expected())

    def _end_alone(self, *, restore: bool = True) -> None:
        """End with weights that may not be the run's, and let the others go on without this island."""
        if restore:
            self._restore()
        self._state.over, self._state.begun_s = True, None

    def _restore(self) -> None:
        """Let the slow weights be what they were when the end began, if meetings of the end have changed them."""
        if self._state.merged or self._memory.end_result:
            self._outbox.extend(Restore(fragment) for fragment in self._plan.fragments)
        self._state.merged = False

    def _compare(self, result: int) -> None:
        for name, each in self._state.standings.items():
            if each.result == result and each.digest != self._memory.end_digest:
                self._outbox.append(Warn(f"{name} ended the run with other weights than this island", name))

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def freeze(self) -> EndingState:
        """What a restart may forget."""
        return self._state

    def thaw(self, state: EndingState) -> None:
        """Go on from what ``freeze`` gave."""
        self._state = state
        if state.plan is not None:
            self._trade.freeze_meetings(state.plan.number)


def _progress(standing: Standing) -> tuple[int, int, int, int]:
    """What of a standing shows that the end goes on."""
    return standing.plan, standing.done, standing.result, standing.vote


def _has_voted(standing: Standing, plan: EndPlan) -> bool:
    """Whether an island holds a plan's outcome, and has voted for it, if it may."""
    return standing.result == plan.result and standing.vote in (0, plan.number)
