"""How a head does on users it was not trained on: margins, their summary, and the curve over labeled pairs.

The scored rows of a learning curve are the same for every m: of each user the last `held` ones; the labeled pairs come
from the rows before them. So the points of a curve differ in m alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prb.data.load import load
from prb.errors import BadInput
from prb.models.personal.features import make_features
from prb.models.personal.head import Head, read
from prb.models.personal.method import Floats
from prb.progress import SILENT, Progress
from prb.runs import write_json
from prb.stats.estimate import share
from prb.stats.mirror import Twins, person_effect
from prb.training.config import CurveConfig
from prb.training.examples import Examples, Ints, prepare

SUPPORT = 8
"""Labeled pairs that a held-out user gives away at most, and never more than half of the rows."""
BATCH = 2048


def margins(head: Head, examples: Examples, rows: Ints, codes: dict[int, Floats] | None = None) -> Floats:
    """Reward of chosen minus reward of rejected; users without a code are `nobody`."""
    known = codes or {}
    parts = []
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        code = np.stack([known.get(int(n), head.nobody) for n in examples.user[part]])
        pairs = examples.pairs(part, head.method, code)
        parts.append(head.rewards(pairs.view, pairs.chosen) - head.rewards(pairs.view, pairs.rejected))
    return np.concatenate(parts) if parts else np.zeros(0)


def fitted_codes(head: Head, examples: Examples, rows: Ints) -> dict[int, Floats]:
    """Codes of the users of these labeled rows, by user number."""
    if not len(rows):
        return {}
    users = list(dict.fromkeys(examples.user[rows].tolist()))
    pairs = examples.pairs(rows, head.method, np.tile(head.nobody, (len(rows), 1)))
    return dict(zip(users, head.infer(pairs, len(users)), strict=True))


def held_out_margins(head: Head, examples: Examples, held: Ints) -> tuple[Floats, Ints]:
    """Margins of held-out users, and the rows they belong to."""
    support, scored = support_and_scored(head, examples, held)
    return margins(head, examples, scored, fitted_codes(head, examples, support)), scored


def support_and_scored(head: Head, examples: Examples, held: Ints) -> tuple[Ints, Ints]:
    """Methods that are blind without a user's labeled pairs get up to half of the rows as support."""
    if not head.method.needs_pairs:
        return held[:0], held
    support, rest = first_rows(examples.user[held], None)
    return held[support], held[rest]


def first_rows(user: Ints, m: int | None) -> tuple[Ints, Ints]:
    """Positions of each user's first m rows (without m: half of them, at most `SUPPORT`), and of the others."""
    order = np.argsort(user, kind="stable")
    _, start, count = np.unique(user[order], return_index=True, return_counts=True)
    rank = np.arange(len(user)) - np.repeat(start, count)
    limit = np.repeat(np.minimum(count // 2, SUPPORT) if m is None else np.full(len(count), m), count)
    return np.sort(order[rank < limit]), np.sort(order[rank >= limit])


def credits_of(margins: Floats) -> Floats:
    return np.asarray((np.sign(margins) + 1) / 2, dtype=np.float64)


def results(margins: Floats, examples: Examples, rows: Ints) -> dict[str, Any]:
    """Accuracy and person effect of margins on some rows, with intervals clustered by user."""
    place = {int(row): n for n, row in enumerate(rows)}
    twins = np.array([place.get(int(examples.twins[row]), -1) for row in rows], dtype=np.int64)
    clusters = examples.cluster[rows]
    effect, p = person_effect(margins, Twins.find(twins, clusters, np.ones(len(rows), dtype=bool)))
    return {
        "accuracy": share(credits_of(margins), clusters).as_dict(),
        "loss": float(np.logaddexp(0, -margins).mean()) if len(margins) else None,
        "person_effect": {**effect.as_dict(), "p": p} if effect.n else None,
    }


def learning_curve(config: CurveConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    """Accuracy of a trained head on unseen users by number of labeled pairs; also written to its folder."""
    head, card = read(config.path)
    dataset = load(config.dataset, split=config.split, limit=config.limit, skip_bad=config.skip_bad)
    settings = card["train"]
    examples = prepare(
        dataset,
        make_features(card["features"]),
        joint=head.method.joint,
        k=settings["k"],
        rank=settings["ranker"],
        progress=progress,
    )
    points = curve(head, examples, examples.readable, config.m, config.held)
    result = {"method": head.spec, "dataset": dataset.name, "fingerprint": dataset.fingerprint, "points": points}
    write_json(config.path / "curve.json", result)
    return result


def curve(head: Head, examples: Examples, rows: Ints, ms: tuple[int, ...], held: int) -> list[dict[str, Any]]:
    """Accuracy and person effect on the same rows for every m; a user with fewer pairs gives all of them."""
    candidates, scored = last_rows(examples, rows, held)
    points = []
    for m in ms:
        support = candidates[first_rows(examples.user[candidates], m)[0]]
        codes = fitted_codes(head, examples, support) if head.method.code_size else None
        points.append({"m": m, **results(margins(head, examples, scored, codes), examples, scored)})
    return points


def last_rows(examples: Examples, rows: Ints, held: int) -> tuple[Ints, Ints]:
    """The last `held` rows of each user are scored, the others may be shown: (shown, scored)."""
    order = np.argsort(examples.user[rows], kind="stable")
    users, count = np.unique(examples.user[rows], return_counts=True)
    if (count <= held).any():
        few = examples.users[int(users[np.argmin(count)])]
        raise BadInput(f"user {few!r} has {count.min()} rows, too few to score {held} and show at least one")
    before_last = np.arange(len(rows)) < np.repeat(np.cumsum(count) - held, count)
    return rows[np.sort(order[before_last])], rows[np.sort(order[~before_last])]


def seen_margins(head: Head, examples: Examples, rows: Ints) -> Floats:
    """New questions of users who were trained on, with what the head knows of them."""
    known = {n: head.codes[user] for n, user in enumerate(examples.users) if user in head.codes}
    return margins(head, examples, rows, known)
