"""Conditions: how a pair becomes a query. Nothing, the user's history, a plan, another user's history, the true rubric.

The conversation before the question is part of every condition. To add one: a function with `@condition` here, or a
`Condition` in a package of your own under the entry-point group `prb.conditions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, Self, TypeVar

from prb.config import ConditionName, Donors, HistoryKind, ShownHistory, UserConfig
from prb.data.load import Dataset, History, Users
from prb.data.retrieve import RANKERS, leaking_choices, top_choices, top_posts
from prb.data.votes import quoted_votes
from prb.errors import BadInput
from prb.evaluation.planners import Plan, Planner, infer_plans
from prb.hashing import draw
from prb.summary import CONDITIONS, TRAINED, Condition
from prb.text.pii import mask_query
from prb.types import UNMEASURED, Failure, Item, Query, TrainedOn
from prb.work import Breaker, Call, Replies

NOTHING = TrainedOn()
Build = TypeVar("Build", bound=Callable[..., Any])


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


@dataclass(frozen=True)
class PlannedRow:
    item: Item
    cluster: str
    condition: ConditionName
    built: Built | Failure
    calls: tuple[Call, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What an `Outcome` says of its row."""
        return {"pair": self.item.id, "user": self.item.user, "cluster": self.cluster, "condition": self.condition}


@dataclass(frozen=True, kw_only=True)
class QueryBuilder:
    """Turns items into queries; the only code that may put a rubric into a query, and only for `oracle`."""

    users: Users
    planner: Planner
    shown: ShownHistory
    k: int
    """How many posts are shown."""
    seed: int = 0
    mask: bool = False
    mask_for_planner: bool = False
    """Apart from `mask`, so that every model of a run is shown the same plan."""
    trained_on: TrainedOn = NOTHING
    count_trained: bool = False
    """Whether rows that it was fitted on are measured all the same."""

    @classmethod
    def of(
        cls, config: UserConfig, dataset: Dataset, planner: Planner, *, reader: object, seed: int, **trained: Any
    ) -> Self:
        """The builder of a run for one `reader`: a model, a policy or a grader."""
        return cls(
            users=dataset.users,
            planner=planner,
            shown=config.shown,
            k=config.k,
            seed=seed,
            mask=config.masks(reader),
            mask_for_planner=config.masks(planner),
            **trained,
        )

    def build(self, item: Item, condition: str, plan: Plan | Failure | None = None) -> Built | Failure:
        """`plan` is what `plans` or an earlier process inferred for a `planned` condition; else the planner runs."""
        seen = self.trained_on.seen(item)
        if seen == "row" and not self.count_trained:
            return Failure(TRAINED, kind=UNMEASURED)
        built: Built | Failure = CONDITIONS.call(condition, CONDITIONS[condition].build, self, item, plan)
        if isinstance(built, Failure):
            return built
        if not isinstance(built, Built):
            raise BadInput(f"condition {condition!r} must give a Built or a Failure, not {type(built).__name__}")
        return replace(built, seen=seen, query=mask_query(built.query) if self.mask else built.query)

    def plans(
        self, items: Sequence[Item], replies: Replies | None = None, breaker: Breaker | None = None
    ) -> dict[str, Plan | Failure]:
        """What the planner infers for each item, asked for all at once; with `replies`, only what is not there. It is
        shown the whole history and picks what it needs."""
        asks = []
        for item in items:
            posts, choices = self._of_kind(History(item.profile, item.choices))
            leaks = leaking_choices(item.question, item.answers, choices)
            kept = tuple(choice for n, choice in enumerate(choices) if n not in leaks)
            query = Query(
                question=item.question, user=item.user, context=item.context, posts=tuple(posts), choices=kept
            )
            asks.append(mask_query(query) if self.mask_for_planner else query)
        return dict(zip([item.id for item in items], infer_plans(self.planner, asks, replies, breaker), strict=True))

    def queries(
        self, items: Sequence[Item], condition: str, replies: Replies | None = None, breaker: Breaker | None = None
    ) -> dict[str, Query | Failure]:
        """What is shown of each item, by id."""
        plans = self.plans(items, replies, breaker) if CONDITIONS[condition].planned else {}
        built = {item.id: self.build(item, condition, plans.get(item.id)) for item in items}
        return {id_: made.query if isinstance(made, Built) else made for id_, made in built.items()}

    def with_history(self, item: Item, user: str, history: History) -> Built:
        """The posts and choices of a history that suit the question best."""
        (posts, choices), budget, rank = self._of_kind(history), self.shown.budget, RANKERS[self.shown.ranker]
        leaks = quoted_votes(item.answers)
        posts = [post for post in posts if post.text not in leaks]
        top = top_posts(item.question, posts, rank, k=self.k, budget=budget)
        chosen = top_choices(item.question, item.answers, choices, rank, k=self.shown.choices, budget=budget)
        shown = tuple(choices[n] for n in chosen.positions)
        query = Query(question=item.question, user=user, context=item.context, posts=top.posts, choices=shown)
        return Built(query, top.cut + chosen.cut, chosen.positions, chosen.leaks)

    def _of_kind(self, history: History) -> History:
        kind = self.shown.kind
        return History(history.posts if kind != "choices" else (), history.choices if kind != "posts" else ())


def condition(name: str, shows: str, **about: Any) -> Callable[[Build], Build]:

    def declare(build: Build) -> Build:
        CONDITIONS.add(name, Condition(name=name, shows=shows, build=build, **about))
        return build

    return declare


@condition("none", "the question alone", color="#767f8f", dark="#8f99aa", mark="o")
def none(_: QueryBuilder, item: Item, __: Plan | Failure | None) -> Built:
    return Built(Query(question=item.question, context=item.context))


@condition("profile", "the user's own history", color="#0072b2", dark="#56b4e9", mark="s")
def profile(builder: QueryBuilder, item: Item, _: Plan | Failure | None) -> Built:
    return builder.with_history(item, item.user, History(item.profile, item.choices))


@condition("plan", "what was inferred from the history", planned=True, color="#009e73", dark="#33c19b", mark="^")
def plan(builder: QueryBuilder, item: Item, inferred: Plan | Failure | None) -> Built | Failure:
    aspects = builder.plans([item])[item.id] if inferred is None else inferred
    return aspects if isinstance(aspects, Failure) else _with_plan(item, aspects)


@condition(
    "shuffled",
    "another user's history",
    applies=lambda dataset: len(dataset.users.names) > 1,
    donors=True,
    color="#b8531a",
    dark="#e8945a",
    mark="D",
)
def shuffled(builder: QueryBuilder, item: Item, _: Plan | Failure | None) -> Built | Failure:
    donor = pick_donor(item, builder.users, builder.seed, builder.shown.donors, builder.shown.kind)
    if donor is None:
        return Failure("no other user to borrow a history from", kind=UNMEASURED)
    return builder.with_history(item, donor, builder.users.history(donor))


@condition(
    "oracle",
    "the true rubric",
    applies=lambda dataset: any(item.rubric for item in dataset),
    color="#a3508a",
    dark="#d58ac0",
    mark="v",
)
def oracle(_: QueryBuilder, item: Item, __: Plan | Failure | None) -> Built | Failure:
    return _with_plan(item, true_plan(item)) if item.rubric else Failure("no rubric to show", kind=UNMEASURED)


def true_plan(item: Item) -> Plan:
    return tuple(f"{a.label}: {a.reason}" if a.reason else a.label for a in item.rubric)


def _with_plan(item: Item, aspects: Plan) -> Built:
    return Built(Query(question=item.question, user=item.user, context=item.context, plan=aspects))


def pick_donor(
    item: Item, users: Users, seed: int, donors: Donors = "matched", history: HistoryKind = "both"
) -> str | None:
    """A fixed other user for each item, by hash, from the whole split and outside the item's cluster if possible.

    A matched donor asks about the item's topic, else within its category: a history about something else would lose to
    the user's own for being off topic, whoever wrote it. Nobody lends the very history that the item has itself.
    """
    cluster, topical = users.cluster(item.user), users.asking_about(item) if donors == "matched" else ()

    def fits(name: str, same_cluster: bool) -> bool:
        return (same_cluster or users.cluster(name) != cluster) and users.may_lend(name, item, history)

    for names, same_cluster in (*((pool, False) for pool in topical), (users.names, False), (users.names, True)):
        if any(fits(name, same_cluster) for name in names):
            drawn = (names[draw(seed, attempt, item.id) % len(names)] for attempt in count())
            return next(name for name in drawn if fits(name, same_cluster))
    return None
