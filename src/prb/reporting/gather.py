"""Reads what `prb report` was given: each folder or file by its kind, evaluations of the same rows side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import convert, structs, to_builtins

from prb.data.load import Dataset
from prb.downstream.correlate import short_name
from prb.downstream.ppo import CURVES, read_curves
from prb.errors import BadInput, PrbError, first_line
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.outcomes import Column, Outcomes, read_outcomes
from prb.evaluation.run import load_rows
from prb.evaluation.summary import summary_of
from prb.grading.license import LICENSE, License
from prb.progress import SILENT, Progress
from prb.registry import split_alias
from prb.reporting.audit_results import audit_tables
from prb.reporting.downstream import bon_tables, correlation_tables, ppo_tables
from prb.reporting.evaluation_results import evaluation_table
from prb.reporting.format import Table, percent, without_folders
from prb.reporting.published import (
    ModelMetadata,
    PublishedResult,
    metadata_of,
    read_metadata,
    read_published,
    read_rows,
    trained_card,
)
from prb.reporting.results import build_lines, explain_damage, grade_table, license_table, train_lines
from prb.runs import CONFIG, OUTCOMES, SUMMARY, part_of, read_lines, read_object
from prb.stats.estimate import Ints, codes
from prb.stats.paired import correct
from prb.summary import CONDITIONS, Contrast, DatasetSummary, PairResult, Summary, shown_condition

DataFile = tuple[str, Any]
"""Of a page of the site: name without suffix, such as `d0/board`, and content."""
BLIND = frozenset({"random", "length", "shortest", "constant"})
"""Models that cannot know the user at all."""
LAST_FILES = {
    "evaluate": SUMMARY,
    "bon": SUMMARY,
    "ppo": SUMMARY,
    "grade": SUMMARY,
    "train": "card.json",
    "build": "card.json",
}
"""By the verb in `config.json`: the file that a finished run has."""
FILES = {"correlation": "correlation.json", "audit": "audit.json", "license": LICENSE}
KEYS = {
    "correlation": {"sets", "bench", "downstream"},
    "audit": {"floors", "giveaways", "verdict"},
    "agreement": {"agreement", "preference", "planning"},
    "license": {"judge", "human", "epsilon", "questions"},
}
"""Kinds of JSON files, by the keys they hold."""


@dataclass(frozen=True)
class EvaluationRun:
    """An evaluation run on disk, finished unless `outcomes` are given."""

    folder: Path
    settings: EvaluateConfig
    summary: Summary
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Which weights each model stood for."""
    outcomes: Outcomes | None = None
    """Of a run under way: what it has done so far. Those of a finished one are read from its folder."""
    dataset: Dataset | None = None
    """If it was loaded already, and is not to be taken from where the run's settings say."""
    metadata: tuple[ModelMetadata, ...] | None = None
    """Of a submission: what it says of its own models. Of a run of ours it is read from files."""

    @property
    def rows(self) -> tuple[Any, ...]:
        """Equal for runs that used the same rows."""
        about = self.summary.dataset
        return about.fingerprint, about.split, about.rows, about.left_out


@dataclass(frozen=True)
class Entry:
    """A model of a run, under the name it has on the site."""

    name: str
    model: str
    """What the run calls it: its short name, or the spec."""
    spec: str
    run: EvaluationRun
    metadata: ModelMetadata | None = None

    @property
    def kind(self) -> str:
        return self.spec.partition("?")[0]

    def result(self, condition: str) -> PairResult | None:
        result = self.run.summary.result(self.model, condition)
        return result if isinstance(result, PairResult) else None


@dataclass(frozen=True)
class Group:
    """Evaluations of the same rows: their models share tables, tests and pairs."""

    id: str
    entries: tuple[Entry, ...]
    conditions: tuple[str, ...]
    pairs: tuple[str, ...]
    users: tuple[str, ...]
    clusters: Ints
    columns: Mapping[tuple[str, str], Column]
    """Outcomes by name of the entry and condition."""
    dataset: Dataset | None
    missing: str
    """Why the texts of the dataset are missing, if they are."""
    history: tuple[int, ...] | None
    """Number of posts the user of each pair has."""

    @property
    def about(self) -> DatasetSummary:
        return self.entries[0].run.summary.dataset

    @property
    def label(self) -> str:
        about, split = self.about, self.about.split
        return f"{short_name(about.name)}{f' · {split}' if split else ''} · {about.rows:,} pairs"

    @property
    def shown(self) -> str:
        return shown_condition(self.conditions)

    @cached_property
    def summary(self) -> Summary:
        """The summaries of its runs as one, with the site's names of models; Holm over all of them."""
        cells = [(e.name, result) for e in self.entries for c in self.conditions if (result := e.result(c))]
        contrasts = [
            {**to_builtins(contrast), "model": entry.name}
            for entry in self.entries
            for contrast in entry.run.summary.contrasts_of(entry.model).values()
        ]
        correct(contrasts)
        dataset = structs.replace(self.about, name=short_name(self.about.name))
        return structs.replace(
            self.entries[0].run.summary,
            dataset=dataset,
            results=[structs.replace(result, model=name) for name, result in cells],
            contrasts=convert(contrasts, list[Contrast]),
        )

    def under(self, condition: str) -> Iterator[tuple[int, Column]]:
        """Number and outcomes of every model that was run under a condition."""
        for n, entry in enumerate(self.entries):
            if (entry.name, condition) in self.columns:
                yield n, self.columns[entry.name, condition]

    def columns_of(self, entry: Entry) -> dict[str, Column]:
        """A model's outcomes by condition."""
        return {c: self.columns[entry.name, c] for c in self.conditions if (entry.name, c) in self.columns}


@dataclass(frozen=True)
class Inputs:
    groups: tuple[Group, ...]
    ratings: tuple[EvaluationRun, ...]
    others: Mapping[str, tuple[Path, ...]]
    """By verb (bon, ppo, grade, train, build) or kind (correlation, audit, agreement): folders and JSON files."""
    texts: bool = True
    """Whether the site may contain texts of the dataset."""
    published: tuple[PublishedResult, ...] = ()
    notices: tuple[Table, ...] = ()
    """What a reader must know first, such as the progress of runs under way."""
    appendix: tuple[Table, ...] = ()
    """What stands below the leaderboard, such as submissions that were refused."""

    @property
    def evaluations(self) -> list[EvaluationRun]:
        runs = [entry.run for group in self.groups for entry in group.entries]
        return list({run.folder: run for run in [*runs, *self.ratings]}.values())


def gather(
    places: Sequence[Path],
    *,
    runs: Sequence[EvaluationRun] = (),
    texts: bool = True,
    published: str | None = None,
    models: Path | None = None,
    notices: Sequence[Table] = (),
    appendix: Sequence[Table] = (),
    progress: Progress = SILENT,
) -> Inputs:
    """`runs`: evaluations that were read already, beside those at `places`."""
    if not places and not runs and not notices:
        raise BadInput("name at least one run folder")
    kinds = [(kind_of(place), place) for place in dict.fromkeys(places)]
    runs = [*runs, *(read_run(place) for kind, place in kinds if kind == "evaluate")]
    others: dict[str, tuple[Path, ...]] = {}
    for kind, place in kinds:
        if kind != "evaluate":
            others[kind] = (*others.get(kind, ()), place)
    by_rows: dict[tuple[Any, ...], list[EvaluationRun]] = {}
    for run in runs:
        if run.summary.task == "pairs":
            by_rows.setdefault(run.rows, []).append(run)
    results = read_published(published) if published else ()
    told = read_rows(models, ModelMetadata) if models else None
    groups = tuple(_group(f"d{n}", same, told, progress) for n, same in enumerate(by_rows.values()))
    names = [group.about.name for group in groups]
    if published and not any(result.is_about(name) for result in results for name in names):
        progress.note(f"published results: {published} has none about {', '.join(names) or 'these runs'}")
    ratings = tuple(run for run in runs if run.summary.task != "pairs")
    return Inputs(groups, ratings, others, texts, results, tuple(notices), tuple(appendix))


def kind_of(place: Path) -> str:
    """The verb that made a folder, or the kind of a JSON file; anything else, or unfinished, is refused."""
    if place.is_file():
        content = read_object(place)
        kind = next((kind for kind, keys in KEYS.items() if keys <= set(content)), None)
        if kind is None:
            raise BadInput(f"{place} is not a result of prb: expected a run folder or {', '.join(KEYS)} JSON")
        return kind
    if not place.is_dir():
        raise BadInput(f"{place} does not exist")
    config = read_object(place / CONFIG) if (place / CONFIG).exists() else {}
    verb = next((v for v in LAST_FILES if v in config), None)
    if verb and not (place / LAST_FILES[verb]).exists():
        raise BadInput(f"{place} is not finished; run the same `prb {verb}` again to resume it")
    kind = verb or next((kind for kind, name in FILES.items() if (place / name).exists()), None)
    if kind is None:
        raise BadInput(f"{place} is not a run")
    return kind


def read_run(folder: Path) -> EvaluationRun:
    config = read_object(folder / CONFIG)
    summary = Summary.read(read_object(folder / SUMMARY), folder / SUMMARY)
    with explain_damage(folder):
        fingerprints = convert(config.get("models", {}), dict[str, str])
        return EvaluationRun(folder, read_settings(config), summary, fingerprints)


def read_settings(config: Mapping[str, Any]) -> EvaluateConfig:
    return EvaluateConfig(**EvaluateConfig.restore(config))


def check_table(*tables: Table) -> None:
    """A table is made from a result file, so what is not a text in it is damage."""
    convert([table.rows for table in tables], list[list[list[str]]])


def read_any(place: Path) -> tuple[str, dict[str, Any]]:
    """The kind of a finished result and its content, which is as its verb writes it."""
    kind = kind_of(place)
    if kind == "evaluate":
        return kind, read_run(place).summary.as_json()
    name = (LAST_FILES.get(kind) or FILES[kind]) if place.is_dir() else ""
    content = read_object(place / name)
    with explain_damage(place):
        check_table(*tables_of(kind, content))
        if kind == "ppo":
            content["curves"] = read_curves(place / CURVES, up_to=content["train"]["steps"])
    return kind, content


def tables_of(kind: str, content: Mapping[str, Any]) -> list[Table]:
    """The tables that the verb which made a result prints; where it prints lines, one table of them."""
    tables: dict[str, Callable[[Mapping[str, Any]], Iterable[Table]]] = {
        "evaluate": lambda summary: [evaluation_table(summary)],
        "grade": lambda summary: [grade_table(summary)],
        "license": lambda content: [license_table(convert(content, License))],
        "bon": bon_tables,
        "ppo": ppo_tables,
        "audit": audit_tables,
        "correlation": correlation_tables,
    }
    if kind in tables:
        return list(tables[kind](content))
    title = kind
    if kind == "train":
        lines = train_lines(content) if "fitted_on" in content else [str(content["model"])]
    elif kind == "build":
        lines = build_lines(content)
    else:
        from prb.study.agreement import verdict

        title, lines = "human study", verdict(dict(content))
    return [Table(title, ("result",), tuple((line,) for line in lines))]


def inside(folder: Path, *names: str) -> Path:
    """A place to write to in a run folder, which may be somebody else's: a link in it could lead anywhere."""
    path = folder
    for name in names:
        path /= name
        if path.is_symlink():
            raise BadInput(f"{path} is a link to another folder; name the folder to write with --out")
    return path


def result_name(place: Path) -> str:
    """The name of a result; that of its folder where all files of its kind have the same name."""
    return place.parent.name if place.name in FILES.values() else place.stem if place.is_file() else place.name


def prepared(inputs: Inputs, kind: str, prepare: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    """Every result of a kind as its page needs it."""
    results = []
    for place in inputs.others.get(kind, ()):
        with explain_damage(place):
            results.append({"name": result_name(place), **public_texts(prepare(read_any(place)[1]))})
    return results


def public_texts(value: Any) -> Any:
    """The same without places on this machine."""
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {key: public_texts(item) for key, item in value.items()}
    return [public_texts(item) for item in value] if isinstance(value, (list, tuple)) else value


def _group(name: str, runs: Sequence[EvaluationRun], told: Sequence[ModelMetadata] | None, progress: Progress) -> Group:
    entries = tuple(replace(entry, metadata=_metadata(entry, told)) for entry in _entries(runs))
    columns: dict[tuple[str, str], Column] = {}
    first: Outcomes | None = None
    for run in runs:
        progress.begin(f"reading {run.folder}")
        outcomes = run.outcomes or read_outcomes(run.folder, details=True)
        summarized = {(row.model, row.condition) for row in run.summary.results}
        if set(outcomes.of) != summarized or set(outcomes.models) != set(run.settings.names):
            raise BadInput(f"{run.folder}: settings, outcomes and summary have different models or conditions")
        first = first or outcomes
        for (model, condition), column in outcomes.of.items():
            if outcomes.pairs != first.pairs or len(column) != run.summary.dataset.rows:
                raise BadInput(f"{run.folder}: {model!r} under {condition} does not have one outcome per pair")
            entry = next(entry for entry in entries if entry.run is run and entry.model == model)
            columns[entry.name, condition] = column
    assert first is not None
    dataset, missing = dataset_of(runs, first.pairs, progress)
    present = {condition for _, condition in columns}
    return Group(
        id=name,
        entries=entries,
        conditions=tuple(c for c in CONDITIONS if c in present),
        pairs=tuple(first.pairs),
        users=tuple(first.users),
        clusters=codes(first.clusters),
        columns=columns,
        dataset=dataset,
        missing=missing,
        history=tuple(len(item.profile) for item in dataset) if dataset else None,
    )


def _metadata(entry: Entry, told: Sequence[ModelMetadata] | None) -> ModelMetadata | None:
    """From the file that was given, else from the files of the model's own run, else from its card."""
    submitted = entry.run.metadata
    if submitted is not None:
        return metadata_of((*(told or ()), *submitted), entry.model, entry.spec)
    rows = read_metadata(entry.run.folder) if told is None else told
    return metadata_of(rows, entry.model, entry.spec) or trained_card(entry.model, entry.spec)


def _entries(runs: Sequence[EvaluationRun]) -> tuple[Entry, ...]:
    """A model that is in several runs has the run's name in brackets, and a number where that is not enough."""
    models = [(*split_alias(model), run) for run in runs for model in run.settings.models]
    names = [without_folders(name) for name, _, _ in models]
    counts: dict[str, int] = {}
    entries = []
    for name, (model, spec, run) in zip(names, models, strict=True):
        entry = Entry(name if names.count(name) == 1 else f"{name} ({run.folder.name})", model, spec, run)
        counts[entry.name] = n = counts.get(entry.name, 0) + 1
        entries.append(entry if n == 1 else replace(entry, name=f"{entry.name} {n}"))
    return tuple(entries)


def dataset_of(runs: Sequence[EvaluationRun], pairs: Sequence[str], progress: Progress) -> tuple[Dataset | None, str]:
    """The rows, if they are still where the run found them and unchanged; else why not."""
    settings, about = runs[0].settings, runs[0].summary.dataset
    if runs[0].dataset is not None:
        return runs[0].dataset, ""
    progress.begin(f"reading {settings.dataset}")
    try:
        conditions = dict.fromkeys(condition for run in runs for condition in run.settings.condition)
        dataset = load_rows(replace(settings, condition=tuple(conditions)))
    except (PrbError, OSError) as error:
        return None, f"The dataset cannot be read anymore: {without_folders(first_line(error))}"
    if dataset.fingerprint != about.fingerprint or tuple(dataset.index.ids) != tuple(pairs):
        return None, f"{short_name(settings.dataset)} has changed since these runs."
    return dataset, ""


# --- runs under way ---
# Models are compared on the same rows. So a report shows the models that are finished, or, while there is none, those
# that have begun, on the rows that all of them have done. The others are in the table of progress.
PROGRESS = ("run", "model", "rows done", "rows missing", "failed", "accuracy so far, %")


@dataclass
class Tally:
    """Of one model: lines by condition, and credit under the condition that is shown."""

    lines: dict[str, int]
    failed: int = 0
    credit: float = 0.0
    credited: int = 0

    @property
    def rows(self) -> int:
        """Rows that have an outcome under every condition."""
        return min(self.lines.values())

    def add(self, line: Mapping[str, Any], condition: str) -> None:
        self.lines[line["condition"]] += 1
        self.failed += line["failure"] is not None
        if line["condition"] == condition and line["credit"] is not None:
            self.credit += line["credit"]
            self.credited += 1


def is_under_way(place: Path) -> bool:
    """Whether a folder is an evaluation that has not finished."""
    return (place / CONFIG).exists() and not (place / SUMMARY).exists() and "evaluate" in read_object(place / CONFIG)


def read_partial(folder: Path) -> tuple[EvaluationRun | None, Table]:
    """What a run has done so far, if it is enough to report, and its progress."""
    config = read_object(folder / CONFIG)
    settings = read_settings(config)
    dataset = _dataset(folder, config, settings)
    tallies = _tallies(folder, settings)
    total = len(dataset)
    done = {model: tally.rows for model, tally in tallies.items()}
    shown = [model for model, rows in done.items() if rows == total] or [model for model, rows in done.items() if rows]
    table = _table(folder, settings, tallies, total, shown)
    if not shown:
        return None, table
    rows = min(done[model] for model in shown)
    specs = tuple(spec for spec in settings.models if split_alias(spec)[0] in shown)
    part = replace(settings, model=specs)
    first = dataset.first(rows) if rows < total else dataset
    outcomes = Outcomes(first.index.ids, [(m, c) for m in shown for c in settings.condition], details=True)
    taken = dict.fromkeys(outcomes.of, 0)
    for number, line in enumerate(_lines(folder), 1):
        cell = line["model"], line["condition"]
        if cell in taken and taken[cell] < rows:
            taken[cell] += 1
            outcomes.read(line, f"{folder / OUTCOMES}, line {number}")
    summary, _ = summary_of(part, first, outcomes)
    return EvaluationRun(folder, part, summary, outcomes=outcomes, dataset=first), table


def _dataset(folder: Path, config: Mapping[str, Any], settings: EvaluateConfig) -> Dataset:
    try:
        dataset = load_rows(settings)
    except (PrbError, OSError) as error:
        raise BadInput(f"{folder} is not finished, and its dataset cannot be read: {error}") from None
    if dataset.fingerprint != config["dataset"]["fingerprint"]:
        raise BadInput(f"{folder} is not finished, and {settings.dataset} has changed since it began")
    return dataset


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    path = next((path for path in (part_of(folder / OUTCOMES), folder / OUTCOMES) if path.exists()), None)
    return read_lines(path) if path else iter(())


def _tallies(folder: Path, settings: EvaluateConfig) -> dict[str, Tally]:
    tallies = {model: Tally(dict.fromkeys(settings.condition, 0)) for model in settings.names}
    condition = shown_condition(settings.condition)
    for number, line in enumerate(_lines(folder), 1):
        try:
            tallies[line["model"]].add(line, condition)
        except (KeyError, TypeError):
            raise BadInput(f"{folder / OUTCOMES}, line {number}: not an outcome of this run") from None
    return tallies


def _table(
    folder: Path, settings: EvaluateConfig, tallies: Mapping[str, Tally], total: int, shown: Sequence[str]
) -> Table:
    rows = []
    for model, tally in tallies.items():
        accuracy = percent(tally.credit / tally.credited if tally.credited else None)
        cells = (f"{tally.rows:,} of {total:,}", f"{total - tally.rows:,}", f"{tally.failed:,}", accuracy)
        rows.append((folder.name, model, *cells))
    complete = [model for model in shown if tallies[model].rows == total]
    if complete:
        what = f"The report shows the models that are finished: {', '.join(complete)}."
    elif shown:
        what = f"The report shows the first {min(tallies[m].rows for m in shown):,} rows; numbers will change."
    else:
        what = "Nothing can be shown yet."
    note = f"{what} Accuracy so far is under {shown_condition(settings.condition)}."
    return Table("Under way", PROGRESS, tuple(rows), (note,))


def rebuild_while_growing(runs: Sequence[Path], build: Callable[[], Path], *, every: float) -> Path:
    """Build, and build again whenever files of the runs have changed, until all of them are finished."""
    while True:
        seen, under_way = _sizes(runs), any(is_under_way(run) for run in runs)
        index = build()
        if not under_way:
            return index
        while _sizes(runs) == seen:
            time.sleep(every)


def _sizes(runs: Sequence[Path]) -> list[tuple[int, int] | None]:
    files = [run / name for run in runs for name in (CONFIG, OUTCOMES, SUMMARY)]
    stats = [file.stat() if file.exists() else None for file in files]
    return [(stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats]
