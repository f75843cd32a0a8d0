"""Everything `prb train` can be told. One class is the Python API, the flags and the saved `config.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from prb.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train a small reward model that knows whose preference it judges."""

    method: tyro.conf.Positional[str]
    """A method with its settings, such as `bilinear` or `bilinear?rank=16`; `prb train --help` lists them."""
    dataset: str = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    split: str | None = None
    """Which split to learn from; `train` where rows carry one, else all rows."""
    features: str = "static"
    """An encoder (`static`, `minilm`) or `hidden?lm=smollm2&layer=22&pool=mean`."""
    out: Path
    """Folder of the trained head; the same command resumes it."""
    limit: int | None = None
    """Only the first N rows of the split."""
    k: int = 10
    """How many posts of the history a head is shown; evaluate with the same number."""
    ranker: Literal["embedding", "bm25", "recency"] = "embedding"
    """How the k posts are picked."""
    l2: float = 0.01
    """Penalty on squared weights."""
    lr: float = 0.003
    """Step size of Adam."""
    epochs: int = 60
    """At most this many passes."""
    patience: int = 8
    """Stop after so many passes without a better loss on the validation persons."""
    batch: int = 512
    """Rows a step; the pairs of a person stay together."""
    validation: float = 0.2
    """Share of persons held out for early stopping; 0 trains on all of them for `epochs` passes."""
    sweep: bool = False
    """Choose the method's settings and l2 by cross-validation over the training persons."""
    folds: int = 5
    """Parts of that cross-validation."""
    seed: int = 0
    """Fixes start weights, order, noise and who is held out."""
    json: bool = False
    """Print card.json to stdout instead of a few lines."""
    quiet: bool = False
    """No progress."""


PRESENTATION = frozenset({"out", "json", "quiet"})


def settings_of(config: TrainConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in PRESENTATION}


def check(config: TrainConfig) -> None:
    """Every setting, before anything expensive happens."""
    from prb.models.personal.features import check_features
    from prb.models.personal.method import METHODS
    from prb.registry import Spec

    METHODS.check(Spec.parse(config.method))
    check_features(config.features)
    for setting, least in (("limit", 1), ("k", 0), ("epochs", 1), ("patience", 1), ("batch", 1), ("folds", 2)):
        value = getattr(config, setting)
        if value is not None and value < least:
            raise BadInput(f"--{setting} {value}: wants {least} or more")
    for setting in ("l2", "lr"):
        if not 0 <= getattr(config, setting) < float("inf"):
            raise BadInput(f"--{setting} {getattr(config, setting)}: wants a number that is not negative")
    if not 0 <= config.validation < 1:
        raise BadInput(f"--validation {config.validation}: wants a share from 0 to below 1")
