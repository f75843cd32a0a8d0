"""Honest selection: settings are chosen by cross-validation over the training persons, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from prb.models.personal.method import METHODS, Floats
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import read_json, write_json
from prb.training.card import results
from prb.training.examples import Examples, Ints
from prb.training.folds import fold_of
from prb.training.judge import held_out_margins
from prb.training.loop import Learning, learn

L2 = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Tried:
    """One setting and how it did on persons of the other folds."""

    spec: str
    learning: Learning
    margins: Floats
    rows: Ints
    epochs: int
    """Passes that were best in the median fold."""
    results: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"method": self.spec, "l2": self.learning.l2, "epochs": self.epochs, **self.results}


def cross_validated(
    spec: str, examples: Examples, rows: Ints, learning: Learning, folds: int, *, clusters: Ints | None = None
) -> Tried:
    """Every row is judged by a head that was fitted without its person; `clusters` may keep more together."""
    together = (examples.cluster if clusters is None else clusters)[rows]
    fold = fold_of(together, folds, learning.seed)
    margins, places, epochs = [], [], []
    for number in range(folds):
        fit, held = rows[fold != number], rows[fold == number]
        inner = fold_of(together[fold != number], min(folds, len(np.unique(together[fold != number]))), learning.seed)
        learned = learn(spec, examples, fit[inner != 0], fit[inner == 0], learning)
        found, where = held_out_margins(learned.head, examples, held)
        margins.append(found)
        places.append(where)
        epochs.append(learned.best)
    joined, at = np.concatenate(margins), np.concatenate(places)
    order = np.argsort(at)
    joined, at = joined[order], at[order]
    return Tried(spec, learning, joined, at, int(median(epochs)), results(joined, examples, at))


def candidates(spec: str, learning: Learning) -> Iterator[tuple[str, Learning]]:
    """The settings worth trying: l2, and what the method's own grid names unless the spec already fixes it."""
    method, parsed = METHODS.make(spec), Spec.parse(spec)
    open_options = {k: v for k, v in method.grid.items() if k not in parsed.options}
    penalties = (learning.l2,) if method.closed_form else L2
    for values in product(*open_options.values()):
        options = {**parsed.options, **{k: str(v) for k, v in zip(open_options, values, strict=True)}}
        text = parsed.name + ("?" + "&".join(f"{k}={v}" for k, v in options.items()) if options else "")
        for l2 in penalties:
            yield text, replace(learning, l2=l2)


def sweep(
    specs: Sequence[str],
    examples: Examples,
    rows: Ints,
    learning: Learning,
    folds: int,
    *,
    clusters: Ints | None = None,
    kept: Path | None = None,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """All candidates, the best first: by held-out accuracy, then by held-out loss. `kept` survives an interruption."""
    todo = [candidate for spec in specs for candidate in candidates(spec, learning)]
    done = {(t["method"], t["l2"]): t for t in (read_json(kept) if kept and kept.exists() else [])}
    progress.begin(f"cross-validating {len(todo)} settings", total=len(todo), done=len(done))
    for spec, setting in todo:
        if (spec, setting.l2) in done:
            continue
        tried = cross_validated(spec, examples, rows, setting, folds, clusters=clusters)
        done[spec, setting.l2] = tried.as_dict()
        if kept:
            write_json(kept, list(done.values()))
        progress.advance()
    return sorted(done.values(), key=lambda t: (-t["accuracy"]["value"], t["loss"]))
