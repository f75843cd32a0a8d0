"""`prb data list | pull | check | show | stats | convert | push`."""

# ruff: noqa: T201

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prb.cli.parse import print_json
from prb.config import ConditionName, Name, Place, Positional, PositionalOrFlag, Settings, config
from prb.summary import needs_donors
from prb.types import visible

if TYPE_CHECKING:
    from prb.types import Pair

Dataset = PositionalOrFlag[Name]


@config
class ListConfig(Settings):
    """Every dataset that has a name; of one, all its options."""

    name: Positional[str | None] = None
    """A dataset such as `votes`: its options with their defaults."""


@config
class PullConfig(Settings):
    """Download a public dataset into the cache folder ($PRB_CACHE), every file checked by its SHA-256."""

    name: Positional[str]
    """Which one: polis."""
    source: Name | None = None
    """A folder with a copy of its files, or another address, instead of where they are published."""


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
    """Id of the row."""
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
    """Publish a dataset: Parquet by split, a card with metadata, Croissant. Of a build, its pairs and its own card."""

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
    from prb.reporting.format import show
    from prb.reporting.results import names_table, options_table

    rows = [DATASETS.about(name) for name in ([config.name] if config.name else DATASETS)]
    if config.json:
        print_json(rows)
    elif config.name:
        show(options_table(rows[0]))
    else:
        show(names_table("Datasets: name?option=value&… (`prb data list NAME` shows the options)", rows))


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
        print(f"{config.dataset}: {len(errors)} errors, {len(warnings)} warnings")
    counted = problems if config.strict else errors
    if counted:
        raise BadData(config.dataset, counted, shown=0)


def data_stats(config: StatsConfig) -> None:
    from prb.data.check import describe
    from prb.reporting.format import show
    from prb.reporting.results import stats_table

    figures = describe(config.dataset)
    print_json(figures) if config.json else show(stats_table(figures, config.dataset))


def data_show(config: ShowConfig) -> None:
    from prb.data.schema import prepared, row_problems, to_pair
    from prb.data.source import find_row
    from prb.errors import BadInput

    spec, id_ = (config.dataset, config.id) if config.id else ("mirror", config.dataset)
    if config.condition is None and config.json:
        print_json(find_row(spec, id_).data)
        return
    row = prepared(find_row(spec, id_), "pairs")
    if problems := row_problems(row, "pairs"):
        raise BadInput(f"{spec} {id_}: {'; '.join(problems)}")
    pair = to_pair(row)
    if config.condition is None:
        from prb.reporting.format import say
        from prb.reporting.results import pair_text

        say(*pair_text(pair).splitlines())
        return
    prompt = _prompt(spec, pair, config.condition)
    if config.json:
        print_json({"id": pair.id, "condition": config.condition, "prompt": prompt})
    else:
        print(visible(prompt))


def _prompt(spec: str, pair: Pair, condition: ConditionName) -> str:
    """What `prb evaluate` with default settings shows a model."""
    from prb.data.load import load
    from prb.errors import PrbError
    from prb.evaluation.conditions import QueryBuilder
    from prb.evaluation.config import EvaluateConfig
    from prb.evaluation.planners import PLANNERS
    from prb.prompts import render
    from prb.types import Failure

    settings = EvaluateConfig()
    dataset = load(spec, split=pair.split, donors=needs_donors([condition]))
    planner = PLANNERS.make(settings.planner)
    built = QueryBuilder.of(settings, dataset, planner, reader=None, seed=settings.seed).build(pair, condition)
    if isinstance(built, Failure):
        raise PrbError(f"{pair.id}: {built}")
    return render(built.query)


def data_convert(config: ConvertConfig) -> None:
    from prb.data.publish import convert
    from prb.data.source import open_source

    count = convert(open_source(config.dataset), config.target)
    if config.json:
        print_json({"rows": count, "path": str(config.target)})
    else:
        print(f"{count} rows written to {config.target}")


def data_push(config: PushConfig) -> None:
    from prb.data.publish import push
    from prb.progress import watch

    with watch(config.quiet) as progress:
        place = push(
            config.dataset,
            config.to,
            license=config.license,
            about=config.about,
            private=config.private,
            progress=progress,
        )
    print_json({"dataset": str(place)}) if config.json else print(f"dataset: {place}")


def data_pull(config: PullConfig) -> None:
    from prb.data.pull import DOWNLOADS, pull
    from prb.progress import watch

    with watch() as progress:
        folder = pull(config.name, config.source, progress)
    about = DOWNLOADS[config.name]
    if config.json:
        print_json({"folder": str(folder), "license": about.license, "attribution": about.attribution})
    else:
        print(f"license: {about.license}\n{about.attribution}\n{config.name}: {folder}")
