"""Asks → rewards: order, slices and the thread that makes tokens ahead of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from prb.engine import answers
from prb.engine.answers import AnswerScorer, Group, group_by_query, in_slices, prefetch
from prb.engine.chat import Text
from prb.types import Ask, Failure, Post, Query, Reward


class Letters:
    """One token per letter."""

    def texts(self, query: Query, answers: Sequence[str]) -> list[Text]:
        prompt = " ".join([*(post.text for post in query.posts), query.question])
        return [
            Text(list(map(ord, prompt + answer)), len(prompt), len(prompt) + len(answer)) for answer in answers
        ]  # fmt: skip


ASKS = [Ask(Query(question=f"q{n % 4}"), "x" * (n % 5)) for n in range(23)]


def scorer(seen: list[int] | None = None) -> AnswerScorer:
    def compute(groups: Sequence[Sequence[Text]]) -> list[list[float]]:
        if seen is not None:
            seen.append(len(groups))
        return [[float(sum(text.ids)) for text in group] for group in groups]

    return AnswerScorer(Letters(), compute, fingerprint="letters", limit=100)


@pytest.mark.parametrize("tokens", [1, 30, 10**6])
def test_slices_change_neither_scores_nor_their_order(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.in_slices, "__defaults__", (tokens,))
    seen: list[int] = []
    found = scorer(seen).score(ASKS)
    assert sum(seen) == 4
    assert len(seen) == {1: 4, 30: 2, 10**6: 1}[tokens]
    for ask, reward in zip(ASKS, found, strict=True):
        if not ask.answer:
            assert reward == Failure("empty answer")
        else:
            assert isinstance(reward, Reward)
            assert reward == sum(map(ord, ask.query.question + ask.answer))
            assert (reward.tokens, reward.spoken) == (2 + len(ask.answer), len(ask.answer))


def test_nothing_asked_is_nothing_answered() -> None:
    assert scorer().score([]) == []


def test_slices_hold_every_group_once_and_are_large_enough() -> None:
    groups = list(group_by_query(ASKS, Letters(), 100))
    slices = list(in_slices(groups, 30))
    assert [group for part in slices for group in part] == groups
    assert all(sum(len(text.ids) for group in part for text in group.texts) >= 30 for part in slices[:-1])


def test_the_next_item_is_made_while_one_is_used() -> None:
    second = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        second.set()
        yield 2

    made = prefetch(items())
    assert next(made) == 1
    assert second.wait(60)
    assert list(made) == [2]


def test_an_error_of_the_maker_reaches_the_user() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no tokens")

    made = prefetch(items())
    assert next(made) == 1
    with pytest.raises(ValueError, match="no tokens"):
        next(made)


def test_a_query_that_is_too_long_is_cut_alike_for_all_its_answers() -> None:
    query = Query(question="q", posts=tuple(Post(str(n), "", "p" * 20) for n in range(5)))
    asks = [Ask(query, "a"), Ask(query, "b" * 30)]
    (group, _) = group_by_query(asks, Letters(), 100)
    assert isinstance(group, Group)
    assert (group.cut, [len(text.ids) for text in group.texts]) == (2, [65, 94])
