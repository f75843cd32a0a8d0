"""What is wrong with a dataset, and what is in it (`prb data check` and `prb data stats`).

`check` gives every problem with its line: errors that stop an evaluation, and warnings to look at.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from statistics import mean, median
from typing import Any

from prb.data.load import Scan, load
from prb.data.named.mirror import VERSION
from prb.data.retrieve import leaking_choices
from prb.data.schema import BUILD, Task, prepared
from prb.data.source import Source, open_source
from prb.data.votes import PollSource, VoteSource
from prb.errors import Problem
from prb.text.words import LEAK_WORDS, SharedWording, hidden_texts, reading_grade, words
from prb.types import Item, Pair

CATEGORIES = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")
LENGTH_RATIO = 2.0
"""Answers that differ by more than this factor in characters give a warning."""


def check(source: Source, *, task: Task = "pairs") -> list[Problem]:
    """Errors first, then warnings, each in the order of the file."""
    scan = Scan(source, task, donors=True)
    if not scan.ids and not scan.problems:
        return [Problem(source.name, 0, "holds no rows")]
    warnings: list[Problem] = []
    for ordinal, row in enumerate(source.rows()):
        if ordinal not in scan.bad:
            item = BUILD[task](prepared(row, task))
            warnings += [Problem(row.place, row.line, text, "warning") for text in row_warnings(item, source)]
    same = [Problem(source.name, 0, note, "warning") for note in scan.users.of_split(None, {}).notes()]
    return scan.problems + same + warnings


def row_warnings(item: Item, source: Source) -> Iterator[str]:
    near = get_close_matches(item.category, CATEGORIES, n=1, cutoff=0.8) if item.category not in CATEGORIES else []
    if near:  # any category is allowed, but a misspelled one would be a separate group in every table
        yield f"category {item.category!r} is nearly {near[0]!r}"
    if not isinstance(item, Pair):
        return
    hidden = SharedWording(hidden_texts(item.narrative, item.rubric))
    shown = [("`chosen`" if n < item.n_best else "`rejected`", text) for n, text in enumerate(item.answers)]
    for where, text in [*shown, *((f"post {post.id!r}", post.text) for post in item.profile)]:
        if shared := hidden.first_in(text):
            yield f"{where} shares {LEAK_WORDS} words in a row with the rubric or narrative: {shared!r}"
    shorter, *_, longer = sorted(map(len, item.answers))
    # answers that were written for their pair can be made alike, those that people voted on cannot
    if longer > LENGTH_RATIO * shorter and not isinstance(source, VoteSource | PollSource):
        yield f"answers of very different length: {shorter} to {longer} characters"
    if leaks := leaking_choices(item.question, item.answers, item.choices):
        places = ", ".join(str(n + 1) for n in sorted(leaks))
        yield f"past choices that give the label away (number {places}) are never shown"


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
    users = {pair.user: pair for pair in pairs}.values()

    def counts(field: str) -> dict[str, int]:
        return dict(sorted(Counter(str(name) for pair in pairs if (name := getattr(pair, field))).items()))

    return {
        "dataset": source.name,
        **({"version": VERSION} if source.name == "mirror" else {}),
        "fingerprint": sets[0].fingerprint,
        "fingerprints": {name: hashes[name].hexdigest() for name in names},
        "rows": len(pairs),
        "users": len(users),
        "clusters": len({c for dataset in sets for c in dataset.index.clusters}),
        "questions": len({pair.question for pair in pairs}),
        "mirror_rows": sum(pair.mirror is not None for pair in pairs),
        "drift_rows": sum(pair.drift for pair in pairs),
        "conversations": sum(bool(pair.context) for pair in pairs),
        "splits": counts("split"),
        "categories": counts("category"),
        "tiers": counts("tier"),
        "posts_per_user": _range([len(pair.profile) for pair in users]),
        "choices_per_user": _range([len(pair.choices) for pair in users]),
        "answers_per_row": _range([len(pair.answers) for pair in pairs]),
        "words": {
            "post": _range([len(words(post.text)) for pair in users for post in pair.profile]),
            "question": _range([len(words(pair.question)) for pair in pairs]),
            "narrative": _range([len(words(pair.narrative)) for pair in pairs]),
            "answer": _range([len(words(answer)) for pair in pairs for answer in pair.answers]),
        },
        "chosen_longer": mean(len(p.chosen) > len(p.rejected) for p in pairs),
        "reading_grade": _range([reading_grade(answer) for pair in pairs for answer in pair.answers]),
    }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else {}
