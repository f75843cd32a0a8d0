"""Pair explorer: small columns for the list, everything about a pair in chunks that load on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite, isnan
from typing import Any

from prb.config import Donors
from prb.evaluation.conditions import pick_donor
from prb.reporting.gather import Entry, Group, Inputs
from prb.types import Pair, Post

CHUNK, CHUNK_BYTES = 100, 1 << 20
"""At most so many pairs per chunk, and about so many bytes: a chunk is loaded to show one pair."""
POST_BYTES, OUTCOME_BYTES = 500, 60
"""What a post and an outcome take in a chunk, roughly."""
HEAD = 140
"""Characters of the question in the list."""


def build(inputs: Inputs) -> Iterator[tuple[str, Any]]:
    for group in inputs.groups:
        texts = inputs.texts and group.dataset is not None
        chunk = _chunk_size(group)
        yield f"{group.id}/pairs", _index(group, chunk, texts)
        for condition in group.conditions:
            yield f"{group.id}/list-{condition}", _list(group, condition)
        items = iter(group.dataset) if texts and group.dataset else None
        for n, start in enumerate(range(0, len(group.pairs), chunk)):
            rows = range(start, min(start + chunk, len(group.pairs)))
            pairs = [item for item in islice(items, len(rows)) if isinstance(item, Pair)] if items else []
            yield f"{group.id}/pairs-{n}", Chunk(group, inputs.texts).build(rows, pairs)


def _chunk_size(group: Group) -> int:
    """Fewer pairs where judges explain themselves or histories are long."""
    replies = sum(len(text) for column in group.columns.values() for detail in column.details for text in detail.text)
    mean = (replies + POST_BYTES * sum(group.history or ())) / len(group.pairs) + OUTCOME_BYTES * len(group.columns)
    return int(min(CHUNK, max(10, CHUNK_BYTES / mean)))


def _index(group: Group, chunk: int, texts: bool) -> dict[str, Any]:
    users = {user: n for n, user in enumerate(dict.fromkeys(group.users))}
    index = group.dataset and group.dataset.index
    categories, tiers = _numbered(index.categories if index else ()), _numbered(index.tiers if index else ())
    return {
        "ids": group.pairs,
        "users": [users[user] for user in group.users],
        "categories": categories[0],
        "category": categories[1],
        "tiers": tiers[0],
        "tier": tiers[1],
        "twin": index.twins.tolist() if index else [],
        "heads": [item.question[:HEAD] for item in group.dataset] if texts and group.dataset else None,
        "chunk": chunk,
        "texts": texts,
        "note": group.missing or ("" if texts else "The texts of the dataset were left out (--no-texts)."),
    }


def _numbered(labels: Sequence[str | None]) -> tuple[list[str], list[int]]:
    names = sorted({label for label in labels if label})
    place = {name: n for n, name in enumerate(names)}
    return names, [place.get(label or "", -1) for label in labels]


def _list(group: Group, condition: str) -> dict[str, Any]:
    """By model number: one letter per pair (1 right, 0 wrong, h tied, - failed), and margins."""
    numbers = {entry.name: str(n) for n, entry in enumerate(group.entries)}
    columns = {numbers[entry.name]: column for entry, column in group.under(condition)}
    return {
        "credit": {n: "".join(map(_mark, column.credit.tolist())) for n, column in columns.items()},
        "margin": {n: [_short(margin) for margin in column.margin.tolist()] for n, column in columns.items()},
    }


def _mark(credit: float) -> str:
    return "-" if isnan(credit) else "1" if credit > 0.5 else "0" if credit < 0.5 else "h"


def _short(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")


class Chunk:
    """Pairs with everything the models were shown and returned; posts that several pairs share are written once."""

    def __init__(self, group: Group, texts: bool) -> None:
        self._group, self._texts = group, texts
        self._margins = {cell: column.margin for cell, column in group.columns.items()}
        self._posts: dict[Post, int] = {}

    def build(self, rows: range, items: Sequence[Pair]) -> dict[str, Any]:
        pairs = [self._pair(row, items[row - rows.start] if items else None) for row in rows]
        return {"posts": [tuple(post) for post in self._posts], "pairs": pairs}

    def _pair(self, row: int, item: Pair | None) -> dict[str, Any]:
        outcomes = {condition: self._outcomes(row, condition, item) for condition in self._group.conditions}
        if item is None:
            return {"said": outcomes}
        return {
            "said": outcomes,
            "question": item.question,
            "chosen": item.chosen,
            "rejected": item.rejected,
            "rubric": [tuple(aspect) for aspect in item.rubric],
            "narrative": item.narrative,
            "profile": [self._number(post) for post in item.profile],
            "topic": item.topic,
            "groups": dict(item.groups),
            **self._more(item),
        }

    def _more(self, item: Pair) -> dict[str, Any]:
        """What only some datasets have: earlier turns, past choices, and further answers, right or wrong."""
        shown = {0, item.n_best}
        others = [(n < item.n_best, text) for n, text in enumerate(item.answers) if n not in shown]
        parts = {"context": item.context, "choices": item.choices, "others": others}
        return {name: [tuple(part) for part in part_list] for name, part_list in parts.items() if part_list}

    def _number(self, post: Post) -> int:
        return self._posts.setdefault(post, len(self._posts))

    def _outcomes(self, row: int, condition: str, item: Pair | None) -> dict[str, Any]:
        """By model number; posts and plan that several models were shown are written once, as a view."""
        views: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[int, Donors]], int] = {}
        models = {}
        for n, entry in enumerate(self._group.entries):
            column = self._group.columns.get((entry.name, condition))
            if column is not None:
                detail = column.details[row]
                view = views.setdefault((detail.post_ids, detail.plan, _donor_settings(entry)), len(views))
                outcome: Mapping[str, Any] = {
                    "m": _short(float(self._margins[entry.name, condition][row])),
                    "s": [_short(score) for score in detail.scores],
                    "v": detail.verdicts,
                    "f": detail.failure,
                    "t": detail.text if self._texts else (),
                    "w": view,
                }
                models[str(n)] = {key: value for key, value in outcome.items() if value not in (None, (), [], 0)}
        shown = [self._view(posts, plan, settings, condition, item) for posts, plan, settings in views]
        return {"models": models, "views": shown}

    def _view(
        self,
        ids: tuple[str, ...],
        plan: tuple[str, ...],
        settings: tuple[int, Donors],
        condition: str,
        item: Pair | None,
    ) -> Any:
        view: dict[str, Any] = {"ids": ids, "plan": plan if self._texts else ()}
        if condition == "shuffled" and item and self._group.dataset:
            users = self._group.dataset.users
            donor = pick_donor(item, users, *settings)
            posts = {post.id: post for post in users.history(donor).posts} if donor else {}
            view |= {"donor": donor, "lent": [self._number(posts[i]) for i in ids if i in posts]}
        return view


def _donor_settings(entry: Entry) -> tuple[int, Donors]:
    """The run's seed and choice of donors; before there was a choice, any user was one."""
    settings = entry.run.settings
    return settings["seed"], settings.get("donors", "any")
