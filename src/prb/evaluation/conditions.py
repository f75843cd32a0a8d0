"""Conditions: how a pair becomes a query. Nothing, the user's history, a plan, another user's history, the true rubric.

The conversation before the question is part of every condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, Self

from prb.config import Condition, Donors, HistoryKind, UserConfig
from prb.data.load import Dataset, History, Users
from prb.data.retrieve import Ranker, leaking_choices, ranker, top_choices, top_posts
from prb.evaluation.planners import Plan, Planner, plan_all
from prb.hashing import draw
from prb.text.pii import mask_query
from prb.types import UNMEASURED, Failure, Item, Query, TrainedOn

NO_DONOR, NO_RUBRIC = "no other user to borrow a history from", "no rubric to show"
TRAINED = "the model was trained on this row"
NOTHING = TrainedOn()


@dataclass(frozen=True)
class Built:
    """A query, and what was left out of it."""

    query: Query
    cut: int = 0
    """Posts and choices that did not fit a token budget."""
    choices: tuple[int, ...] = ()
    """Which past choices are shown, as positions in the user's list of them."""
    leaks: int = 0
    """Past choices that would have given the label away."""
    seen: Literal["row", "user"] | None = None
    """Whether the model was trained on this row, or on another row of its user."""


@dataclass(frozen=True, kw_only=True)
class QueryBuilder:
    """Turns items into queries; the only code that may put a rubric into a query, and only for `oracle`."""

    rank: Ranker
    planner: Planner
    users: Users
    k: int
    k_choices: int = 8
    history: HistoryKind = "both"
    budget: int | None = None
    seed: int = 0
    donors: Donors = "matched"
    mask: bool = False
    mask_for_planner: bool = False
    """Apart from `mask`, so that every model of a run is shown the same plan."""
    trained_on: TrainedOn = NOTHING
    """What the model was fitted on."""
    count_trained: bool = False
    """Whether rows that it was fitted on are measured all the same."""

    @classmethod
    def of(
        cls,
        config: UserConfig,
        dataset: Dataset,
        planner: Planner,
        *,
        reader: object,
        seed: int,
        trained_on: TrainedOn = NOTHING,
        count_trained: bool = False,
    ) -> Self:
        """The builder of a run for one `reader`: a model, a policy or a grader."""
        return cls(
            trained_on=trained_on,
            count_trained=count_trained,
            rank=ranker(config.ranker),
            planner=planner,
            users=dataset.users,
            k=config.k,
            k_choices=config.k_choices,
            history=config.history,
            budget=config.budget,
            seed=seed,
            donors=config.donors,
            mask=config.masks(reader),
            mask_for_planner=config.masks(planner),
        )

    def build(self, item: Item, condition: Condition, plan: Plan | Failure | None = None) -> Built | Failure:
        """`plan` is what `plans` or an earlier process inferred for condition `plan`; without it the planner runs."""
        seen = self.trained_on.seen(item)
        if seen == "row" and not self.count_trained:
            return Failure(TRAINED, kind=UNMEASURED)
        built = self._build(item, condition, plan)
        if isinstance(built, Failure):
            return built
        return replace(built, seen=seen, query=mask_query(built.query) if self.mask else built.query)

    def plans(self, items: Sequence[Item]) -> dict[str, Plan | Failure]:
        """What the planner infers for each item, asked for all at once: many planners are a network away."""
        asks = [self._whole_history(item) for item in items]
        if self.mask_for_planner:
            asks = list(map(mask_query, asks))
        return dict(zip([item.id for item in items], plan_all(self.planner, asks), strict=True))

    def _whole_history(self, item: Item) -> Query:
        """All that a planner may see; it picks what it needs."""
        posts, choices = self._of_kind(History(item.profile, item.choices))
        leaks = leaking_choices(item.question, item.answers, choices)
        return Query(
            question=item.question,
            user=item.user,
            context=item.context,
            posts=tuple(posts),
            choices=tuple(choice for n, choice in enumerate(choices) if n not in leaks),
        )

    def _build(self, item: Item, condition: Condition, plan: Plan | Failure | None) -> Built | Failure:
        match condition:
            case "none":
                return Built(Query(question=item.question, context=item.context))
            case "profile":
                return self._with_history(item, item.user, History(item.profile, item.choices))
            case "shuffled":
                donor = pick_donor(item, self.users, self.seed, self.donors, self.history)
                if donor is None:
                    return Failure(NO_DONOR, kind=UNMEASURED)
                return self._with_history(item, donor, self.users.history(donor))
            case "plan":
                return _with_plan(item, self.plans([item])[item.id] if plan is None else plan)
            case "oracle":
                return _with_plan(item, true_plan(item) if item.rubric else Failure(NO_RUBRIC, kind=UNMEASURED))

    def _with_history(self, item: Item, user: str, history: History) -> Built:
        posts, choices = self._of_kind(history)
        top = top_posts(item.question, posts, self.rank, k=self.k, budget=self.budget)
        chosen = top_choices(item.question, item.answers, choices, self.rank, k=self.k_choices, budget=self.budget)
        query = Query(
            question=item.question,
            user=user,
            context=item.context,
            posts=top.posts,
            choices=tuple(choices[n] for n in chosen.positions),
        )
        return Built(query, top.cut + chosen.cut, chosen.positions, chosen.leaks)

    def _of_kind(self, history: History) -> History:
        return History(
            history.posts if self.history != "choices" else (), history.choices if self.history != "posts" else ()
        )


def applicable(conditions: Sequence[Condition], dataset: Dataset) -> tuple[Condition, ...]:
    """Those that apply to at least one row: `shuffled` needs a second user, `oracle` a rubric."""
    applies = {"shuffled": lambda: len(dataset.users.names) > 1, "oracle": lambda: any(i.rubric for i in dataset)}
    return tuple(c for c in conditions if applies.get(c, lambda: True)())


def _with_plan(item: Item, plan: Plan | Failure) -> Built | Failure:
    if isinstance(plan, Failure):
        return plan
    return Built(Query(question=item.question, user=item.user, context=item.context, plan=plan))


def true_plan(item: Item) -> Plan:
    return tuple(f"{a.aspect}: {a.reason}" if a.reason else a.aspect for a in item.rubric)


def pick_donor(
    item: Item, users: Users, seed: int, donors: Donors = "matched", history: HistoryKind = "both"
) -> str | None:
    """A fixed other user for each item, by hash, from the whole split and outside the item's cluster if possible.

    A matched donor asks about the item's topic, else within its category: a history about something else would lose to
    the user's own for being off topic, whoever wrote it. Nobody lends the very history that the item has itself.
    """
    cluster = users.cluster(item.user)

    def pick(names: Sequence[str], same_cluster: bool) -> str | None:
        def fits(name: str) -> bool:
            return (same_cluster or users.cluster(name) != cluster) and users.may_lend(name, item, history)

        if not any(map(fits, names)):
            return None
        return next(filter(fits, (names[draw(seed, attempt, item.id) % len(names)] for attempt in count())))

    for pool in (*(users.asking_about(item) if donors == "matched" else ()), users.names):
        if donor := pick(pool, same_cluster=False):
            return donor
    return pick(users.names, same_cluster=True)
