"""The authoring rules of mirror pairs, as far as a machine can hold them (`prb data check X --rules mirror`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from statistics import median

from prb.data.schema import Problem
from prb.text.encoders import ENCODERS
from prb.text.overlap import NEAR_DUPLICATE, SharedWording, near_duplicates
from prb.text.pii import find
from prb.text.tokens import is_list, reading_grade, words
from prb.types import Pair

Place = tuple[str, int, Pair]
TIERS = ("stated", "implied", "situational")
WORDS = {"question": (8, 25), "narrative": (40, 80), "chosen": (70, 100), "rejected": (70, 100)}
POST_WORDS = (40, 90)
HISTORIES = ((10, 10), (30, 40))
ASPECTS = 3
GAP = 0.10
SHARED_WORDS = 4
GRADES = 2.0
_TWO_CAPITALS = re.compile(r"(?<=[a-zà-ÿ,;] )([A-ZÀ-Þ][a-zà-ÿ]+ [A-ZÀ-Þ][a-zà-ÿ]+)\b")


def mirror_problems(rows: Sequence[Place]) -> list[Problem]:
    """Everything that breaks a rule, row by row, then what only the whole set shows."""
    found = [Problem(place, line, what) for place, line, pair in rows for what in row_rules(pair)]
    if rows:
        found += [Problem(rows[0][0], 0, what) for what in set_rules([pair for _, _, pair in rows])]
    return found


def row_rules(pair: Pair) -> Iterator[str]:
    yield from _lengths(pair)
    yield from _history(pair)
    yield from _rubric(pair)
    yield from _answers(pair)
    yield from _personal(pair)
    if pair.tier not in TIERS:
        yield f"tier {pair.tier!r} is none of {', '.join(TIERS)}"
    if pair.mirror is None:
        yield "has no mirror"
    if pair.drift and len(pair.profile) < HISTORIES[1][0]:
        yield "drift needs a long history"


def _lengths(pair: Pair) -> Iterator[str]:
    for name, (low, high) in WORDS.items():
        n = len(words(getattr(pair, name)))
        if not low <= n <= high:
            yield f"`{name}` has {n} words, wants {low}-{high}"
    chosen, rejected = len(words(pair.chosen)), len(words(pair.rejected))
    if abs(chosen - rejected) > GAP * max(chosen, rejected):
        yield f"answers of {chosen} and {rejected} words differ by more than {GAP:.0%}"


def _history(pair: Pair) -> Iterator[str]:
    if not any(low <= len(pair.profile) <= high for low, high in HISTORIES):
        yield f"profile has {len(pair.profile)} posts, wants 10, or 30-40 for a long history"
    for post in pair.profile:
        n = len(words(post.text))
        if not POST_WORDS[0] <= n <= POST_WORDS[1]:
            yield f"post {post.id!r} has {n} words, wants {POST_WORDS[0]}-{POST_WORDS[1]}"


def _rubric(pair: Pair) -> Iterator[str]:
    if len(pair.rubric) != ASPECTS:
        yield f"rubric has {len(pair.rubric)} aspects, wants {ASPECTS}"
    for aspect in pair.rubric:
        if not aspect.evidence.strip() or aspect.evidence not in pair.narrative:
            yield f"evidence is no quote of the narrative: {aspect.evidence!r}"


def _answers(pair: Pair) -> Iterator[str]:
    if is_list(pair.chosen) != is_list(pair.rejected):
        yield "one answer is a list, the other is not"
    seen = {f"post {post.id!r}": post.text for post in pair.profile} | {"the narrative": pair.narrative}
    for name in ("chosen", "rejected"):
        answer = SharedWording([getattr(pair, name)], SHARED_WORDS)
        for where, text in seen.items():
            if shared := answer.first_in(text):
                yield f"`{name}` shares {shared!r} with {where}"


def _personal(pair: Pair) -> Iterator[str]:
    """No contact details anywhere, and no full name of a person nobody has looked at."""
    texts = [pair.question, pair.narrative, pair.chosen, pair.rejected, *(post.text for post in pair.profile)]
    for text in texts:
        for hit in find(text):
            yield f"holds personal data ({hit.kind}): {text[hit.start : hit.end]!r}"
        for name in _TWO_CAPITALS.findall(text):
            if name not in reviewed_names():
                yield f"{name!r} may be a private person's full name; see mirror/names.txt"


@cache
def reviewed_names() -> frozenset[str]:
    """Places, works and public figures that were looked at and may be named."""
    lines = (files("prb.data") / "mirror" / "names.txt").read_text("utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def set_rules(pairs: Sequence[Pair]) -> Iterator[str]:
    yield from _same_profile(pairs)
    yield from _balance(pairs)
    questions = sorted({pair.question for pair in pairs})
    answers = sorted({answer for pair in pairs for answer in pair.answers})
    yield from _alike("questions", questions)
    yield from _alike("answers", answers)
    gap = reading_gap(pairs)
    if gap > GRADES:
        yield f"the two answers' reading grades differ by {gap:.1f} in the median, wants {GRADES:.0f} at most"


def _same_profile(pairs: Sequence[Pair]) -> Iterator[str]:
    first: dict[str, Pair] = {}
    for pair in pairs:
        if first.setdefault(pair.user, pair).profile != pair.profile:
            yield f"{pair.id}: the profile of {pair.user!r} is not the one in {first[pair.user].id}"


def _balance(pairs: Sequence[Pair]) -> Iterator[str]:
    for tier, n in Counter(pair.tier for pair in pairs).items():
        if not 0.25 <= n / len(pairs) <= 0.42:
            yield f"tier {tier!r} has {n} of {len(pairs)} rows, wants about a third"


def _alike(kind: str, texts: Sequence[str]) -> Iterator[str]:
    rows = ENCODERS.make("static").encode(texts)
    for later, earlier in near_duplicates(rows):
        similar = f"{texts[earlier][:60]!r} and {texts[later][:60]!r}"
        yield f"two {kind} have a cosine of at least {NEAR_DUPLICATE}: {similar}"


def reading_gap(pairs: Sequence[Pair]) -> float:
    return median(abs(reading_grade(pair.chosen) - reading_grade(pair.rejected)) for pair in pairs)
