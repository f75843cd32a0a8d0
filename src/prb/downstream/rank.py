"""The N answers to a query as one reward model orders them: scores, or win rates of a round robin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from prb.errors import BadInput
from prb.evaluation.score import CREDIT, LARGEST
from prb.stats.best_of import meetings, win_rates
from prb.types import Ask, Comparer, Duel, Failure, Query, Reward, RewardModel, Scorer, Verdict

T = TypeVar("T")
MOST_COMPARED = 16
"""A round robin of 16 takes 240 verdicts a query; beyond it a comparer is refused."""


class Answers(NamedTuple):
    """The samples of one pair, in order, and the query that a model is shown with them."""

    pair: str
    query: Query | Failure
    texts: Sequence[str]


class Task(NamedTuple):
    """What is asked about one query: each distinct answer once."""

    query: Query
    texts: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One line of `scores.jsonl`."""

    model: str
    pair: str
    n: int
    score: float | None
    """A reward, or of a comparer the share of its meetings won."""
    failure: str | None = None
    cut: int = 0
    """Posts that did not fit the model."""
    tokens: int = 0
    cost: float = 0.0


def score(name: str, model: RewardModel, batch: Sequence[Answers]) -> list[Score]:
    """A line for each sample of each pair, all pairs in one call; equal texts are asked about once and tie exactly."""
    asked = {a.pair: Task(a.query, list(dict.fromkeys(a.texts))) for a in batch if isinstance(a.query, Query)}
    tasks = list(asked.values())
    said = _rewards(model, tasks) if isinstance(model, Scorer) else _win_rates(model, tasks)
    found = {
        pair: dict(zip(task.texts, own, strict=True)) for (pair, task), own in zip(asked.items(), said, strict=True)
    }
    return [line for answers in batch for line in _lines(name, answers, found.get(answers.pair))]


def require(name: str, model: RewardModel, n: int) -> None:
    """A reward model, and not one that n answers are too many for."""
    if isinstance(model, Scorer):
        return
    if not isinstance(model, Comparer):
        raise BadInput(f"{name!r} is no reward model: it has neither score() nor prefer()")
    if n > MOST_COMPARED:
        verdicts = f"{n * (n - 1)} verdicts a query"
        raise BadInput(
            f"{name!r} only compares answers: --n {n} would take {verdicts}; use --n {MOST_COMPARED} or less"
        )


def _rewards(model: Scorer, tasks: Sequence[Task]) -> list[list[float | Failure]]:
    asks = [Ask(task.query, text) for task in tasks for text in task.texts]
    said = iter(_all_of(asks, model.score(asks)))
    return [[_finite(next(said)) for _ in task.texts] for task in tasks]


def _win_rates(model: Comparer, tasks: Sequence[Task]) -> list[list[float | Failure]]:
    duels = [Duel(query, texts[i], texts[j]) for query, texts in tasks for i, j in meetings(len(texts))]
    said = iter(_all_of(duels, model.prefer(duels)))
    return [_one_robin(len(task.texts), [next(said) for _ in meetings(len(task.texts))]) for task in tasks]


def _one_robin(n: int, verdicts: Sequence[Verdict | Failure]) -> list[float | Failure]:
    """Without one of its verdicts a round robin has no winner; what it cost is booked on the first."""
    sound = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    failed = [verdict for verdict in verdicts if isinstance(verdict, Failure)]
    tokens, cost = sum(v.tokens for v in sound), sum(v.cost for v in verdicts)
    if failed:
        tokens += sum(f.prompt_tokens + f.completion_tokens for f in failed)
        why = replace(failed[0], prompt_tokens=0, completion_tokens=0, cost=0.0)
        return [replace(why, prompt_tokens=tokens, cost=cost), *[why] * (n - 1)]
    rates = win_rates(n, [CREDIT[verdict.choice] for verdict in sound])
    return [Reward(rates[0], tokens=tokens, cost=cost, cut=max([v.cut for v in sound], default=0)), *rates[1:]]


def _lines(name: str, answers: Answers, said: Mapping[str, float | Failure] | None) -> Iterator[Score]:
    booked: set[str] = set()
    for n, text in enumerate(answers.texts):
        if said is None:
            yield Score(model=name, pair=answers.pair, n=n, score=None, failure=str(answers.query))
        else:
            yield _line(name, answers.pair, n, said[text], again=text in booked)
        booked.add(text)


def _line(name: str, pair: str, n: int, said: float | Failure, *, again: bool) -> Score:
    if isinstance(said, Failure):
        tokens, cost = (0, 0.0) if again else (said.prompt_tokens + said.completion_tokens, said.cost)
        return Score(model=name, pair=pair, n=n, score=None, failure=str(said), tokens=tokens, cost=cost)
    if again or not isinstance(said, Reward):
        return Score(model=name, pair=pair, n=n, score=float(said))
    return Score(model=name, pair=pair, n=n, score=float(said), cut=said.cut, tokens=said.tokens, cost=said.cost)


def _finite(reward: float | Failure) -> float | Failure:
    if isinstance(reward, Failure) or abs(reward) <= LARGEST:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))


def _all_of(asked: Sequence[object], said: Sequence[T]) -> Sequence[T]:
    if len(said) != len(asked):
        raise RuntimeError(f"the model gave {len(said)} answers to {len(asked)} questions")
    return said
