"""What is asked of a trained head: strangers, strangers with m labelled pairs, seen persons with new questions.

Rows that are judged are the same for every m: of each person the last `held` questions, both rows of a mirror twin
or neither, and labelled pairs come from the questions before them. So the points of a curve differ in m alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from prb.errors import BadInput
from prb.models.personal.features import make_features
from prb.models.personal.head import Head, read
from prb.models.personal.method import Floats
from prb.progress import SILENT, Progress
from prb.runs import write_json
from prb.training.card import results
from prb.training.examples import Examples, Ints, prepare
from prb.training.judge import first_rows, fitted_codes, margins


@dataclass(frozen=True, kw_only=True)
class CurveConfig:
    """How much labelled pairs of a stranger help a trained head; writes curve.json and curve.svg into its folder."""

    path: tyro.conf.Positional[Path]
    """Folder of a trained head."""
    dataset: str = "mirror"
    """Where the strangers come from."""
    split: str | None = None
    """Which split; `test` where rows carry one."""
    m: tuple[int, ...] = (0, 1, 2, 4)
    """How many labelled pairs of each person are shown."""
    held: int = 2
    """How many rows of each person are judged, the last ones, at every m."""
    json: bool = False
    """Print curve.json to stdout."""
    quiet: bool = False
    """No progress."""


def learning_curve(config: CurveConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    from prb.data.load import load

    if config.held < 1 or not config.m or min(config.m) < 0:
        raise BadInput("--held wants 1 or more, --m numbers that are not negative")
    head, card = read(config.path)
    shown = card["train"]
    dataset = load(config.dataset, split=config.split)
    features = make_features(card["features"])
    examples = prepare(
        dataset, features, joint=head.method.joint, k=shown["k"], rank=shown["ranker"], progress=progress
    )
    points = curve(head, examples, examples.readable, config.m, config.held)
    result = {"method": head.spec, "dataset": dataset.name, "fingerprint": dataset.fingerprint, "points": points}
    write_json(config.path / "curve.json", result)
    return result


def curve(head: Head, examples: Examples, rows: Ints, ms: tuple[int, ...], held: int) -> list[dict[str, Any]]:
    """Accuracy and person effect on the same rows for every m; a person with fewer pairs shows all there are."""
    support, judged = last_rows(examples, rows, held)
    points = []
    for m in ms:
        found = few_shot_margins(head, examples, support, judged, m)
        points.append({"m": m, **results(found, examples, judged)})
    return points


def few_shot_margins(head: Head, examples: Examples, support: Ints, judged: Ints, m: int) -> Floats:
    """Margins of the judged rows after m labelled pairs of each person; 0 is the profile alone."""
    shown = support[first_rows(examples.person[support], m)[0]]
    usable = shown if head.method.code_size else shown[:0]
    return margins(head, examples, judged, fitted_codes(head, examples, usable))


def last_rows(examples: Examples, rows: Ints, held: int) -> tuple[Ints, Ints]:
    """Rows that may be shown and rows that are judged, by person."""
    order = np.argsort(examples.person[rows], kind="stable")
    people, count = np.unique(examples.person[rows], return_counts=True)
    if (count <= held).any():
        few = examples.users[int(people[np.argmin(count)])]
        raise BadInput(f"{few!r} has {count.min()} rows, too few to judge {held} and show at least one")
    before_last = np.arange(len(rows)) < np.repeat(np.cumsum(count) - held, count)
    return rows[np.sort(order[before_last])], rows[np.sort(order[~before_last])]


def seen_margins(head: Head, examples: Examples, rows: Ints) -> Floats:
    """New questions of persons who were trained on, by what the head knows of them."""
    known = {n: head.codes[user] for n, user in enumerate(examples.users) if user in head.codes}
    return margins(head, examples, rows, known)
