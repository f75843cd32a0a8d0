"""Data of the pair explorer: small columns for the list, everything about a pair in chunks that load when looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite, isnan
from typing import Any

from prb.evaluation.conditions import pick_donor
from prb.reporting.gather import Given, Group, Lines, Said, columns
from prb.types import Pair, Post

CHUNK, CHUNK_BYTES = 100, 1 << 20
"""A chunk holds at most so many pairs, and about so many bytes: one is loaded for the pair that is looked at."""
HEAD = 140


def build(given: Given) -> Iterator[tuple[str, Any]]:
    for group in given.groups:
        texts = given.texts and group.dataset is not None
        chunk = _chunk_size(group)
        yield f"{group.id}/pairs", _index(group, chunk, texts)
        for condition in group.conditions:
            yield f"{group.id}/list-{condition}", _list(group, condition)
        yield from _chunks(group, chunk, texts, given.texts)


def _chunk_size(group: Group) -> int:
    """Judges that explain themselves and long histories make pairs large."""
    said = sum(len(text) for lines in group.lines.values() for line in lines.said for text in line.text)
    mean = (said + 500 * sum(group.history or ())) / len(group.pairs) + 60 * len(group.lines)
    return int(min(CHUNK, max(10, CHUNK_BYTES / mean)))


def _index(group: Group, chunk: int, texts: bool) -> dict[str, Any]:
    people = {user: n for n, user in enumerate(dict.fromkeys(group.users))}
    index = group.dataset and group.dataset.index
    categories, tiers = _numbered(index.categories if index else ()), _numbered(index.tiers if index else ())
    return {
        "ids": group.pairs,
        "users": [people[user] for user in group.users],
        "categories": categories[0],
        "category": categories[1],
        "tiers": tiers[0],
        "tier": tiers[1],
        "twin": index.twins.tolist() if index else [],
        "heads": [item.question[:HEAD] for item in group.dataset] if texts and group.dataset else None,
        "chunk": chunk,
        "texts": texts,
        "note": _note(group, texts),
    }


def _note(group: Group, texts: bool) -> str:
    return group.missing or ("" if texts else "The texts of the dataset were left out (--no-texts).")


def _numbered(labels: Sequence[str | None]) -> tuple[list[str], list[int]]:
    names = sorted({label for label in labels if label})
    place = {name: n for n, name in enumerate(names)}
    return names, [place.get(label or "", -1) for label in labels]


def _list(group: Group, condition: str) -> dict[str, Any]:
    """By model number: a letter for each pair (1 won, 0 lost, h tied, - failed), and margins."""
    numbers = {entry.name: n for n, entry in enumerate(group.entries)}
    found = {numbers[entry.name]: lines for entry, lines in columns(group, condition)}
    return {
        "credit": {str(n): "".join(map(_mark, lines.credit)) for n, lines in found.items()},
        "margin": {str(n): [_short(m) for m in lines.margin] for n, lines in found.items()},
    }


def _mark(credit: float) -> str:
    return "-" if isnan(credit) else "1" if credit > 0.5 else "0" if credit < 0.5 else "h"


def _short(value: float | None, digits: int = 5) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")


def _chunks(group: Group, size: int, texts: bool, talk: bool) -> Iterator[tuple[str, Any]]:
    items = iter(group.dataset) if texts and group.dataset else None
    for n, start in enumerate(range(0, len(group.pairs), size)):
        rows = range(start, min(start + size, len(group.pairs)))
        batch = list(islice(items, len(rows))) if items else []
        yield f"{group.id}/pairs-{n}", Chunk(group, talk).of(rows, [item for item in batch if isinstance(item, Pair)])


class Chunk:
    """Pairs with all that was said of them; a post that several pairs share is written once."""

    def __init__(self, group: Group, talk: bool) -> None:
        self._group, self._talk = group, talk
        self._posts: list[Post] = []
        self._at: dict[Post, int] = {}

    def of(self, rows: range, items: Sequence[Pair]) -> dict[str, Any]:
        pairs = [self._pair(row, items[row - rows.start] if items else None) for row in rows]
        return {"posts": [tuple(post) for post in self._posts], "pairs": pairs}

    def _pair(self, row: int, item: Pair | None) -> dict[str, Any]:
        said = {c: self._said(row, c, item) for c in self._group.conditions}
        return {"said": said, **(self._texts(item) if item else {})}

    def _texts(self, item: Pair) -> dict[str, Any]:
        return {
            "question": item.question,
            "chosen": item.chosen,
            "rejected": item.rejected,
            "rubric": [tuple(aspect) for aspect in item.rubric],
            "narrative": item.narrative,
            "profile": [self._number(post) for post in item.profile],
            "topic": item.topic,
            "groups": dict(item.groups),
        }

    def _number(self, post: Post) -> int:
        if post not in self._at:
            self._at[post] = len(self._posts)
            self._posts.append(post)
        return self._at[post]

    def _said(self, row: int, condition: str, item: Pair | None) -> dict[str, Any]:
        """By model number; which posts and plan a model was shown is said once for all that saw the same."""
        views: dict[tuple[tuple[str, ...], tuple[str, ...], int], int] = {}
        models = {}
        for n, entry in enumerate(self._group.entries):
            lines = self._group.lines.get((entry.name, condition))
            if lines is not None:
                said = lines.said[row]
                view = views.setdefault((said.posts, said.plan, entry.run.settings["seed"]), len(views))
                models[str(n)] = self._one(lines, row, said, view)
        shown = [self._view(posts, plan, seed, condition, item) for posts, plan, seed in views]
        return {"models": models, "views": shown}

    def _one(self, lines: Lines, row: int, said: Said, view: int) -> dict[str, Any]:
        full: Mapping[str, Any] = {
            "m": _short(lines.margin[row]),
            "s": [_short(score) for score in said.scores],
            "v": said.verdicts,
            "f": said.failure,
            "t": said.text if self._talk else (),
            "w": view,
        }
        return {key: value for key, value in full.items() if value not in (None, (), [], 0)}

    def _view(self, ids: tuple[str, ...], plan: tuple[str, ...], seed: int, condition: str, item: Pair | None) -> Any:
        view: dict[str, Any] = {"ids": ids, "plan": plan if self._talk else ()}
        if condition == "shuffled" and item and self._group.dataset:
            people = self._group.dataset.people
            donor = pick_donor(item.id, item.user, people, seed)
            posts = {post.id: post for post in people.posts(donor)} if donor else {}
            view |= {"donor": donor, "lent": [self._number(posts[i]) for i in ids if i in posts]}
        return view
