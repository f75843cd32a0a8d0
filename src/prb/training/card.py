"""What a trained head tells of itself: data, settings, curves, and how it did on persons it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prb import __version__
from prb.config import Condition
from prb.data.load import Dataset, load
from prb.data.retrieve import ranker
from prb.evaluation.conditions import Asker
from prb.evaluation.plan import PLANNERS
from prb.models.personal.features import Features
from prb.models.personal.head import Head
from prb.models.personal.method import Floats
from prb.models.personal.scorer import Personal, codes_from
from prb.stats.estimate import share
from prb.stats.mirror import Twins, person_effect
from prb.stats.paired import difference
from prb.training.config import TrainConfig, settings_of
from prb.training.examples import Examples, Ints
from prb.training.judge import shown_and_judged
from prb.types import Ask, Failure, Pair

CONDITIONS: tuple[Condition, ...] = ("none", "profile", "shuffled")
JUDGED = 2_000
"""Validation rows that are read with and without the person, at most."""


def describe(config: TrainConfig, dataset: Dataset, features: Features, examples: Examples) -> dict[str, Any]:
    """Everything that is known before the first step."""
    index = dataset.index
    return {
        "prb": __version__,
        "features": config.features,
        "features_fingerprint": features.fingerprint,
        "size": examples.size,
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
            "rows": len(dataset),
            "unreadable": len(dataset) - len(examples.readable),
            "persons": len(examples.users),
            "clusters": len(set(index.clusters)),
        },
        "train": settings_of(config),
    }


def results(margins: Floats, examples: Examples, rows: Ints) -> dict[str, Any]:
    """Accuracy and person effect of margins on some rows, with intervals clustered by person."""
    credit = credits_of(margins)
    effect, p = person_effect(margins, twins_among(examples, rows))
    return {
        "accuracy": share(credit, examples.cluster[rows]).as_dict(),
        "loss": float(np.logaddexp(0, -margins).mean()) if len(margins) else None,
        "person_effect": {**effect.as_dict(), "p": p} if effect.n else None,
    }


def credits_of(margins: Floats) -> Floats:
    return np.asarray((np.sign(margins) + 1) / 2, dtype=np.float64)


def twins_among(examples: Examples, rows: Ints) -> Twins:
    """Twins both of whose rows are among these, as places in `rows`."""
    place = {int(row): n for n, row in enumerate(rows)}
    twins = np.array([place.get(int(examples.twins[row]), -1) for row in rows], dtype=np.int64)
    return Twins.find(twins, examples.cluster[rows], np.ones(len(rows), dtype=bool))


def validated(
    head: Head, features: Features, dataset: Dataset, examples: Examples, held: Ints, config: TrainConfig
) -> dict[str, Any] | None:
    """Gain and control on the validation persons, by the very queries an evaluation makes."""
    if not len(held):
        return None
    shown, judged = shown_and_judged(head, examples, held[:JUDGED])
    wanted, support_rows = {int(row) for row in judged}, {int(row) for row in shown}
    pairs, support = _picked(dataset, wanted), _picked(dataset, support_rows)
    codes = codes_from(head, features, list(support.values()), settings_of(config))
    model = Personal(head, features, "validation", codes)
    asker = _asker(config, dataset)
    rows = np.array(sorted(pairs), dtype=np.int64)
    margins = {c: _margins(model, asker, [pairs[int(n)] for n in rows], c) for c in CONDITIONS}
    credit = {c: np.where(np.isnan(m), np.nan, credits_of(m)) for c, m in margins.items()}
    clusters = examples.cluster[rows]
    answered = ~np.isnan(margins["profile"])
    return {
        "persons": len(set(examples.person[rows].tolist())),
        "labelled_pairs_shown": len(support_rows),
        "by_condition": {c: share(v[~np.isnan(v)], clusters[~np.isnan(v)]).as_dict() for c, v in credit.items()},
        "gain": difference(credit["profile"], credit["none"], clusters).as_dict(),
        "control": difference(credit["profile"], credit["shuffled"], clusters).as_dict(),
        **results(margins["profile"][answered], examples, rows[answered]),
    }


def _picked(dataset: Dataset, wanted: set[int]) -> dict[int, Pair]:
    found = {}
    for n, item in enumerate(dataset):
        if n in wanted and isinstance(item, Pair):
            found[n] = item
            if len(found) == len(wanted):
                break
    return found


def _asker(config: TrainConfig, dataset: Dataset) -> Asker:
    with_donors = load(dataset.source, split=dataset.split, donors=True)
    return Asker(
        rank=ranker(config.ranker),
        planner=PLANNERS.make("extractive"),
        people=with_donors.people,
        k=config.k,
        budget=None,
        seed=config.seed,
    )


def _margins(model: Personal, asker: Asker, pairs: Sequence[Pair], condition: Condition) -> Floats:
    """Chosen minus rejected, NaN where there is no score."""
    asked = [asker.ask(pair, condition) for pair in pairs]
    good = [n for n, one in enumerate(asked) if not isinstance(one, Failure)]
    asks = [Ask(asked[n].query, answer) for n in good for answer in pairs[n].answers]  # type: ignore[union-attr]
    scores = [np.nan if isinstance(s, Failure) else float(s) for s in model.score(asks)]
    found = np.full(len(pairs), np.nan)
    found[good] = np.array(scores[::2]) - np.array(scores[1::2])
    return found
