"""The figures of a dataset: sizes, splits, lengths, reading level (`prb data stats`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from prb.data.check import reading_gaps
from prb.data.load import load
from prb.data.named.mirror import VERSION, review_figures
from prb.data.source import open_source
from prb.text.tokens import reading_grade, words
from prb.types import Pair

LONG_HISTORY = 30
"""Posts of a user from which on a history is called long."""


def describe(spec: str) -> dict[str, Any]:
    """Figures over all splits; every number of a datasheet comes from here."""
    source = open_source(spec)
    splits = Counter(row.data.get("split") for row in source.rows() if isinstance(row.data, dict))
    names = [name for name in splits if name is not None]
    sets = [load(source, split=name) for name in names] or [load(source)]
    pairs = [item for dataset in sets for item in dataset if isinstance(item, Pair)]
    users = {pair.user: pair for pair in pairs}
    posts = [len(pair.profile) for pair in users.values()]
    gaps = [abs(len(words(p.chosen)) - len(words(p.rejected))) / max(len(words(p.chosen)), 1) for p in pairs]
    figures = {
        "dataset": source.name,
        "fingerprint": sets[0].fingerprint,
        "rows": len(pairs),
        "people": len(users),
        "clusters": len({c for dataset in sets for c in dataset.index.clusters}),
        "questions": len({pair.question for pair in pairs}),
        "mirror_rows": sum(pair.mirror is not None for pair in pairs),
        "drift_rows": sum(pair.drift for pair in pairs),
        "topics": len({pair.topic for pair in pairs if pair.topic}),
        "splits": _counts(pairs, "split"),
        "categories": _counts(pairs, "category"),
        "tiers": _counts(pairs, "tier"),
        "posts_per_person": _range(posts),
        "long_histories": sum(n >= LONG_HISTORY for n in posts),
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
