"""`prb train METHOD`: from pairs to a folder that `personal?path=` reads, with a card that describes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress, product
from statistics import median
from typing import Any

import msgspec
import numpy as np

from prb.config import ConditionName, UserConfig
from prb.data.load import Dataset, load
from prb.engine.executors import Executor, open_executor
from prb.errors import BadInput, MissingExtra
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.models.personal.collaborative import (
    Collaborative,
    factorize,
    ratings_of,
    save_factors,
    votes_by_user,
    with_words,
)
from prb.models.personal.features import Features, features_of
from prb.models.personal.head import CARD, Head, Personal, read_card, save
from prb.models.personal.methods import METHODS, Matcher
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, RunFolder, remove
from prb.stats.estimate import share
from prb.stats.paired import difference
from prb.training.config import CHECKPOINT, FullConfig, TrainConfig
from prb.training.learning import (
    Examples,
    HeadResults,
    Ints,
    Learned,
    Learning,
    credits_of,
    encode_lessons,
    fold_of,
    held_out_margins,
    learn,
    open_training,
    prepare,
    provenance,
    results,
    split_off,
    support_and_scored,
)
from prb.training.tuning import ADAPTER, tune, tuned_head
from prb.types import Ask, Choice, Difference, Estimate, Failure, Pair, TrainedOn

CONDITIONS: tuple[ConditionName, ...] = ("none", "profile", "shuffled")
VALIDATION_ROWS = 2_000
"""Held-out rows that are scored under every condition for the card, at most."""
L2 = (0.001, 0.01, 0.1, 1.0)
"""What a sweep tries …"""
FOLDS = 5
"""… by cross-validation with this many folds."""


@dataclass(frozen=True, kw_only=True)
class Validation(HeadResults):
    """How a head does on the validation users; accuracy, loss and person effect are those under `profile`."""

    users: int
    labelled_pairs_shown: int
    by_condition: dict[ConditionName, Estimate]
    gain: Difference
    control: Difference


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A setting, and how heads with it do on users they were not trained on."""

    accuracy: Estimate
    loss: float | None
    method: str
    l2: float
    epochs: int
    """The best of the median fold."""


def card_of(config: TrainConfig, dataset: Dataset, features: Features, fitted_on: dict[str, int]) -> dict[str, Any]:
    """What `card.json` says of every head beside its format and method."""
    about = {"features": config.features, "features_fingerprint": features.fingerprint, "fitted_on": fitted_on}
    return provenance(config, dataset) | about


def train(config: TrainConfig | FullConfig, *, progress: Progress = SILENT) -> Finished:
    """Train a head or a whole model, or resume its training."""
    if isinstance(config, FullConfig):
        try:
            from prb.training.full import finetune
        except ModuleNotFoundError:
            raise MissingExtra("training a whole model", "train") from None
        return finetune(config, progress=progress)
    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    folder = config.target
    with RunFolder(folder, {"train": config.saved(), "data": dataset.fingerprint}):
        if (folder / CARD).exists():
            progress.note(f"{folder} is finished")
            card = read_card(folder)
        else:
            with open_executor(config.engine) as executor:
                card = _train(config, dataset, executor, progress)
        remove(folder / CHECKPOINT)
    return Finished(folder, card)


def _train(config: TrainConfig, dataset: Dataset, executor: Executor, progress: Progress) -> dict[str, Any]:
    method = METHODS.make(config.method)
    if config.sweep and method.taught:
        raise BadInput(
            f"--sweep: {config.method} learns axes, and held-out users share them; compare settings on "
            "'mirror?split=validation', whose axes are others"
        )
    if isinstance(method, Collaborative):
        return _from_votes(config, method, dataset, features_of({"features": config.features}, config.target, executor))
    about, tuned = {"features": config.features}, None
    if isinstance(method, Matcher):
        best_pass, report = tune(config.method, dataset.source, config.features, config.target, config.seed, progress)
        about["adapter"] = ADAPTER
    features = features_of(about, config.target, executor)
    if isinstance(method, Matcher):
        progress.begin("reading texts with the tuned LLM")
        tuned = Learned(tuned_head(config.method, dataset.source, features), [], best_pass, report)
    lessons = encode_lessons(dataset.source, features) if method.taught and not tuned else ()
    examples = prepare(dataset, features, joint=method.joint, k=config.k, progress=progress)
    rows = examples.readable
    if not len(rows):
        raise BadInput(f"{config.dataset}: no answer could be encoded by features {config.features!r}")
    fit, held = (rows[part] for part in split_off(examples.cluster[rows], config.validation, config.seed))
    spec, tried = config.method, None
    learning = Learning(epochs=config.epochs, seed=config.seed)
    if config.sweep:
        tried = sweep(spec, examples, rows, learning, progress=progress)
        best = tried[0]
        spec, learning = best.method, replace(learning, l2=best.l2, epochs=max(1, best.epochs))
        fit, held = rows, rows[:0]  # the folds have chosen the settings; no user needs to be held out any more
    checkpoint = config.target / CHECKPOINT
    learned = tuned or learn(
        spec, examples, fit, held, learning, lessons=lessons, checkpoint=checkpoint, progress=progress
    )
    card = card_of(config, dataset, features, {"rows": len(fit), "users": len(np.unique(examples.user[fit]))})
    card["data"] |= {
        "unreadable": len(dataset) - len(rows),
        "users": len(examples.users),
        "clusters": len(set(dataset.index.clusters)),
    }
    card |= {
        "adapter": about.get("adapter"),  # folder of the LoRA adapter, beside the card, of an LLM that was tuned
        "size": examples.size,
        "l2": learning.l2,
        "trained_on": TrainedOn.of(compress(dataset, np.isin(np.arange(len(dataset)), fit))).as_card(),
        "best_epoch": learned.best,
        "curve": learned.curve,
        "report": learned.report,
        "validation": validate(learned.head, features, dataset, examples, held, config) if len(held) else None,
        "sweep": tried,
    }
    return save(learned.head, config.target, msgspec.to_builtins(card))


def _from_votes(config: TrainConfig, method: Collaborative, dataset: Dataset, features: Features) -> dict[str, Any]:
    if config.sweep:
        raise BadInput(f"--sweep: {config.method} has no grid; compare settings on split `dev`")
    pairs = [item for item in dataset if isinstance(item, Pair)]
    votes = votes_by_user(pairs)
    ratings = ratings_of(votes.values())
    if len(ratings.sign) == 2 * len(pairs):  # nothing but the labels
        raise BadInput(
            f"{config.dataset} has no votes on single items in its histories; collaborative learns from data such as "
            "'polis?path=FOLDER&mirror=true'"
        )
    bias, items = factorize(ratings, method.rank, method.prior, seed=config.seed)
    factors = with_words(bias, items, ratings.items, features)
    card = {
        **card_of(config, dataset, features, {"rows": len(pairs), "users": len(votes)}),
        "method": config.method,
        "validation": None,
        "sweep": None,
        "trained_on": {"rows": [], "users": TrainedOn.of(pairs).as_card()["users"]},
        "report": {
            "items": len(ratings.items),
            "votes": len(ratings.sign),
            "unknown items": f"factors predicted from {config.features} (leave-one-out R² {factors.explained:.3f})",
        },
    }
    return save_factors(factors, ratings.items, config.target, card)


def validate(
    head: Head, features: Features, dataset: Dataset, examples: Examples, held: Ints, config: TrainConfig
) -> Validation:
    """By the same queries that an evaluation makes."""
    support, scored = support_and_scored(head, examples, held[:VALIDATION_ROWS])
    needed = {int(row) for row in (*support, *scored)}
    pairs = {n: item for n, item in enumerate(dataset) if n in needed and isinstance(item, Pair)}
    histories: dict[str, list[Choice]] = {}
    for row in support:
        pair = pairs[int(row)]
        histories.setdefault(pair.user, []).append(Choice(pair.question, *pair.contrast))
    model = Personal(head, features, "validation")
    donors = load(dataset.source, split=dataset.split, donors=True)
    shown = UserConfig(k=config.k)
    builder = QueryBuilder.of(shown, donors, PLANNERS.make(shown.planner), reader=model, seed=config.seed)
    rows = np.sort(scored)
    by_condition = {condition: np.full(len(rows), np.nan) for condition in CONDITIONS}
    """Reward of chosen minus reward of rejected, NaN where there is none."""
    for condition, margins in by_condition.items():
        queries = {}
        for n, row in enumerate(rows):
            if isinstance(made := builder.build(pairs[int(row)], condition), Built):
                choices = made.query.choices or tuple(histories.get(made.query.user or "", ()))
                queries[n] = replace(made.query, choices=choices)
        asks = [Ask(query, answer) for n, query in queries.items() for answer in pairs[int(rows[n])].contrast]
        scores = np.array([np.nan if isinstance(s, Failure) else float(s) for s in model.score(asks)])
        margins[list(queries)] = scores[::2] - scores[1::2]
    credit = {c: credits_of(m) for c, m in by_condition.items()}
    clusters = examples.cluster[rows]
    answered = ~np.isnan(by_condition["profile"])
    with_profile = results(by_condition["profile"][answered], examples, rows[answered])
    return Validation(
        **vars(with_profile),
        users=len(set(examples.user[rows].tolist())),
        labelled_pairs_shown=len(support),
        by_condition={c: share(v[~np.isnan(v)], clusters[~np.isnan(v)]) for c, v in credit.items()},
        gain=difference(credit["profile"], credit["none"], clusters),
        control=difference(credit["profile"], credit["shuffled"], clusters),
    )


def sweep(spec: str, examples: Examples, rows: Ints, learning: Learning, *, progress: Progress = SILENT) -> list[Tried]:
    """Heads with every penalty, and with every value in the method's grid of a setting that the spec does not fix; the
    best first, by held-out accuracy, then by held-out loss.

    Settings are chosen by cross-validation over the training users and by nothing else.
    """
    method, parsed = METHODS.make(spec), Spec.parse(spec)
    open_options = {k: v for k, v in method.grid.items() if k not in parsed.options}
    penalties = (learning.l2,) if method.closed_form else L2
    todo = []
    for values in product(*open_options.values()):
        options = {**parsed.options, **{k: str(v) for k, v in zip(open_options, values, strict=True)}}
        todo += [(str(Spec(parsed.name, options)), replace(learning, l2=l2)) for l2 in penalties]
    progress.begin(f"cross-validating {len(todo)} settings", total=len(todo))
    tried = []
    for candidate, setting in todo:
        tried.append(cross_validate(candidate, examples, rows, setting))
        progress.advance()
    return sorted(tried, key=lambda each: (-(each.accuracy.value or 0), each.loss or 0))


def cross_validate(spec: str, examples: Examples, rows: Ints, learning: Learning) -> Tried:
    """Every row is scored by a head that was trained without its user."""
    clusters = examples.cluster[rows]
    fold = fold_of(clusters, FOLDS, learning.seed)
    scored, epochs = [], []
    for number in range(FOLDS):
        fit, inner_clusters = rows[fold != number], clusters[fold != number]
        inner = fold_of(inner_clusters, min(FOLDS, len(np.unique(inner_clusters))), learning.seed)
        learned = learn(spec, examples, fit[inner != 0], fit[inner == 0], learning)
        scored.append(held_out_margins(learned.head, examples, rows[fold == number]))
        epochs.append(learned.best)
    held_margins, held_rows = map(np.concatenate, zip(*scored, strict=True))
    order = np.argsort(held_rows)
    held = results(held_margins[order], examples, held_rows[order])
    return Tried(method=spec, l2=learning.l2, epochs=int(median(epochs)), accuracy=held.accuracy, loss=held.loss)
