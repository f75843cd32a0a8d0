"""How a person's profile becomes a query: nothing, the right posts, a plan, the wrong person, the true rubric."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from prb.data.people import People
from prb.data.retrieve import Ranker, top_posts
from prb.errors import BadInput
from prb.evaluation.config import Condition
from prb.evaluation.plan import Plan, PlanAsk, Planner, plan_all
from prb.text.pii import mask, mask_query
from prb.types import Failure, Item, Post, Query


@dataclass(frozen=True)
class Asked:
    """A query and what it took to make it."""

    query: Query
    cut: int = 0


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Turns items into queries; the only code that reads a rubric, and only for `oracle`."""

    rank: Ranker
    planner: Planner
    people: People
    k: int
    budget: int | None
    seed: int
    mask: bool = False
    mask_for_planner: bool = False
    """Apart from `mask`, so that every model of a run is shown the same plan."""

    def ask(self, item: Item, condition: Condition, plan: Plan | Failure | None = None) -> Asked | Failure:
        """`plan` is what `plans` or an earlier process found for condition `plan`; without it the planner is asked."""
        asked = self._ask(item, condition, plan)
        if self.mask and isinstance(asked, Asked):
            return Asked(mask_query(asked.query), asked.cut)
        return asked

    def plans(self, items: Sequence[Item]) -> dict[str, Plan | Failure]:
        """What the planner infers for each item, asked for all at once: many planners are a network away."""
        asks = [self._plan_ask(item) for item in items]
        return dict(zip([item.id for item in items], plan_all(self.planner, asks), strict=True))

    def _plan_ask(self, item: Item) -> PlanAsk:
        if not self.mask_for_planner:
            return PlanAsk(item.question, item.profile)
        return PlanAsk(mask(item.question), [post._replace(text=mask(post.text)) for post in item.profile])

    def _ask(self, item: Item, condition: Condition, plan: Plan | Failure | None) -> Asked | Failure:
        match condition:
            case "none":
                return Asked(Query(question=item.question))
            case "profile":
                return self._with_posts(item.question, item.user, item.profile)
            case "shuffled":
                donor = pick_donor(item.id, item.user, self.people, self.seed)
                return self._with_posts(item.question, donor, self.people.posts(donor)) if donor else _NOBODY
            case "plan":
                return _with_plan(item, self.plans([item])[item.id] if plan is None else plan)
            case "oracle":
                return _with_plan(item, true_plan(item) if item.rubric else Failure("no rubric to show"))
        raise BadInput(f"no condition named {condition!r}")

    def _with_posts(self, question: str, user: str, posts: Sequence[Post]) -> Asked:
        chosen = top_posts(question, posts, self.rank, k=self.k, budget=self.budget)
        return Asked(Query(question=question, user=user, posts=chosen.posts), chosen.cut)


_NOBODY = Failure("no other person to borrow a profile from")


def _with_plan(item: Item, plan: Plan | Failure) -> Asked | Failure:
    return plan if isinstance(plan, Failure) else Asked(Query(question=item.question, user=item.user, plan=plan))


def true_plan(item: Item) -> tuple[str, ...]:
    return tuple(f"{a.aspect}: {a.reason}" if a.reason else a.aspect for a in item.rubric)


def pick_donor(item_id: str, user: str, people: People, seed: int) -> str | None:
    """A fixed other person for each item: by hash, from everybody of the split, outside the own cluster if possible."""
    own = people.cluster(user)
    if any(people.cluster(name) != own for name in people.names):
        return next(name for name in _draws(item_id, people, seed) if people.cluster(name) != own)
    if any(name != user for name in people.names):
        return next(name for name in _draws(item_id, people, seed) if name != user)
    return None


def _draws(item_id: str, people: People, seed: int) -> Iterator[str]:
    for attempt in count():
        digest = hashlib.sha256(f"{seed}:{attempt}:{item_id}".encode()).digest()
        yield people.names[int.from_bytes(digest[:8], "big") % len(people.names)]
