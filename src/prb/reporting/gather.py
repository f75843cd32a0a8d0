"""Reads what `prb report` was given: each folder or file by its kind, evaluations of the same rows side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, structs, to_builtins

from prb.data.load import Dataset
from prb.errors import BadInput, PrbError, first_line
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.metrics import summarize
from prb.evaluation.outcomes import Column, Outcomes, read_outcomes
from prb.evaluation.run import load_rows
from prb.progress import SILENT, Progress
from prb.registry import split_alias
from prb.reporting.evaluation_results import REFERENCES, Conclusion, Evaluation, verdict
from prb.reporting.format import Table, distinct, without_folders
from prb.reporting.results import (
    Audit,
    BestOfN,
    BuiltBenchmark,
    Correlation,
    Grading,
    Licensed,
    Ppo,
    Run,
    Study,
    TrainedModel,
)
from prb.runs import CONFIG, OUTCOMES, SUMMARY, part_of, read_lines, read_object
from prb.stats.estimate import Ints, codes
from prb.stats.paired import corrected
from prb.summary import CONDITIONS, Contrast, DatasetSummary, PairResult, Summary, short_name

DataFile = tuple[str, Any]
"""Of a page of the site: name without suffix, such as `d0/board`, and content."""
BLIND = frozenset({"random", "length", "constant"})
"""Models that cannot know the user at all."""
KINDS = (Evaluation, BestOfN, Ppo, Grading, TrainedModel, BuiltBenchmark, Correlation, Audit, Licensed, Study)
RESULTS: dict[str, type[Run]] = {cls.kind: cls for cls in KINDS}


# --- results of any kind ---
def kind_of(place: Path) -> str:
    """The kind of a finished result, by the verb in its settings or by its file; anything else is refused."""
    if place.is_file():
        files = {kind: cls.keys for kind, cls in RESULTS.items() if cls.keys}
        content = read_object(place)
        kind = next((kind for kind, keys in files.items() if keys <= content.keys()), None)
        if kind is None:
            raise BadInput(f"{place} is not a result of prb: expected a run folder or {', '.join(files)} JSON")
        return kind
    if not place.is_dir():
        raise BadInput(f"{place} does not exist")
    config = read_object(place / CONFIG) if (place / CONFIG).exists() else {}
    for kind, cls in RESULTS.items():
        finished = (place / cls.file).exists()
        if kind in config and not finished:
            raise BadInput(f"{place} is not finished; run the same `prb {kind}` again to resume it")
        if kind in config or (cls.keys and finished):
            return kind
    raise BadInput(f"{place} is not a run")


def read_any(place: Path) -> Run:
    """A finished result of any verb: a run folder, or a result file by itself."""
    cls = RESULTS[kind_of(place)]
    path = place / cls.file if place.is_dir() else place
    folder = path.parent if path.name == cls.file else path.with_suffix("")  # its name is that of the result
    run = cls(folder, read_object(path))
    with explain_damage(place):
        run.numbers()  # decodes the content
    return run


@contextmanager
def explain_damage(place: Path) -> Iterator[None]:
    """A result of an unexpected shape is one line that names it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ValidationError) as error:
        reason = " ".join((f"no {error}" if isinstance(error, LookupError) else str(error)).split())
        raise BadInput(f"{place} was edited or written by another version of prb: {reason}") from None


def inside(folder: Path, *names: str) -> Path:
    """A place to write to in a run folder, which may be somebody else's: a link in it could lead anywhere."""
    path = folder
    for name in names:
        path /= name
        if path.is_symlink():
            raise BadInput(f"{path} is a link to another folder; name the folder to write with --out")
    return path


# --- evaluations ---
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


@dataclass(frozen=True)
class Entry:
    """A model of a run, under the name it has on the site."""

    name: str
    model: str
    """What the run calls it: its short name, or the spec."""
    spec: str
    run: EvaluationRun

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

    @cached_property
    def summary(self) -> Summary:
        """The summaries of its runs as one, with the site's names of models; Holm over all of them."""
        cells = [(e.name, result) for e in self.entries for c in self.conditions if (result := e.result(c))]
        contrasts = [
            {**to_builtins(contrast), "model": entry.name}
            for entry in self.entries
            for contrast in entry.run.summary.contrasts_of(entry.model).values()
        ]
        dataset = structs.replace(self.about, name=short_name(self.about.name))
        return structs.replace(
            self.entries[0].run.summary,
            dataset=dataset,
            results=[structs.replace(result, model=name) for name, result in cells],
            contrasts=convert(corrected(contrasts), list[Contrast]),
        )

    @cached_property
    def verdict(self) -> Conclusion:
        """What the terminal says of one run, of all models of the group."""
        conclusion = verdict(self.summary, [entry.name for entry in self.entries if entry.kind in REFERENCES])
        assert conclusion is not None
        return conclusion

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
    groups: tuple[Group, ...] = ()
    ratings: tuple[EvaluationRun, ...] = ()
    others: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    """Results of other verbs, by kind."""
    texts: bool = True
    """Whether the site may contain texts of the dataset."""
    notices: tuple[Table, ...] = ()
    """What a reader must know first, such as the progress of runs under way."""
    appendix: tuple[Table, ...] = ()
    """What stands below the leaderboard, such as submissions that were refused."""


def gather(
    places: Sequence[Path],
    *,
    runs: Sequence[EvaluationRun] = (),
    texts: bool = True,
    appendix: Sequence[Table] = (),
    progress: Progress = SILENT,
) -> Inputs:
    """`runs`: evaluations that were read already, beside those at `places`."""
    places = list(dict.fromkeys(places))
    unfinished = [p for p in places if (p / CONFIG).exists() and not (p / SUMMARY).exists()]
    under_way = [place for place in unfinished if "evaluate" in read_object(place / CONFIG)]
    parts = [read_partial(place) for place in under_way]
    runs = [*runs, *(run for run, _ in parts if run is not None)]
    others: dict[str, list[Run]] = {}
    for place in (place for place in places if place not in under_way):
        if (kind := kind_of(place)) == "evaluate":
            runs.append(read_run(place))
        else:
            others.setdefault(kind, []).append(read_any(place))
    by_rows: dict[tuple[Any, ...], list[EvaluationRun]] = {}
    for run in runs:
        data = run.summary.dataset
        if run.summary.task == "pairs":
            by_rows.setdefault((data.fingerprint, data.split, data.rows, data.left_out), []).append(run)
    groups = tuple(_group(f"d{n}", same, progress) for n, same in enumerate(by_rows.values()))
    ratings = tuple(run for run in runs if run.summary.task != "pairs")
    return Inputs(groups, ratings, others, texts, tuple(table for _, table in parts), tuple(appendix))


def read_run(folder: Path) -> EvaluationRun:
    config = read_object(folder / CONFIG)
    with explain_damage(folder):
        settings = EvaluateConfig(**EvaluateConfig.restore(config))
        fingerprints = convert(config.get("models", {}), dict[str, str])
        return EvaluationRun(folder, settings, Summary.of_run(folder), fingerprints)


def _group(name: str, runs: Sequence[EvaluationRun], progress: Progress) -> Group:
    # a model that is in several runs has the run's name in brackets, and a number where that is not enough
    models = [(*split_alias(model), run) for run in runs for model in run.settings.models]
    names = [without_folders(model) for model, _, _ in models]
    in_runs = [f"{name} ({run.folder.name})" for name, (_, _, run) in zip(names, models, strict=True)]
    shown = distinct([name if names.count(name) == 1 else long for name, long in zip(names, in_runs, strict=True)])
    entries = tuple(Entry(name, *model) for name, model in zip(shown, models, strict=True))
    columns: dict[tuple[str, str], Column] = {}
    first: Outcomes | None = None
    for run in runs:
        progress.begin(f"reading {run.folder}")
        outcomes = run.outcomes or read_outcomes(run.folder, details=True)
        first = first or outcomes
        expected = {(row.model, row.condition): run.summary.dataset.rows for row in run.summary.results}
        if {cell: len(column) for cell, column in outcomes.of.items()} != expected or outcomes.pairs != first.pairs:
            raise BadInput(
                f"{run.folder}: outcomes.jsonl does not have the rows, models and conditions of summary.json"
            )
        for entry in entries:
            if entry.run is run:
                own = {c: column for (model, c), column in outcomes.of.items() if model == entry.model}
                columns |= {(entry.name, condition): column for condition, column in own.items()}
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
def read_partial(folder: Path) -> tuple[EvaluationRun | None, Table]:
    """What a run has done so far, if it is enough to report, and its progress."""
    config = read_object(folder / CONFIG)
    settings = EvaluateConfig(**EvaluateConfig.restore(config))
    try:
        dataset = load_rows(settings)
    except (PrbError, OSError) as error:
        raise BadInput(f"{folder} is not finished, and its dataset cannot be read: {error}") from None
    if dataset.fingerprint != config["dataset"]["fingerprint"]:
        raise BadInput(f"{folder} is not finished, and {settings.dataset} has changed since it began")
    path = next((path for path in (part_of(folder / OUTCOMES), folder / OUTCOMES) if path.exists()), None)
    lines = list(read_lines(path)) if path else []
    counts = Counter((line["model"], line["condition"]) for line in lines)
    total = len(dataset)
    done = {model: min(counts[model, c] for c in settings.condition) for model in settings.names}
    complete = [model for model, rows in done.items() if rows == total]
    shown = complete or [model for model, rows in done.items() if rows]
    rows = min((done[model] for model in shown), default=0)
    what = "Nothing can be shown yet."
    if complete:
        what = f"The report shows the models that are finished: {', '.join(complete)}."
    elif shown:
        what = f"The report shows the first {rows:,} rows; numbers will change."
    cells = [(folder.name, model, f"{n:,} of {total:,}") for model, n in done.items()]
    table = Table("Under way", ("run", "model", "rows done"), tuple(cells), (what,))
    if not shown:
        return None, table
    part = replace(settings, model=tuple(spec for spec in settings.models if split_alias(spec)[0] in shown))
    first = dataset.first(rows) if rows < total else dataset
    outcomes = Outcomes(first.index.ids, [(m, c) for m in shown for c in settings.condition], details=True)
    for number, line in enumerate(lines, 1):
        column = outcomes.of.get((line["model"], line["condition"]))
        if column is not None and len(column) < rows:
            outcomes.read(line, f"{folder / OUTCOMES}, line {number}")
    summary, _ = summarize(part, first, outcomes)
    return EvaluationRun(folder, part, summary, outcomes=outcomes, dataset=first), table
