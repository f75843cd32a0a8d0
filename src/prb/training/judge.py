"""How a head does on persons it has never seen: margins of rows that taught it nothing."""

from __future__ import annotations

import numpy as np

from prb.models.personal.head import Head
from prb.models.personal.method import Floats
from prb.training.examples import Examples, Ints

SHOWN = 8
"""Labelled pairs a held-out person gives away at most, and never more than half."""
BATCH = 2048


def held_out_margins(head: Head, examples: Examples, held: Ints) -> tuple[Floats, Ints]:
    """Margins and the rows they belong to. Methods that are blind without a person's own pairs get half."""
    shown, rest = shown_and_judged(head, examples, held)
    return margins(head, examples, rest, fitted_codes(head, examples, shown)), rest


def shown_and_judged(head: Head, examples: Examples, held: Ints) -> tuple[Ints, Ints]:
    if not head.method.needs_pairs:
        return held[:0], held
    shown, rest = first_rows(examples.person[held], None)
    return held[shown], held[rest]


def first_rows(person: Ints, m: int | None) -> tuple[Ints, Ints]:
    """Places of each person's first m rows (half of them, at most eight, without an m), and of the others."""
    order = np.argsort(person, kind="stable")
    _, start, count = np.unique(person[order], return_index=True, return_counts=True)
    rank = np.arange(len(person)) - np.repeat(start, count)
    limit = np.repeat(np.minimum(count // 2, SHOWN) if m is None else np.full(len(count), m), count)
    return np.sort(order[rank < limit]), np.sort(order[rank >= limit])


def fitted_codes(head: Head, examples: Examples, rows: Ints) -> dict[int, Floats]:
    """Codes of the persons of these labelled rows, by their number."""
    if not len(rows):
        return {}
    people = list(dict.fromkeys(examples.person[rows].tolist()))
    pairs = examples.pairs(rows, head.method, np.tile(head.nobody, (len(rows), 1)))
    return dict(zip(people, head.infer(pairs, len(people)), strict=True))


def margins(head: Head, examples: Examples, rows: Ints, codes: dict[int, Floats] | None = None) -> Floats:
    """Chosen minus rejected; persons without a code are nobody."""
    known = codes or {}
    parts = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        code = np.stack([known.get(int(n), head.nobody) for n in examples.person[part]])
        pairs = examples.pairs(part, head.method, code)
        parts.append(head.rewards(pairs.view, pairs.chosen) - head.rewards(pairs.view, pairs.rejected))
    return np.concatenate(parts) if parts else np.zeros(0)
