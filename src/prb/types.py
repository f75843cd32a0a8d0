"""The nouns of the project. Small, frozen, and shaped so that the wrong thing cannot be written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from prb.hashing import text_digest

Role = Literal["system", "user", "assistant"]


class Post(NamedTuple):
    """One item of a user's history."""

    id: str
    category: str
    text: str


class Choice(NamedTuple):
    """A past preference of a user: which of two answers to a question they preferred."""

    question: str
    chosen: str
    rejected: str


class Turn(NamedTuple):
    """One message of a conversation."""

    role: Role
    text: str


NO_EVIDENCE = "no-evidence"
"""Tier of rows on which no history bears: a model should be indifferent, so they count in no accuracy."""
RESTRAINT = "restraint"
"""Tier, or its part before a slash, of rows that the user's history must not decide: `restraint/fact`."""


def is_restraint(tier: str | None) -> bool:
    return tier is not None and tier.partition("/")[0] == RESTRAINT


class Aspect(NamedTuple):
    """One line of a user's rubric. Hidden from reward models."""

    aspect: str
    evidence: str = ""
    reason: str = ""
    weight: float = 1.0
    """How much it counts in the score of an answer."""
    negative: bool = False
    """It counts against an answer in which it is present."""
    required: bool = False
    """An answer that misses it altogether scores 0."""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """From a row's `rubric_aspects`, checked."""
        aspect = cls(row["aspect"], row.get("evidence") or "", row.get("reason") or "")
        if row.keys() <= {"aspect", "evidence", "reason"}:  # as nearly all are
            return aspect
        weight, required = float(row.get("weight", 1)), bool(row.get("required", False))
        return aspect._replace(weight=weight, negative=row.get("polarity") == "negative", required=required)

    def as_row(self) -> dict[str, Any]:
        """What `read` reads; how it counts only where that is not as usual."""
        row: dict[str, Any] = {"aspect": self.aspect, "evidence": self.evidence, "reason": self.reason}
        row |= {"weight": self.weight} if self.weight != 1 else {}
        row |= {"polarity": "negative"} if self.negative else {}
        return row | ({"required": True} if self.required else {})

    def mapped(self, change: Callable[[str], str]) -> Self:
        """With its texts changed."""
        aspect, evidence, reason = map(change, (self.aspect, self.evidence, self.reason))
        return self._replace(aspect=aspect, evidence=evidence, reason=reason)

    @property
    def label(self) -> str:
        """The aspect with how it counts, where that is not as usual."""
        counts = [f"×{self.weight:g}"] if self.weight != 1 else []
        counts += ["required"] if self.required else []
        name = f"avoid {self.aspect}" if self.negative else self.aspect
        return f"{name} ({', '.join(counts)})" if counts else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """All that a reward model may see. It has no rubric and no narrative; only `oracle` shows the rubric, as `plan`."""

    question: str
    """The message to be answered."""
    user: str | None = None
    """Whose history this is; `None` where the model is told nothing about the user."""
    context: tuple[Turn, ...] = ()
    """The turns before the question."""
    posts: tuple[Post, ...] = ()
    choices: tuple[Choice, ...] = ()
    """What the user preferred before, newest last."""
    plan: tuple[str, ...] = ()
    """What this user probably wants, one aspect per entry: inferred (`plan`) or the true rubric (`oracle`)."""

    @property
    def blind(self) -> Query:
        """The conversation alone, as condition `none` shows it."""
        return Query(question=self.question, context=self.context)

    @property
    def about_user(self) -> bool:
        return bool(self.posts or self.choices or self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What pairs and ratings have in common."""

    id: str
    user: str
    question: str
    profile: Sequence[Post]
    context: tuple[Turn, ...] = ()
    choices: tuple[Choice, ...] = ()
    category: str = ""
    rubric: tuple[Aspect, ...] = ()
    split: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(_Row):
    """A user's question with good answers, some of which follow that user's rubric: usually one of two."""

    answers: tuple[str, ...]
    """The right ones first."""
    n_best: int = 1
    """How many of the answers are right."""
    narrative: str = ""
    tier: str | None = None
    mirror: str | None = None
    """Id of the twin row: the same question and answers under another user, labels swapped."""
    topic: str | None = None
    drift: bool = False

    @property
    def chosen(self) -> str:
        """The right answer, or the first of them."""
        return self.answers[0]

    @property
    def rejected(self) -> str:
        """The wrong answer, or the first of them."""
        return self.answers[self.n_best]

    @property
    def contrast(self) -> tuple[str, str]:
        """A right and a wrong answer, for whatever looks at two."""
        return self.chosen, self.rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating(_Row):
    """A user's own score, 0 to 1, of one answer."""

    answer: str
    rating: float

    @property
    def answers(self) -> tuple[str]:
        return (self.answer,)


Item = Pair | Rating


def writable(text: str) -> str:
    """The text as a file can hold it: a lone surrogate, left by a token limit or sent by a server, becomes `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_HIDDEN = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """Control and direction characters replaced by their codes, so that no text can hide or reorder what is on a page,
    or control a terminal."""
    return text if text.isprintable() else _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


FailureKind = Literal["row", "transient", "fatal", "budget", "unmeasured"]
"""What failed: this row; the endpoint for now; the endpoint for good (wrong key, unknown model, connection refused); or
nothing: the budget was used up before the row was asked, or the row cannot be measured (no rubric to show, no score
recorded under this condition, a row of the model's own training data). The last kind never counts as a failure."""
UNMEASURED: FailureKind = "unmeasured"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no score. A reason, never a number."""

    reason: str
    detail: str = ""
    prompt_tokens: int = field(default=0, compare=False)
    completion_tokens: int = field(default=0, compare=False)
    cost: float = field(default=0.0, compare=False)
    """What was charged anyway, as for a reply that is empty or refused."""
    kind: FailureKind = field(default="row", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", writable(self.reason))
        object.__setattr__(self, "detail", writable(self.detail))

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def parse(cls, text: str, kind: FailureKind | None = None) -> Self:
        """From its text, as files hold it; `kind` is `row` unless they say otherwise."""
        reason, _, detail = text.partition(": ")
        return cls(reason, detail, kind=kind or "row")

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Reward(float):
    """A score with its cost. Models that track no cost return a plain float."""

    __slots__ = ("cost", "cut", "spoken", "text", "tokens")

    def __new__(
        cls, value: float, *, tokens: int = 0, spoken: int = 0, cut: int = 0, cost: float = 0.0, text: str = ""
    ) -> Self:
        reward = super().__new__(cls, value)
        reward.tokens, reward.spoken, reward.cut, reward.cost = tokens, spoken, cut, cost
        reward.text = writable(text)
        return reward

    tokens: int
    """Prompt and completion together."""
    spoken: int
    """Of these, those of the answer itself."""
    cut: int
    cost: float
    text: str


Winner = Literal["first", "second", "tie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which of two answers a comparer prefers."""

    choice: Winner
    log_odds: float | None = None
    """Of the first answer against the second, where a model reports probabilities."""
    tokens: int = 0
    cut: int = 0
    cost: float = 0.0
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", writable(self.text))


class Ask(NamedTuple):
    query: Query
    answer: str


class Duel(NamedTuple):
    query: Query
    first: str
    second: str


@runtime_checkable
class Scorer(Protocol):
    """A reward model that gives each answer a number; higher is better for this user."""

    @property
    def fingerprint(self) -> str: ...

    def score(self, asks: Sequence[Ask]) -> Sequence[float | Failure]: ...


@runtime_checkable
class Comparer(Protocol):
    """A reward model that only says which of two answers is better for this user."""

    @property
    def fingerprint(self) -> str: ...

    def prefer(self, duels: Sequence[Duel]) -> Sequence[Verdict | Failure]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Scores or verdicts that a row was given elsewhere, in the form an `Outcome` has them."""

    scores: tuple[float | None, ...] = ()
    verdicts: tuple[Winner | None, ...] = ()
    log_odds: tuple[float | None, ...] = ()
    tokens: int = 0
    cost: float = 0.0
    text: tuple[str, ...] = ()


@runtime_checkable
class Recorded(Protocol):
    """Scores or verdicts that were given elsewhere. They are looked up by row, so no query is needed."""

    @property
    def fingerprint(self) -> str: ...

    def recall(self, pair: str, condition: str) -> Record | Failure: ...


RewardModel = Scorer | Comparer | Recorded
"""What can be evaluated."""


def is_remote(reader: object) -> bool:
    """Whether texts leave the machine; models, planners and graders that send them have `remote = True`."""
    return bool(getattr(reader, "remote", False))


@dataclass(frozen=True)
class TrainedOn:
    """Rows and users that a model was fitted on, by digests of their content, so that new ids do not hide them."""

    rows: frozenset[str] = frozenset()
    """Question and answers, whichever is right: a twin of a row gives its answers away."""
    users: frozenset[str] = frozenset()
    """Name and oldest post: in other data the same name is usually someone else's."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> Self:
        digests = [_training_digests(item) for item in items]
        return cls(frozenset(row for row, _ in digests), frozenset(user for _, user in digests))

    @classmethod
    def read(cls, card: object) -> Self:
        """From the card of a trained model; empty where the card names none."""
        lists = card.get("trained_on") if isinstance(card, Mapping) else None
        digests = [lists.get(name) if isinstance(lists, Mapping) else None for name in ("rows", "users")]
        return cls(*(frozenset(map(str, names)) if isinstance(names, list) else frozenset() for names in digests))

    def as_card(self) -> dict[str, list[str]]:
        return {"rows": sorted(self.rows), "users": sorted(self.users)}

    def seen(self, item: Item) -> Literal["row", "user"] | None:
        if not self.rows and not self.users:
            return None
        row, user = _training_digests(item)
        return "row" if row in self.rows else "user" if user in self.users else None


def _training_digests(item: Item) -> tuple[str, str]:
    oldest = item.profile[0].text if len(item.profile) else ""
    return text_digest(item.question, *sorted(item.answers)), text_digest(item.user, oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One line of a run: the result of one model on one item under one condition."""

    pair: str
    user: str
    cluster: str
    model: str
    condition: str
    scores: tuple[float | None, ...] | None = None
    """From a scorer: one number per answer, right ones first; `None` where it failed."""
    verdicts: tuple[str | None, ...] | None = None
    """From a comparer: two verdicts per right-wrong pair, with the right answer shown first, then second."""
    log_odds: tuple[float | None, ...] | None = None
    """From a comparer that reports probabilities: of the answer shown first, one per verdict."""
    credit: float | None = None
    """1 won, 0.5 tied, 0 lost; `None` is a failure, not a loss, or a row without a right answer (`NO_EVIDENCE`)."""
    margin: float | None = None
    failure: str | None = None
    failure_kind: FailureKind | None = None
    """Whether the row or its endpoint failed; `None` where nothing did."""
    post_ids: tuple[str, ...] = ()
    """The posts the model saw, in the order it saw them."""
    choices: tuple[int, ...] = ()
    """The past choices the model saw, as positions in the user's list of them."""
    leaks: int = 0
    """Past choices that were removed because they are about this question or have one of its answers."""
    plan: tuple[str, ...] = ()
    """What was inferred about the user, under condition `plan`."""
    cut: int = 0
    """Posts and choices that `--budget` left out, and parts cut to fit the model."""
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    text: tuple[str, ...] = ()
    """What a generative model wrote, one entry per call."""
    seen: Literal["row", "user"] | None = None
    """Whether the model was trained on this row, or on another row of its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its uncertainty and what it rests on."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    failed: int = 0
    ties: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean difference of two columns on the rows that both answered, and its test."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    n: int = 0
    dropped: int = 0
    """Rows that failed on either side."""
    test: str = "none"
    smallest_detectable: float | None = None
    """The true difference that 80 % of repetitions would find significant at the 5 % level; with too few clusters
    there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested(Estimate):
    """An estimate with the p of its test."""

    p: float | None
    p_holm: float | None = None
    """Corrected over what it is shown with."""
    test: str
