"""`prb train`: from pairs to a folder that `personal?path=` reads, with a card that describes it.

`prb train curve`: how much labeled pairs of a new user help.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import compress, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from prb import __version__
from prb.config import Condition, UserConfig
from prb.data.load import Dataset, load
from prb.engine.executors import Executor, open_executor
from prb.errors import BadInput, MissingExtra
from prb.evaluation.conditions import Built, QueryBuilder
from prb.evaluation.planners import PLANNERS
from prb.models.personal.features import Features, features_of
from prb.models.personal.head import CARD, Head, Personal, infer_codes, read, save
from prb.models.personal.method import METHODS, Floats
from prb.models.personal.methods import Matcher
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, RunFolder, read_lines, remove, sealed, write_bytes, write_json
from prb.stats.estimate import share
from prb.stats.paired import difference
from prb.training.config import WHOLE_MODELS, CurveConfig, FullConfig, TrainConfig
from prb.training.examples import Examples, Ints, encode_lessons, fold_of, lessons_of, open_training, prepare, split_off
from prb.training.loop import (
    Learning,
    credits_of,
    first_rows,
    fitted_codes,
    held_out_margins,
    learn,
    margins,
    results,
    support_and_scored,
)
from prb.types import Ask, Choice, Failure, Pair, TrainedOn

CHECKPOINT, SWEEP = "checkpoint.safetensors", "sweep.jsonl"
CONDITIONS: tuple[Condition, ...] = ("none", "profile", "shuffled")
VALIDATION_ROWS = 2_000
"""Held-out rows that are scored under every condition for the card, at most."""
L2 = (0.001, 0.01, 0.1, 1.0)
"""What a sweep tries."""


def train(config: TrainConfig | FullConfig | None = None, *, progress: Progress = SILENT, **changes: Any) -> Finished:
    """Train a head or a whole model, or resume its training.

    Settings are a config, or its fields as keywords: `train(method="bilinear", dataset="mirror")`.
    """
    if isinstance(config, FullConfig) or (config is None and changes.get("method") in WHOLE_MODELS):
        try:
            from prb.training.full import finetune
        except ModuleNotFoundError:
            raise MissingExtra("training a whole model", "train") from None
        return finetune(FullConfig.of(config, changes), progress=progress)
    config = TrainConfig.of(config, changes)
    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit, skip_bad=config.skip_bad)
    folder = config.target
    with RunFolder(folder, {"train": config.saved(), "data": dataset.fingerprint}):
        if (folder / CARD).exists():
            progress.note(f"{folder} is finished")
            card: dict[str, Any] = read(folder)[1]
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
    about = {"features": config.features}
    tuned: dict[str, Any] = {}
    if isinstance(method, Matcher):
        from prb.training.tune import ADAPTER, tune

        tuned = tune(method, lessons_of(dataset.source), config.features, config.target, config.seed, progress)
        about["adapter"] = ADAPTER
    features = features_of(about, config.target, executor)
    lessons = encode_lessons(dataset.source, features) if method.taught else ()
    examples = prepare(dataset, features, joint=method.joint, k=config.k, rank=config.ranker, progress=progress)
    rows = examples.readable
    if not len(rows):
        raise BadInput(f"{config.dataset}: no answer could be encoded by features {config.features!r}")
    fit, held = (rows[part] for part in split_off(examples.cluster[rows], config.validation, config.seed))
    spec, tried = config.method, None
    learning = Learning(**{field.name: getattr(config, field.name) for field in fields(Learning)})
    if config.sweep:
        kept = config.target / SWEEP
        tried = sweep([spec], examples, rows, learning, config.folds, kept=kept, progress=progress)
        spec, learning = tried[0]["method"], replace(learning, l2=tried[0]["l2"], epochs=max(1, tried[0]["epochs"]))
        fit, held = rows, rows[:0]  # the folds have chosen the settings; nobody needs to be held out any more
    checkpoint = config.target / CHECKPOINT
    learned = learn(spec, examples, fit, held, learning, lessons=lessons, checkpoint=checkpoint, progress=progress)
    card = {
        "prb": __version__,
        **about,
        "features_fingerprint": features.fingerprint,
        "size": examples.size,
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "split": dataset.split,
            "rows": len(dataset),
            "unreadable": len(dataset) - len(rows),
            "users": len(examples.users),
            "clusters": len(set(dataset.index.clusters)),
        },
        "train": config.saved(),
        "seed": config.seed,
        "l2": learning.l2,
        "fitted_on": {"rows": len(fit), "users": len(np.unique(examples.user[fit]))},
        "trained_on": TrainedOn.of(compress(dataset, np.isin(np.arange(len(dataset)), fit))).as_card(),
        "best_epoch": learned.best,
        "curve": learned.curve,
        "report": {**learned.report, **tuned},
        "validation": validate(learned.head, features, dataset, examples, held, config) if len(held) else None,
        "sweep": tried,
    }
    return save(learned.head, config.target, card)


def validate(
    head: Head, features: Features, dataset: Dataset, examples: Examples, held: Ints, config: TrainConfig
) -> dict[str, Any]:
    """Gain and control on the validation users, by the same queries that an evaluation makes."""
    support, scored = support_and_scored(head, examples, held[:VALIDATION_ROWS])
    needed = {int(row) for row in (*support, *scored)}
    pairs = {n: item for n, item in enumerate(dataset) if n in needed and isinstance(item, Pair)}
    histories: dict[str, list[Choice]] = {}
    for row in support:
        pair = pairs[int(row)]
        histories.setdefault(pair.user, []).append(Choice(pair.question, *pair.contrast))
    codes = dict(zip(histories, infer_codes(head, features, list(histories.values())), strict=True))
    model = Personal(head, features, "validation", codes)
    donors = load(dataset.source, split=dataset.split, skip_bad=config.skip_bad, donors=True)
    shown = UserConfig(k=config.k, ranker=config.ranker)
    builder = QueryBuilder.of(shown, donors, PLANNERS.make(shown.planner), reader=model, seed=config.seed)
    rows = np.sort(scored)
    by_condition = {c: condition_margins(model, builder, [pairs[int(row)] for row in rows], c) for c in CONDITIONS}
    credit = {c: credits_of(m) for c, m in by_condition.items()}
    clusters = examples.cluster[rows]
    answered = ~np.isnan(by_condition["profile"])
    return {
        "users": len(set(examples.user[rows].tolist())),
        "labelled_pairs_shown": len(support),
        "by_condition": {c: share(v[~np.isnan(v)], clusters[~np.isnan(v)]).as_dict() for c, v in credit.items()},
        "gain": difference(credit["profile"], credit["none"], clusters).as_dict(),
        "control": difference(credit["profile"], credit["shuffled"], clusters).as_dict(),
        **results(by_condition["profile"][answered], examples, rows[answered]),
    }


def condition_margins(model: Personal, builder: QueryBuilder, pairs: Sequence[Pair], condition: Condition) -> Floats:
    """Reward of chosen minus reward of rejected, NaN where there is none."""
    built = {n: query for n, pair in enumerate(pairs) if isinstance(query := builder.build(pair, condition), Built)}
    asks = [Ask(query.query, answer) for n, query in built.items() for answer in pairs[n].contrast]
    scores = np.array([np.nan if isinstance(s, Failure) else float(s) for s in model.score(asks)])
    differences = np.full(len(pairs), np.nan)
    differences[list(built)] = scores[::2] - scores[1::2]
    return differences


def candidates(spec: str, learning: Learning) -> Iterator[tuple[str, Learning]]:
    """Values of l2, and of the settings in the method's grid that the spec does not fix."""
    method, parsed = METHODS.make(spec), Spec.parse(spec)
    open_options = {k: v for k, v in method.grid.items() if k not in parsed.options}
    penalties = (learning.l2,) if method.closed_form else L2
    for values in product(*open_options.values()):
        options = {**parsed.options, **{k: str(v) for k, v in zip(open_options, values, strict=True)}}
        for l2 in penalties:
            yield str(Spec(parsed.name, options)), replace(learning, l2=l2)


def sweep(
    specs: Sequence[str],
    examples: Examples,
    rows: Ints,
    learning: Learning,
    folds: int,
    *,
    kept: Path | None = None,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """All candidates, the best first: by held-out accuracy, then by held-out loss. `kept` survives an interruption.

    Settings are chosen by cross-validation over the training users and by nothing else.
    """
    todo = [candidate for spec in specs for candidate in candidates(spec, learning)]
    tried = read_lines(kept) if kept and kept.exists() else ()
    done = {(t["method"], t["l2"]): t for t in tried}
    progress.begin(f"cross-validating {len(todo)} settings", total=len(todo), done=len(done))
    for spec, setting in todo:
        if (spec, setting.l2) in done:
            continue
        done[spec, setting.l2] = cross_validate(spec, examples, rows, setting, folds)
        if kept:
            write_bytes(kept, b"".join(map(sealed, done.values())))
        progress.advance()
    return sorted(done.values(), key=lambda t: (-t["accuracy"]["value"], t["loss"]))


def cross_validate(spec: str, examples: Examples, rows: Ints, learning: Learning, folds: int) -> dict[str, Any]:
    """Every row is scored by a head that was trained without its user; `epochs` is the best of the median fold."""
    clusters = examples.cluster[rows]
    fold = fold_of(clusters, folds, learning.seed)
    scored, epochs = [], []
    for number in range(folds):
        fit, inner_clusters = rows[fold != number], clusters[fold != number]
        inner = fold_of(inner_clusters, min(folds, len(np.unique(inner_clusters))), learning.seed)
        learned = learn(spec, examples, fit[inner != 0], fit[inner == 0], learning)
        scored.append(held_out_margins(learned.head, examples, rows[fold == number]))
        epochs.append(learned.best)
    held_margins, held_rows = map(np.concatenate, zip(*scored, strict=True))
    order = np.argsort(held_rows)
    figures = results(held_margins[order], examples, held_rows[order])
    return {"method": spec, "l2": learning.l2, "epochs": int(median(epochs)), **figures}


def learning_curve(config: CurveConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    """Accuracy of a trained head on unseen users by number of labeled pairs; also written to its folder."""
    head, card = read(config.path)
    dataset = load(config.dataset, split=config.split, limit=config.limit, skip_bad=config.skip_bad)
    features, k, rank = features_of(card, config.path), card["train"]["k"], card["train"]["ranker"]
    examples = prepare(dataset, features, joint=head.method.joint, k=k, rank=rank, progress=progress)
    points = curve(head, examples, examples.readable, config.m, config.held)
    result = {"method": head.spec, "dataset": dataset.name, "fingerprint": dataset.fingerprint, "points": points}
    write_json(config.path / "curve.json", result)
    return result


def curve(head: Head, examples: Examples, rows: Ints, ms: tuple[int, ...], held: int) -> list[dict[str, Any]]:
    """Accuracy and person effect for every m; a user with fewer pairs gives all of them.

    The scored rows are the same for every m: of each user the last `held` ones; the labeled pairs come from the rows
    before them. So the points of a curve differ in m alone.
    """
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
