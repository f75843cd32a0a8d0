"""`prb train`: from pairs to a folder that `personal?path=` reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from prb.data.load import Dataset
from prb.errors import BadInput
from prb.models.personal.features import make_features
from prb.models.personal.head import CARD, FORMAT, save
from prb.models.personal.method import METHODS
from prb.progress import SILENT, Progress
from prb.runs import Folder, read_json
from prb.training.card import describe, validated
from prb.training.checkpoint import Checkpoint
from prb.training.config import TrainConfig, check, settings_of
from prb.training.examples import open_training, prepare
from prb.training.folds import split_off
from prb.training.loop import Learning, learn
from prb.training.sweep import sweep

CHECKPOINT, SWEEP = "checkpoint.safetensors", "sweep.json"


def train(config: TrainConfig, *, progress: Progress = SILENT) -> dict[str, Any]:
    """Train or resume; the card of the head in `config.out`."""
    check(config)
    progress.begin(f"checking {config.dataset}")
    dataset = open_training(config.dataset, config.split, config.limit)
    place = Folder(config.out, {"train": settings_of(config), "data": dataset.fingerprint})
    place.open()
    try:
        if (config.out / CARD).exists():
            progress.note(f"{config.out} is finished")
            card: dict[str, Any] = read_json(config.out / CARD)
            return card
        return _train(config, dataset, progress)
    except BaseException:
        if not any((config.out / name).exists() for name in (CHECKPOINT, SWEEP, CARD)):
            place.leave_no_trace()
        raise
    finally:
        place.close()


def _train(config: TrainConfig, dataset: Dataset, progress: Progress) -> dict[str, Any]:
    features = make_features(config.features)
    joint = METHODS.make(config.method).joint
    examples = prepare(dataset, features, joint=joint, k=config.k, rank=config.ranker, progress=progress)
    rows = examples.readable
    if not len(rows):
        raise BadInput(f"{config.dataset}: no answer could be read by features {config.features!r}")
    fit, held = (rows[part] for part in split_off(examples.cluster[rows], config.validation, config.seed))
    spec, learning, tried = config.method, learning_of(config), None
    if config.sweep:
        kept = config.out / SWEEP
        tried = sweep([spec], examples, rows, learning, config.folds, kept=kept, progress=progress)
        spec, learning = tried[0]["method"], replace(learning, l2=tried[0]["l2"], epochs=max(1, tried[0]["epochs"]))
        fit, held = rows, rows[:0]  # chosen without anybody held back, so everybody may teach the final head
    learned = learn(spec, examples, fit, held, learning, checkpoint=config.out / CHECKPOINT, progress=progress)
    about = describe(config, dataset, features, examples) | {
        "seed": config.seed,
        "l2": learning.l2,
        "fitted_on": {"rows": len(fit), "persons": len(np.unique(examples.person[fit]))},
        "best_epoch": learned.best,
        "curve": learned.curve,
        "report": learned.report,
        "validation": validated(learned.head, features, dataset, examples, held, config),
        "sweep": tried,
    }
    save(learned.head, config.out, about)
    Checkpoint(config.out / CHECKPOINT).remove()
    return {"format": FORMAT, "method": spec, **about}


def learning_of(config: TrainConfig) -> Learning:
    return Learning(
        l2=config.l2,
        lr=config.lr,
        epochs=config.epochs,
        patience=config.patience,
        batch=config.batch,
        seed=config.seed,
    )
