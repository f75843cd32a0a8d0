"""Conditions: how a pair becomes a query. Nothing, the user's posts, a plan, another user's posts, the true rubric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Self

from prb.config import Condition, Donors, UserConfig
from prb.data.load import Dataset, Users
from prb.data.retrieve import Ranker, ranker, top_posts
from prb.evaluation.planners import Plan, PlanAsk, Planner, plan_all
from prb.hashing import draw
from prb.text.pii import mask, mask_query
from prb.types import Failure, Item, Post, Query


@dataclass(frozen=True)
class Built:
    """A query, and how many posts a token budget left out."""

    query: Query
    cut: int = 0


@dataclass(frozen=True, kw_only=True)
class QueryBuilder:
    """Turns items into queries; the only code that reads a rubric, and only for `oracle`."""

    rank: Ranker
    planner: Planner
    users: Users
    k: int
    budget: int | None
    seed: int
    donors: Donors = "matched"
    mask: bool = False
    mask_for_planner: bool = False
    """Apart from `mask`, so that every model of a run is shown the same plan."""

    @classmethod
    def of(cls, config: UserConfig, dataset: Dataset, planner: Planner, *, reader: object, seed: int) -> Self:
        """The builder of a run for one `reader`: a model, a policy or a grader."""
        return cls(
            rank=ranker(config.ranker),
            planner=planner,
            users=dataset.users,
            k=config.k,
            budget=config.budget,
            seed=seed,
            donors=config.donors,
            mask=config.masks(reader),
            mask_for_planner=config.masks(planner),
        )

    def build(self, item: Item, condition: Condition, plan: Plan | Failure | None = None) -> Built | Failure:
        """`plan` is what `plans` or an earlier process found for condition `plan`; without it the planner is asked."""
        built = self._build(item, condition, plan)
        if self.mask and isinstance(built, Built):
            return Built(mask_query(built.query), built.cut)
        return built

    def plans(self, items: Sequence[Item]) -> dict[str, Plan | Failure]:
        """What the planner infers for each item, asked for all at once: many planners are a network away."""
        if self.mask_for_planner:
            asks = [PlanAsk(mask(i.question), [p._replace(text=mask(p.text)) for p in i.profile]) for i in items]
        else:
            asks = [PlanAsk(item.question, item.profile) for item in items]
        return dict(zip([item.id for item in items], plan_all(self.planner, asks), strict=True))

    def _build(self, item: Item, condition: Condition, plan: Plan | Failure | None) -> Built | Failure:
        match condition:
            case "none":
                return Built(Query(question=item.question))
            case "profile":
                return self._with_posts(item.question, item.user, item.profile)
            case "shuffled":
                donor = pick_donor(item, self.users, self.seed, self.donors)
                if donor is None:
                    return Failure("no other user to borrow a profile from")
                return self._with_posts(item.question, donor, self.users.posts(donor))
            case "plan":
                return _with_plan(item, self.plans([item])[item.id] if plan is None else plan)
            case "oracle":
                return _with_plan(item, true_plan(item) if item.rubric else Failure("no rubric to show"))

    def _with_posts(self, question: str, user: str, posts: Sequence[Post]) -> Built:
        top = top_posts(question, posts, self.rank, k=self.k, budget=self.budget)
        return Built(Query(question=question, user=user, posts=top.posts), top.cut)


def _with_plan(item: Item, plan: Plan | Failure) -> Built | Failure:
    return plan if isinstance(plan, Failure) else Built(Query(question=item.question, user=item.user, plan=plan))


def true_plan(item: Item) -> Plan:
    return tuple(f"{a.aspect}: {a.reason}" if a.reason else a.aspect for a in item.rubric)


def pick_donor(item: Item, users: Users, seed: int, donors: Donors = "matched") -> str | None:
    """A fixed other user for each item, by hash, from the whole split and outside the item's cluster if possible.

    A matched donor asks about the item's topic, else within its category: posts about something else would lose to the
    user's posts for being off topic, whoever wrote them.
    """
    cluster = users.cluster(item.user)
    for pool in (*(users.asking_about(item) if donors == "matched" else ()), users.names):
        if any(users.cluster(name) != cluster for name in pool):
            return next(name for name in _draws(item.id, pool, seed) if users.cluster(name) != cluster)
    if any(name != item.user for name in users.names):
        return next(name for name in _draws(item.id, users.names, seed) if name != item.user)
    return None


def _draws(item_id: str, names: Sequence[str], seed: int) -> Iterator[str]:
    for attempt in count():
        yield names[draw(seed, attempt, item_id) % len(names)]
