"""The checks a pair must pass, each with a name. Pure: texts, grades and ratings in, a reason or nothing out.

What a language model must be asked (grades, ratings, verdicts) is asked in `choose` and `blind`; whether it is good
enough is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from prb.building.config import BuildConfig
from prb.building.records import Record
from prb.text.encoders import Encoder
from prb.text.overlap import LEAK_WORDS, SharedWording, hidden_texts, near_duplicates
from prb.text.tokens import is_list
from prb.types import Aspect, Post

GATES = {
    "input": "the record has posts, and a narrative or a rubric",
    "duplicate": "no other record asks nearly the same for nearly the same reasons",
    "couple": "of two similar questions: the wishes conflict, so they can be mirror rows (else both go on alone)",
    "rubric": "a rubric could be made whose evidence is quoted from the narrative",
    "negative": "for each aspect there is something to want instead",
    "answer": "the model wrote an answer: not empty, not cut off",
    "refusal": "the answer is no refusal",
    "wording": "the answer shares no run of words with rubric or narrative",
    "aspects": "every aspect is met in chosen (1 or 2) and none in rejected (0), graded blind",
    "length": "the two answers are of about the same length",
    "form": "both answers are lists, or neither",
    "quality": "both answers are good and equally good, judged without rubric and profile, in both orders",
    "blind-judge": "a user-blind judge does not beat the limit on the set",
    "blind-learner": "a user-blind learner does not beat the limit on the set",
    "endpoint": "the model's endpoint replied; records that fail here are tried again by the same command",
}

SKIPPABLE = (
    "duplicate",
    "refusal",
    "wording",
    "aspects",
    "length",
    "form",
    "quality",
    "blind-judge",
    "blind-learner",
)
_REFUSAL = re.compile(
    r"^\W*(?:as\s+an\s+ai\b|(?:(?:(?:i\s+am|i['’]m)\s+(?:\w+\s+)?(?:sorry|afraid)|sorry|unfortunately|i\s+apologi[sz]e)\b"
    r"[\s,.;:]*(?:but\s+|that\s+)?)?(?:i\s+(?:can(?:no|['’])t|cannot|won['’]t|am\s+(?:unable|not\s+able)\s+to|must\s+decline))"
    r"\s+(?:to\s+)?(?:help|assist|provide|answer|comply|do\s+that|give|write|discuss|support|fulfil))",
    re.IGNORECASE,
)


def record_gate(record: Record, config: BuildConfig) -> str | None:
    if len(record.posts) < config.min_posts:
        return f"{len(record.posts)} posts, wants {config.min_posts}"
    if not record.narrative and not record.rubric:
        return "neither narrative nor rubric"
    return None


def duplicates(
    records: Sequence[Record], encoder: Encoder, limit: float, block: int = 1024
) -> Iterator[tuple[int, int]]:
    """(later, earliest) positions of records with nearly the same question and narrative."""
    if not records:
        return
    rows = encoder.encode([f"{record.question}\n{record.narrative}" for record in records])
    first: dict[int, int] = {}
    for later, earlier in near_duplicates(rows, limit, block):
        first.setdefault(later, earlier)
    yield from first.items()


def refusal_gate(answer: str) -> str | None:
    return f"begins like a refusal: {answer[:60]!r}" if _REFUSAL.match(answer) else None


def wording_gate(answer: str, record: Record, rubric: Sequence[Aspect], run: int) -> str | None:
    """What the question itself says may be said again."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), run, allowed=record.question)
    shared = hidden.first_in(answer)
    return f"shares {shared!r} with rubric or narrative" if shared else None


def leaking_posts(record: Record, rubric: Sequence[Aspect], run: int) -> tuple[Post, ...]:
    """Posts that give the hidden part away, word for word."""
    hidden = SharedWording(hidden_texts(record.narrative, rubric), max(run, LEAK_WORDS))
    return tuple(post for post in record.posts if hidden.first_in(post.text))


def aspects_gate(chosen: Sequence[float] | None, rejected: Sequence[float] | None) -> str | None:
    """Grades of one side; the other is `None` where it is not known yet."""
    for n, grade in enumerate(chosen or (), 1):
        if grade < 1:
            return f"chosen does not meet aspect {n}"
    for n, grade in enumerate(rejected or (), 1):
        if grade > 0:
            return f"rejected meets aspect {n} (grade {grade:g})"
    return None


def length_gate(chosen: str, rejected: str, most: float) -> str | None:
    """In characters, so that it means the same in every language."""
    gap = length_gap(chosen, rejected)
    return f"{len(chosen)} and {len(rejected)} characters differ by {gap:.0%}" if gap > most else None


def length_gap(chosen: str, rejected: str) -> float:
    return abs(len(chosen) - len(rejected)) / max(len(chosen), len(rejected), 1)


def form_gate(chosen: str, rejected: str) -> str | None:
    return "one answer is a list, the other is not" if is_list(chosen) != is_list(rejected) else None


def quality_gate(chosen: float, rejected: float, floor: float, margin: float) -> str | None:
    if min(chosen, rejected) < floor:
        return f"rated {chosen:.2f} and {rejected:.2f}, wants {floor:g} for both"
    if abs(chosen - rejected) > margin + 1e-9:
        return f"rated {chosen:.2f} and {rejected:.2f}, wants them within {margin:g}"
    return None
