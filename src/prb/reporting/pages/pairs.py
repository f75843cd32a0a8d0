"""Pair explorer: small columns for the list, everything about a pair in chunks that load on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Any

from prb.config import Donors
from prb.evaluation.conditions import pick_donor
from prb.evaluation.outcomes import Detail
from prb.reporting.gather import DataFile, Group, Inputs
from prb.types import Pair, Post

CHUNK, CHUNK_BYTES = 100, 1 << 20
"""The most pairs per chunk, and about how many bytes: a chunk is loaded to show one pair."""
POST_BYTES, OUTCOME_BYTES = 500, 60
"""What a post and an outcome take in a chunk, roughly."""
HEAD = 140
"""Characters of the question in the list."""
Margins = Mapping[tuple[str, str], Sequence[float | None]]
"""By name of the entry and condition, rounded."""


def pairs_data(inputs: Inputs) -> Iterator[DataFile]:
    for group in inputs.groups:
        margins = {cell: [_rounded(m) for m in column.margin.tolist()] for cell, column in group.columns.items()}
        for condition in group.conditions:
            yield f"{group.id}/list-{condition}", _list(group, condition, margins)
        chunk = _chunk_size(group)
        items = iter(group.dataset) if inputs.texts and group.dataset else None
        heads: list[str] = []
        for n, start in enumerate(range(0, len(group.pairs), chunk)):
            rows = range(start, min(start + chunk, len(group.pairs)))
            pairs = [item for item in islice(items, len(rows)) if isinstance(item, Pair)] if items else []
            heads += [pair.question[:HEAD] for pair in pairs]
            yield f"{group.id}/pairs-{n}", Chunk(group, margins, inputs.texts).build(rows, pairs)
        yield f"{group.id}/pairs", _index(group, chunk, heads if items else None)


def _chunk_size(group: Group) -> int:
    """Fewer pairs where judges explain themselves or histories are long."""
    replies = sum(len(text) for column in group.columns.values() for detail in column.details for text in detail.text)
    mean = (replies + POST_BYTES * sum(group.history or ())) / len(group.pairs) + OUTCOME_BYTES * len(group.columns)
    return int(min(CHUNK, max(10, CHUNK_BYTES / mean)))


def _index(group: Group, chunk: int, heads: list[str] | None) -> dict[str, Any]:
    users = {user: n for n, user in enumerate(dict.fromkeys(group.users))}
    index = group.dataset and group.dataset.index
    categories, category = _numbered(index.categories if index else ())
    tiers, tier = _numbered(index.tiers if index else ())
    texts = heads is not None
    return {
        "ids": group.pairs,
        "users": [users[user] for user in group.users],
        "categories": categories,
        "category": category,
        "tiers": tiers,
        "tier": tier,
        "twin": index.twins.tolist() if index else [],
        "heads": heads,
        "chunk": chunk,
        "texts": texts,
        "note": group.missing or ("" if texts else "The texts of the dataset were left out (--no-texts)."),
    }


def _numbered(labels: Sequence[str | None]) -> tuple[list[str], list[int]]:
    names = sorted({label for label in labels if label})
    place = {name: n for n, name in enumerate(names)}
    return names, [place.get(label or "", -1) for label in labels]


def _list(group: Group, condition: str, margins: Margins) -> dict[str, Any]:
    """By model number: one letter per pair (1 right, 0 wrong, h tied, - failed), and margins."""
    credit = {
        str(n): "".join(
            "1" if c > 0.5 else "0" if c < 0.5 else "h" if c == 0.5 else "-" for c in column.credit.tolist()
        )
        for n, column in group.under(condition)
    }
    return {"credit": credit, "margin": {n: margins[group.entries[int(n)].name, condition] for n in credit}}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


class Chunk:
    """Pairs with everything the models were shown and returned; posts that several pairs share are written once."""

    def __init__(self, group: Group, margins: Margins, texts: bool) -> None:
        self._group, self._texts = group, texts
        self._posts: dict[Post, int] = {}
        self._models: dict[str, list[tuple[str, Sequence[float | None], Sequence[Detail], int, Donors]]] = {}
        """By condition and number: margins, details, and how the run picks donors."""
        for condition in group.conditions:
            for n, column in group.under(condition):
                settings = group.entries[n].run.settings
                model = (
                    str(n),
                    margins[group.entries[n].name, condition],
                    column.details,
                    settings.seed,
                    settings.shown.donors,
                )
                self._models.setdefault(condition, []).append(model)

    def build(self, rows: range, items: Sequence[Pair]) -> dict[str, Any]:
        pairs = [self._pair(row, items[row - rows.start] if items else None) for row in rows]
        return {"posts": [tuple(post) for post in self._posts], "pairs": pairs}

    def _pair(self, row: int, item: Pair | None) -> dict[str, Any]:
        outcomes = {condition: self._outcomes(row, condition, item) for condition in self._group.conditions}
        if item is None:
            return {"said": outcomes}
        others = [(n < item.n_best, text) for n, text in enumerate(item.answers) if n not in (0, item.n_best)]
        parts: dict[str, Sequence[Any]] = {"context": item.context, "choices": item.choices, "others": others}
        return {
            "said": outcomes,
            "question": item.question,
            "chosen": item.chosen,
            "rejected": item.rejected,
            "rubric": [(aspect.label, aspect.evidence, aspect.reason) for aspect in item.rubric],
            "narrative": item.narrative,
            "profile": [self._number(post) for post in item.profile],
            "topic": item.topic,
            "groups": dict(item.groups),
            **{name: [tuple(part) for part in some] for name, some in parts.items() if some},
        }

    def _number(self, post: Post) -> int:
        return self._posts.setdefault(post, len(self._posts))

    def _outcomes(self, row: int, condition: str, item: Pair | None) -> dict[str, Any]:
        """By model number; posts and plan that several models were shown are written once, as a view."""
        views: dict[tuple[tuple[str, ...], tuple[str, ...], int, Donors], int] = {}
        models = {}
        for n, margins, details, seed, donors in self._models[condition]:
            detail = details[row]
            view = views.setdefault((detail.post_ids, detail.plan, seed, donors), len(views))
            outcome: dict[str, Any] = {}
            if margin := margins[row]:
                outcome["m"] = margin
            if detail.scores:
                outcome["s"] = [_rounded(score) for score in detail.scores]
            if detail.verdicts:
                outcome["v"] = detail.verdicts
            if detail.failure is not None:
                outcome["f"] = detail.failure
            if detail.text and self._texts:
                outcome["t"] = detail.text
            if view:
                outcome["w"] = view
            models[n] = outcome
        return {"models": models, "views": [self._view(*view, condition, item) for view in views]}

    def _view(
        self, ids: tuple[str, ...], plan: tuple[str, ...], seed: int, donors: Donors, condition: str, item: Pair | None
    ) -> dict[str, Any]:
        view: dict[str, Any] = {"ids": ids, "plan": plan if self._texts else ()}
        if condition == "shuffled" and item and self._group.dataset:
            users = self._group.dataset.users
            donor = pick_donor(item, users, seed, donors)
            posts = {post.id: post for post in users.history(donor).posts} if donor else {}
            view |= {"donor": donor, "lent": [self._number(posts[i]) for i in ids if i in posts]}
        return view
