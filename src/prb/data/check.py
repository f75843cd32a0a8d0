"""What is wrong with a dataset, and what is in it (`prb data check` and `prb data stats`).

`check` gives every problem with its line: errors that stop an evaluation, warnings to look at, and with `--rules
mirror` also violations of the authoring rules of mirror pairs, as far as code can check them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from statistics import mean, median
from typing import Any, Literal, NamedTuple

from prb.data.facts import prepared
from prb.data.load import Scan, load
from prb.data.named.mirror import VERSION, review_figures
from prb.data.retrieve import leaking_choices
from prb.data.schema import BUILD, Problem, Task
from prb.data.source import Source, open_source
from prb.text.encoders import ENCODERS
from prb.text.pii import find
from prb.text.words import (
    LEAK_WORDS,
    NEAR_DUPLICATE,
    SharedWording,
    hidden_texts,
    is_list,
    near_duplicates,
    reading_grade,
    words,
)
from prb.types import NO_EVIDENCE, Item, Pair

CATEGORIES = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")
LENGTH_RATIO = 2.0
"""Answers that differ by more than this factor in characters give a warning."""

# the authoring rules of mirror pairs
WORDS = {"question": (8, 25), "narrative": (40, 80)}
ANSWER_WORDS = (70, 100)
LONG_HISTORY = 30
"""Posts of a user from which on a history is called long."""
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
COMPOSED = Rules((8, 125), ((10, 45),), ("stated", "implied", "situational"))
RULES = {"hard": HARD, "train": COMPOSED, "validation": COMPOSED}
"""By split; all others are `WRITTEN`."""

Place = tuple[str, int, Pair]


def check(source: Source, *, task: Task = "pairs", rules: Literal["none", "mirror"] = "none") -> list[Problem]:
    """Errors first, then warnings, each in the order of the file."""
    scan = Scan(source, task)
    if not scan.ids and not scan.problems:
        return [Problem(source.name, 0, "holds no rows")]
    warnings: list[Problem] = []
    pairs: list[Place] = []
    for ordinal, row in enumerate(source.rows()):
        if ordinal not in scan.bad:
            item = BUILD[task](prepared(row, task))
            warnings += [Problem(row.place, row.line, text, "warning") for text in row_warnings(item)]
            if rules == "mirror" and isinstance(item, Pair):
                pairs.append((row.place, row.line, item))
    return scan.problems + mirror_problems(pairs) + warnings


def row_warnings(item: Item) -> Iterator[str]:
    near = get_close_matches(item.category, CATEGORIES, n=1, cutoff=0.8) if item.category not in CATEGORIES else []
    if near:  # any category is allowed, but a misspelled one would be a separate group in every table
        yield f"category {item.category!r} is nearly {near[0]!r}"
    if not isinstance(item, Pair):
        return
    hidden = SharedWording(hidden_texts(item.narrative, item.rubric))
    for where, text in [*((f"`{name}`", text) for name, text in named_answers(item)), *_posts(item).items()]:
        if shared := hidden.first_in(text):
            yield f"{where} shares {LEAK_WORDS} words in a row with the rubric or narrative: {shared!r}"
    shorter, *_, longer = sorted(map(len, item.answers))
    if longer > LENGTH_RATIO * shorter:
        yield f"answers of very different length: {shorter} to {longer} characters"
    if leaks := leaking_choices(item.question, item.answers, item.choices):
        places = ", ".join(str(n + 1) for n in sorted(leaks))
        yield f"past choices that give the label away (number {places}) are never shown"


def _posts(pair: Pair) -> dict[str, str]:
    return {f"post {post.id!r}": post.text for post in pair.profile}


def mirror_problems(rows: Sequence[Place]) -> list[Problem]:
    """Everything that breaks a rule of mirror pairs: row by row, then what only the whole dataset shows."""
    problems = [Problem(place, line, text) for place, line, pair in rows for text in row_rules(pair)]
    if rows:
        problems += [Problem(rows[0][0], 0, text) for text in set_rules([pair for _, _, pair in rows])]
    return problems


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
    if pair.mirror is None:
        yield "has no mirror"
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


def named_answers(pair: Pair) -> list[tuple[str, str]]:
    """Each answer with the field it is from."""
    return [("chosen" if n < pair.n_best else "rejected", text) for n, text in enumerate(pair.answers)]


def _answer_rules(pair: Pair) -> Iterator[str]:
    if len(set(map(is_list, pair.answers))) > 1:
        yield "one answer is a list, the other is not"
    for name, text in named_answers(pair):
        answer = SharedWording([text], ANSWER_RUN)
        for where, other in {**_posts(pair), "the narrative": pair.narrative}.items():
            if shared := answer.first_in(other):
                yield f"`{name}` shares {shared!r} with {where}"


@lru_cache(maxsize=8192)  # a user's posts are the same in every row
def private_texts(text: str) -> tuple[str, ...]:
    """Contact details, and full names except reviewed ones."""
    contacts = [f"holds personal data ({match.kind}): {text[match.start : match.end]!r}" for match in find(text)]
    names = [name for name in _TWO_CAPITALS.findall(text) if name not in reviewed_names()]
    return (*contacts, *(f"{name!r} may be a private person's full name; see mirror/names.txt" for name in names))


@cache
def reviewed_names() -> frozenset[str]:
    """Places, works and public figures that were reviewed and may be named."""
    lines = (files("prb.data") / "mirror" / "names.txt").read_text("utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def set_rules(pairs: Sequence[Pair]) -> Iterator[str]:
    first: dict[str, Pair] = {}
    for pair in pairs:
        if first.setdefault(pair.user, pair).profile != pair.profile:
            yield f"{pair.id}: the profile of {pair.user!r} differs from that in {first[pair.user].id}"
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


def reading_gaps(pairs: Sequence[Pair]) -> list[float]:
    """Per pair, the difference in reading grade between the two answers."""
    return [abs(reading_grade(pair.chosen) - reading_grade(pair.rejected)) for pair in pairs]


def describe(spec: str) -> dict[str, Any]:
    """Figures over all splits; every number of a datasheet comes from here."""
    source = open_source(spec)
    hashes: dict[str | None, Any] = {}
    for row in source.rows():
        if isinstance(row.data, dict):
            hashes.setdefault(row.data.get("split"), hashlib.sha256()).update(row.raw)
    names = [name for name in hashes if name is not None]
    sets = [load(source, split=name) for name in names] or [load(source)]
    pairs = [item for dataset in sets for item in dataset if isinstance(item, Pair)]
    users = {pair.user: pair for pair in pairs}
    sizes = {len(pair.answers) for pair in pairs}
    posts = [len(pair.profile) for pair in users.values()]
    gaps = [abs(len(words(p.chosen)) - len(words(p.rejected))) / max(len(words(p.chosen)), 1) for p in pairs]
    choices = [len(pair.choices) for pair in users.values()]
    figures = {
        "dataset": source.name,
        "fingerprint": sets[0].fingerprint,
        "fingerprints": {name: hashes[name].hexdigest() for name in names},
        "rows": len(pairs),
        "users": len(users),
        "clusters": len({c for dataset in sets for c in dataset.index.clusters}),
        "questions": len({pair.question for pair in pairs}),
        "mirror_rows": sum(pair.mirror is not None for pair in pairs),
        "drift_rows": sum(pair.drift for pair in pairs),
        "topics": len({pair.topic for pair in pairs if pair.topic}),
        "splits": _counts(pairs, "split"),
        "categories": _counts(pairs, "category"),
        "tiers": _counts(pairs, "tier"),
        "posts_per_user": _range(posts),
        "long_histories": sum(n >= LONG_HISTORY for n in posts),
        **({"choices_per_user": _range(choices)} if any(choices) else {}),
        **({"answers_per_row": _range([len(pair.answers) for pair in pairs])} if len(sizes) > 1 or sizes - {2} else {}),
        **({"conversations": sum(bool(pair.context) for pair in pairs)} if any(pair.context for pair in pairs) else {}),
        "words": {
            "post": _range([len(words(post.text)) for pair in users.values() for post in pair.profile]),
            "question": _range([len(words(pair.question)) for pair in pairs]),
            "narrative": _range([len(words(pair.narrative)) for pair in pairs]),
            "answer": _range([len(words(answer)) for pair in pairs for answer in pair.answers]),
        },
        "answer_length_gap": {"mean": mean(gaps), "max": max(gaps)},
        "chosen_longer": mean(len(p.chosen) > len(p.rejected) for p in pairs),
        "reading_grade": _range([reading_grade(answer) for pair in pairs for answer in pair.answers]),
        "reading_grade_gap_median": median(reading_gaps(pairs)),
    }
    if source.name != "mirror":
        return figures
    return {"version": VERSION, **figures, "review": review_figures(pairs)}


def _counts(pairs: Sequence[Pair], field: str) -> dict[str, int]:
    counted = Counter(getattr(pair, field) for pair in pairs)
    return {str(key): n for key, n in sorted(counted.items(), key=lambda kv: str(kv[0])) if key is not None}


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else {}
