"""General quality of two answers, rated side by side without rubric and profile, in both orders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from prb.llm import LLM, Completion, Sampling
from prb.llm.asking import Reply, ask, without_reasoning
from prb.prompts import load, quote, with_material
from prb.types import Failure

CRITERIA = ("correctness", "relevance", "helpfulness", "fluency")
REMINDER = (
    "Your reply must finish with the two lines Answer A: … and Answer B: …, each with four whole numbers, 1 to 5."
)
_NUMBERS = r"[\s,;]+".join(rf"{name}\W{{0,4}}([1-5])(?:\s*/\s*5)?" for name in CRITERIA)
_LINES = {
    name: re.compile(rf"answer\s+{name}[\s*_`]*:[\s*_`]*{_NUMBERS}(?!\d|\.\d)", re.IGNORECASE) for name in ("a", "b")
}


class Both(NamedTuple):
    question: str
    first: str
    second: str


def rate(llm: LLM, pairs: Sequence[Both], sampling: Sampling) -> list[tuple[float, float] | Failure]:
    """Mean rating of first and second, over the criteria and both orders; one order that fails fails the pair."""
    prompts = [
        prompt
        for pair in pairs
        for prompt in (_prompt(pair), _prompt(pair._replace(first=pair.second, second=pair.first)))
    ]
    replies = ask(llm, prompts, read_ratings, sampling=sampling, reminder=REMINDER, missing="no ratings")
    return [_merge(replies[2 * n], replies[2 * n + 1]) for n in range(len(pairs))]


def _prompt(pair: Both) -> str:
    return with_material(
        load("build_quality"),
        question=quote("question", pair.question),
        answer_a=quote("answer A", pair.first),
        answer_b=quote("answer B", pair.second),
    )


def read_ratings(said: Completion) -> tuple[float, float] | None:
    """The last rating of each answer; one of them missing is no rating."""
    text = without_reasoning(said.text)
    found = [list(pattern.finditer(text)) for pattern in _LINES.values()]
    if not all(found):
        return None
    a, b = (mean(int(number) for number in matches[-1].groups()) for matches in found)
    return a, b


def _merge(
    forward: Reply[tuple[float, float]] | Failure, backward: Reply[tuple[float, float]] | Failure
) -> tuple[float, float] | Failure:
    if isinstance(forward, Failure):
        return forward
    if isinstance(backward, Failure):
        return backward
    return (forward.value[0] + backward.value[1]) / 2, (forward.value[1] + backward.value[0]) / 2
