"""The LLM grader: all aspects in one call, or one call per aspect with the narrative and the evidence.

The first follows Personalized RewardBench (arXiv 2604.07343), the second LaMP-QA (arXiv 2506.00137); the prompts are
ours. Only the reply is read, and every text by others is quoted, so an answer cannot grade itself.

Replies are read strictly. What is JSON between the first bracket and the last is read as JSON, so that its strings can
hold anything. Otherwise (quotation marks inside strings, no JSON at all) every `aspect: n` and `grade: n` counts, in
order. Either way, an aspect with two different grades has none, and so has the whole reply if a grade names no aspect
while others do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from prb.errors import BadSpec
from prb.grading import GRADERS, TOP, Answered, Grader, Grades, shown, ungradable
from prb.hashing import settings_digest
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import Reply, ask, without_thinking
from prb.prompts import load, quote, with_material
from prb.types import Failure
from prb.work import gravest

Way = Literal["all", "each"]
AspectGrades = tuple[int, ...]

GREEDY = Sampling(max_tokens=1024)
REMINDERS: dict[Way, str] = {
    "all": 'Your whole reply must be a JSON list, for each aspect {"aspect": number, "why": text, "grade": 0, 1 or 2}.',
    "each": 'Your whole reply must be one JSON object: {"why": text, "grade": 0, 1 or 2}.',
}


class LLMGrader:
    """Sends all calls of a batch together."""

    def __init__(self, llm: LLM, way: Way = "all", *, sampling: Sampling = GREEDY) -> None:
        self._llm, self._way, self._sampling = llm, way, sampling
        self.remote = llm.remote
        self.at_once: int | None = getattr(llm, "at_once", None)
        settings = (load(f"grade_{way}"), load("material"), REMINDERS[way], sampling)
        self.fingerprint = f"grade-{way}-{settings_digest(settings)}-{llm.fingerprint}"

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        failures = [ungradable(one) for one in answers]
        asked = [one for one, failure in zip(answers, failures, strict=True) if failure is None]
        prompts = [self._prompts(one) for one in asked]
        replies = iter(
            ask(
                self._llm,
                list(chain.from_iterable(prompts)),
                read_grades if self._way == "each" else [partial(read_grades, count=len(one.rubric)) for one in asked],
                sampling=self._sampling,
                reminder=REMINDERS[self._way],
                missing="no grades",
            )
        )
        graded = (_grades([next(replies) for _ in of_one]) for of_one in prompts)
        return [failure or next(graded) for failure in failures]

    def _prompts(self, answered: Answered) -> list[str]:
        """One that asks for all aspects, or one per aspect, with the narrative and the evidence."""
        template = load(f"grade_{self._way}")
        material = {"question": quote("question", answered.question), "answer": quote("answer", answered.answer)}
        if self._way == "all":
            aspects = [
                quote(f"aspect {n}", _lines(aspect.aspect, aspect.reason, *shown(aspect)[3:]))
                for n, aspect in enumerate(answered.rubric, 1)
            ]
            count = "one aspect" if len(aspects) == 1 else f"{len(aspects)} aspects"
            return [with_material(template, **material, count=count, aspects="\n\n".join(aspects))]
        if not answered.narrative.strip():
            template = re.sub(r"\{narrative\}\s*", "", template)
        material["narrative"] = quote("what this person said in private", answered.narrative)
        prompts = []
        for aspect in answered.rubric:
            evidence = aspect.evidence and f"In their own words: {aspect.evidence}"
            text = quote("aspect", _lines(aspect.aspect, aspect.reason, evidence, *shown(aspect)[3:]))
            prompts.append(with_material(template, **material, aspect=text))
        return prompts


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part.strip())


def _grades(replies: Sequence[Reply[AspectGrades] | Failure]) -> Grades | Failure:
    """One missing grade fails the whole answer: a mean over the other aspects would belong to another rubric."""
    read = [reply for reply in replies if isinstance(reply, Reply)]
    failed = [reply for reply in replies if isinstance(reply, Failure)]
    if failed:  # the calls for the other aspects were charged all the same
        return replace(
            gravest(failed),
            prompt_tokens=sum(f.prompt_tokens for f in failed) + sum(reply.tokens for reply in read),
            completion_tokens=sum(f.completion_tokens for f in failed),
            cost=sum(reply.cost for reply in replies),
        )
    return Grades(
        aspects=tuple([float(grade) for reply in read for grade in reply.value]),
        tokens=sum(reply.tokens for reply in read),
        cost=sum(reply.cost for reply in read),
        text=tuple([reply.text for reply in read]),
    )


@GRADERS.register("llm")
def llm(llm: str, way: Way = "all", max_tokens: int = 1024, temperature: float = 0.0, seed: int = 0) -> Grader:
    """An LLM grades each aspect 0, 1 or 2: way=all in one call, way=each in one call per aspect."""
    if max_tokens < 1 or temperature < 0:
        raise BadSpec(f"max_tokens={max_tokens} must be at least 1, temperature={temperature:g} at least 0")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    return LLMGrader(make_llm(llm), way, sampling=sampling)


# --- reading replies ---
_GRADE = r"(?:match[\s_-]?score|score|grade|rating)"
_MARKS = r"""["'`*“”‘’\\]*"""
_IS = rf"{_MARKS}\s*[:=]"
_BEFORE = r"""[\s"'`*_#“”‘’\\]*"""
"""What may stand before a number. It is one character class: several in a row would backtrack for hours on a reply of a
thousand blanks."""
_NUMBER = (
    r"(?P<number>-?[0-9]+(?:\.[0-9]+|,[0-9]{1,2})?)(?![0-9])"
    r"(?:[\s(*_-]*(?:[a-z]+[\s-]+){0,2}(?:/|out[\s-]+of)[\s-]*(?P<total>[0-9]+))?"
    r"(?![0-9%]|[.,][0-9]|\s*[-–—/;&]\s*[0-9]|\s*,\s*[0-9]+(?!\s*[):])|\s+(?:to|or|and)\s+[0-9])"
)
"""Ambiguous numbers are none: `1, 2`, `1 or 2`, `1-2`, `1,000`."""
_ALONE = re.compile(rf"{_BEFORE}{_NUMBER}{_MARKS}\.?\s*", re.IGNORECASE)
_NAMED = re.compile(
    rf"(?<![a-z_])(?:aspect{_IS}{_BEFORE}(?P<aspect>[0-9]{{1,3}}(?![0-9]))?|{_GRADE}{_IS}{_BEFORE}{_NUMBER})",
    re.IGNORECASE,
)
_GRADE_KEY = re.compile(_GRADE, re.IGNORECASE)


class Mention(NamedTuple):
    """A grade somewhere in a reply."""

    aspect: str | None
    """The number of its aspect, from 1; `None` if it names none."""
    number: str
    total: str
    """What the number is out of, if the reply says so."""


def read_grades(reply: Completion, count: int | None = None) -> AspectGrades | Failure | None:
    """One grade per aspect, in the rubric's order; `None` unless every aspect has exactly one. Without a count, the one
    grade of a reply, whatever aspect it names."""
    mentions = _mentions(reply)
    if count is None:
        of_aspects = [mentions]
    else:
        numbers = [str(n) for n in range(1, count + 1)]
        if len(mentions) == count and all(mention.aspect is None for mention in mentions):
            mentions = [m._replace(aspect=number) for m, number in zip(mentions, numbers, strict=True)]
        if any(mention.aspect not in numbers for mention in mentions):
            return None
        of_aspects = [[m for m in mentions if m.aspect == number] for number in numbers]
    grades = [_agreed_grade(mentions) for mentions in of_aspects]
    valid = tuple([grade for grade in grades if isinstance(grade, int)])
    failure = next((grade for grade in grades if isinstance(grade, Failure)), None)
    return valid if len(valid) == len(grades) else failure


def _agreed_grade(mentions: Sequence[Mention]) -> int | Failure | None:
    """The grade that all mentions give."""
    grades: set[int | Failure] = set()
    for mention in mentions:
        value = float(mention.number.replace(",", "."))
        if value in range(TOP + 1) and mention.total in ("", str(TOP)):
            grades.add(int(value))
        else:
            shown = f"{mention.number}/{mention.total}" if mention.total else mention.number
            grades.add(Failure("grade outside the scale", f"{shown[:20]}, must be 0, 1 or 2"))
    return grades.pop() if len(grades) == 1 else None


def _mentions(reply: Completion) -> list[Mention]:
    """Nothing of a reply that was cut off by its token limit counts: its conclusion is missing."""
    text = "" if reply.truncated else without_thinking(reply.text)

    def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    start, end = min((at for at in map(text.find, "[{") if at >= 0), default=0), max(map(text.rfind, "]}")) + 1
    try:
        value = json.loads(text[start:end], strict=False, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        return list(_scan(text))
    mentions = list(_scan(f"{text[:start]}\n{text[end:]}"))
    for entry in value if isinstance(value, list) else [value]:
        fields = entry if isinstance(entry, dict) else {"grade": entry}
        grade = next((str(fields[key]) for key in fields if _GRADE_KEY.fullmatch(key)), "")
        if match := _ALONE.fullmatch(grade):
            aspect = None if fields.get("aspect") is None else str(fields["aspect"])
            mentions.append(Mention(aspect, match["number"], match["total"] or ""))
    return mentions


def _scan(text: str) -> Iterator[Mention]:
    """The grades of a text that is not JSON; each belongs to the last aspect named before it."""
    if match := _ALONE.fullmatch(text):
        yield Mention(None, match["number"], match["total"] or "")
    aspect = None
    for match in _NAMED.finditer(text):
        if match["number"] is None:
            aspect = match["aspect"] or "unknown"
        else:
            yield Mention(aspect, match["number"], match["total"] or "")
