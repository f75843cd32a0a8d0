"""The authoring rules of mirror pairs, as far as code can check them: row by row, then the whole set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from prb.text.encoders import ENCODERS
from prb.text.pii import find
from prb.text.words import NEAR_DUPLICATE, SharedWording, is_list, near_duplicates, reading_grade, words
from prb.types import NO_EVIDENCE, RESTRAINT, Pair

LONG_HISTORY = 30
"""Posts of a user from which on a history is called long."""
WORDS = {"question": (8, 25), "narrative": (40, 80)}
ANSWER_WORDS = (70, 100)
ASPECTS = 3
LENGTH_GAP = 0.10
ANSWER_RUN = 4
"""Words in a row that an answer may not share with a post or the narrative."""
GRADE_GAP = 2.0
"""Median difference in reading grade between the two answers."""
_TWO_CAPITALS = re.compile(r"(?<=[a-zà-ÿ,;] )([A-ZÀ-Þ][a-zà-ÿ]+ [A-ZÀ-Þ][a-zà-ÿ]+)\b")


class Rules(NamedTuple):
    """What differs between the splits of the embedded benchmark."""

    post_words: tuple[int, int]
    histories: tuple[tuple[int, int], ...]
    """Posts per user."""
    tiers: tuple[str, ...]
    tier_share: tuple[float, float] = (0.0, 1.0)
    tier_rows: int = 0
    """Rows of each tier, at least."""


WRITTEN = Rules((40, 90), ((10, 10), (LONG_HISTORY, 40)), ("stated", "implied", "situational"), (0.25, 0.42))
HARD = Rules(
    (8, 200),
    ((80, 160),),
    (
        "false-drift",
        "conditional",
        "attribution",
        "contested",
        "frequency",
        "surface",
        "needle",
        "one-of-four",
        NO_EVIDENCE,
    ),
    tier_rows=20,
)
KINDS = ("fact", "other-person", "withdrawn", "irrelevant", "nothing-bears")
RESTRAINED = Rules(
    (40, 90), ((10, 12), (LONG_HISTORY, 40)), tuple(f"{RESTRAINT}/{kind}" for kind in KINDS), tier_rows=20
)
COMPOSED = Rules((8, 125), ((10, 45),), ("stated", "implied", "situational"))
RULES = {"hard": HARD, "restraint": RESTRAINED, "train": COMPOSED, "validation": COMPOSED}
"""By split; all others are `WRITTEN`."""


def named_answers(pair: Pair) -> list[tuple[str, str]]:
    """Each answer with the field it is from."""
    return [("chosen" if n < pair.n_best else "rejected", text) for n, text in enumerate(pair.answers)]


def reading_gaps(pairs: Sequence[Pair]) -> list[float]:
    """Per pair, the difference in reading grade between the two answers."""
    return [abs(reading_grade(pair.chosen) - reading_grade(pair.rejected)) for pair in pairs]


def row_rules(pair: Pair) -> Iterator[str]:
    yield from _length_rules(pair)
    if len(pair.rubric) != ASPECTS:
        yield f"rubric has {len(pair.rubric)} aspects, must have {ASPECTS}"
    for aspect in pair.rubric:
        if not aspect.evidence.strip() or aspect.evidence not in pair.narrative:
            yield f"evidence is not a quote from the narrative: {aspect.evidence!r}"
    yield from _answer_rules(pair)
    for text in (pair.question, pair.narrative, *pair.answers, *(post.text for post in pair.profile)):
        yield from private_texts(text)
    tiers = rules_of(pair).tiers
    if pair.tier not in tiers:
        yield f"tier {pair.tier!r} is none of {', '.join(tiers)}"
    if (pair.mirror is None) != (rules_of(pair) is RESTRAINED):
        yield "has no mirror" if pair.mirror is None else "has a mirror"
    if pair.drift and len(pair.profile) < LONG_HISTORY:
        yield "drift needs a long history"


def rules_of(pair: Pair) -> Rules:
    return RULES.get(pair.split or "", WRITTEN)


def _length_rules(pair: Pair) -> Iterator[str]:
    sizes = [*((name, len(words(getattr(pair, name))), *limits) for name, limits in WORDS.items())]
    sizes += [(name, len(words(text)), *ANSWER_WORDS) for name, text in named_answers(pair)]
    for name, n, low, high in sizes:
        if not low <= n <= high:
            yield f"`{name}` has {n} words, must have {low}-{high}"
    shortest, *_, longest = sorted(len(words(text)) for text in pair.answers)
    if longest - shortest > LENGTH_GAP * longest:
        yield f"answers of {shortest} and {longest} words differ by more than {LENGTH_GAP:.0%}"
    rules = rules_of(pair)
    if not any(low <= len(pair.profile) <= high for low, high in rules.histories):
        allowed = " or ".join(f"{low}-{high}" if low < high else str(low) for low, high in rules.histories)
        yield f"profile has {len(pair.profile)} posts, must have {allowed}"
    low, high = rules.post_words
    for post in pair.profile:
        n = len(words(post.text))
        if not low <= n <= high:
            yield f"post {post.id!r} has {n} words, must have {low}-{high}"


def _answer_rules(pair: Pair) -> Iterator[str]:
    if len(set(map(is_list, pair.answers))) > 1:
        yield "one answer is a list, the other is not"
    posts = {f"post {post.id!r}": post.text for post in pair.profile}
    for name, text in named_answers(pair):
        answer = SharedWording([text], ANSWER_RUN)
        for where, other in {**posts, "the narrative": pair.narrative}.items():
            if shared := answer.first_in(other):
                yield f"`{name}` shares {shared!r} with {where}"


@lru_cache(maxsize=8192)  # a user's posts are the same in every row
def private_texts(text: str) -> tuple[str, ...]:
    """Contact details, and full names except reviewed ones."""
    contacts = [f"holds personal data ({match.kind}): {text[match.start : match.end]!r}" for match in find(text)]
    names = [name for name in _TWO_CAPITALS.findall(text) if name not in reviewed_names()]
    return (*contacts, *(f"{name!r} may be a private person's full name; see mirror_names.txt" for name in names))


@cache
def reviewed_names() -> frozenset[str]:
    """Places, works and public figures that were reviewed and may be named."""
    lines = Path(__file__).with_name("mirror_names.txt").read_text("utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def set_rules(pairs: Sequence[Pair]) -> Iterator[str]:
    first: dict[tuple[str, bool], Pair] = {}
    for pair in pairs:  # a user of `test` may have withdrawn a taste in `restraint`
        same = first.setdefault((pair.user, rules_of(pair) is RESTRAINED), pair)
        if same.profile != pair.profile:
            yield f"{pair.id}: the profile of {pair.user!r} differs from that in {same.id}"
    for split in dict.fromkeys(pair.split for pair in pairs):
        tiers = Counter(pair.tier for pair in pairs if pair.split == split)
        rules, rows = RULES.get(split or "", WRITTEN), tiers.total()
        for tier, n in tiers.items():
            if not rules.tier_share[0] <= n / rows <= rules.tier_share[1]:
                low, high = (f"{share:.0%}" for share in rules.tier_share)
                yield f"tier {tier!r} has {n} of {rows} rows, must have {low} to {high}"
            if n < rules.tier_rows:
                yield f"tier {tier!r} has {n} rows, must have at least {rules.tier_rows}"
    questions = {pair.question for pair in pairs}
    answers = {answer for pair in pairs for answer in pair.answers}
    for kind, texts in (("questions", sorted(questions)), ("answers", sorted(answers))):
        for later, earlier in near_duplicates(ENCODERS.make("static").encode(texts)):
            both = f"{texts[earlier][:60]!r} and {texts[later][:60]!r}"
            yield f"two {kind} have a cosine of at least {NEAR_DUPLICATE}: {both}"
    gap = median(reading_gaps(pairs))
    if gap > GRADE_GAP:
        yield f"the reading grades of the two answers differ by {gap:.1f} in the median, must be at most {GRADE_GAP:g}"
