"""`prb export`: a finished evaluation in a format that others read: what all formats share, the results of the Hugging
Face hub, and tables. The other formats have their own files.

The same run, settings and date give the same bytes: a run folder holds no time, so the day is told or today's; names
are made from content.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from prb import __version__
from prb.config import Name, OutputConfig, Place, Positional, config
from prb.data.load import Dataset
from prb.errors import BadInput, unknown
from prb.evaluation.outcomes import read_outcomes
from prb.progress import SILENT, Progress
from prb.registry import Spec, split_alias, typed_options
from prb.reporting.evaluation_results import numbers_table, user_rows
from prb.reporting.format import as_csv, table_of
from prb.reporting.gather import EvaluationRun, dataset_of, explain_damage, inside, kind_of, read_run
from prb.runs import OUTCOMES, read_lines, write_bytes
from prb.summary import METRICS, Contrast, DatasetSummary, Metric, Summary, UserTable
from prb.types import Estimate, Item


class Format(NamedTuple):
    to: str
    """How `--to` asks for it, with the options that it takes."""
    module: str = ""
    """Its own file, which has `write(run, out)`, and may write the texts of rows and replies."""


FORMATS = {
    "hf": Format(
        "`hf?dataset=OWNER/NAME` (owner/name of the benchmark on the hub, unless the run used it from there; `url=…` "
        "where the run can be seen)"
    ),
    "every-eval-ever": Format(
        "`every-eval-ever?organization=…` (who ran it; `relationship=first_party`)", "every_eval_ever"
    ),
    "inspect": Format("`inspect`", "inspect_log"),
    "csv": Format("`csv`"),
}
TO = f"""Format to write: {", ".join(form.to for form in FORMATS.values())}. `date=YYYY-MM-DD` is the day of the
evaluation, for formats that hold one."""
WITH_TEXTS = " and ".join(name for name, form in FORMATS.items() if form.module)
TEXTS = f"Include questions, answers and replies of judges in {WITH_TEXTS}; without: ids and numbers."
BENCHMARK = "personalized-rewardbench"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ExportOptions:
    """What a format may be told."""

    dataset: Name | None = None
    """owner/name of the benchmark on the hub; hf needs it unless the run used hub:owner/name."""
    url: Name | None = None
    """Where the run can be seen, such as its published report; part of hf."""
    organization: Name = "unknown"
    """Who ran the evaluation; part of every-eval-ever."""
    relationship: Literal["first_party", "third_party", "collaborative", "other"] = "other"
    """How that organization is related to the models; part of every-eval-ever."""
    date: datetime.date | None = None
    """Day of the evaluation, for formats that hold one. Default: today where needed."""


def _parse_format(text: str) -> tuple[str, ExportOptions]:
    spec = Spec.parse(text)
    if spec.name not in FORMATS:
        raise unknown("format", spec.name, FORMATS)
    return spec.name, ExportOptions(**typed_options(ExportOptions, spec, "format"))


@config
class ExportConfig(OutputConfig):
    """A finished evaluation in a format that others read: the Hugging Face hub, other evaluation tools, tables."""

    verb: ClassVar[str] = "export"
    from_file: ClassVar[bool] = False

    run: Positional[Place]
    """Folder of a finished `prb evaluate`."""
    to: Annotated[str, AfterValidator(lambda text: _parse_format(text) and text), Field(description=TO)]
    out: Place | None = None
    """Folder to write to. Default: RUN/export/FORMAT. Files of the same name are replaced, others stay."""
    texts: Annotated[bool, Field(description=TEXTS)] = True

    @property
    def format(self) -> str:
        return _parse_format(self.to)[0]

    @property
    def options(self) -> ExportOptions:
        return _parse_format(self.to)[1]


@dataclass(frozen=True)
class ExportedRun:
    """A finished evaluation, as the formats need it."""

    settings: ExportConfig
    evaluation: EvaluationRun
    dataset: Dataset | None
    """With its texts, if they may be exported and are still there."""

    @property
    def summary(self) -> Summary:
        return self.evaluation.summary

    @property
    def about(self) -> DatasetSummary:
        return self.summary.dataset

    @property
    def day(self) -> datetime.datetime:
        """Midnight (UTC) of the day that was told, else of today."""
        day = self.settings.options.date or datetime.datetime.now(datetime.UTC).date()
        return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """Rows of the dataset by id; empty without texts."""
        return {item.id: item for item in self.dataset} if self.dataset else {}

    @property
    def models(self) -> dict[str, str]:
        """Specs by the name they have in the run."""
        return dict(map(split_alias, self.evaluation.settings.models))

    @property
    def hub(self) -> tuple[str, Mapping[str, str]] | None:
        """Id and options (revision, subset) of the dataset on the hub, from the run or from the options."""
        name = self.about.name
        spec = Spec.parse(name.removeprefix("hub:")) if name.startswith("hub:") else None
        if given := self.settings.options.dataset:
            return given, spec.options if spec and spec.name == given else {}
        return (spec.name, spec.options) if spec else None

    def lines(self) -> Iterator[dict[str, Any]]:
        """The outcomes, one after the other."""
        return read_lines(self.evaluation.folder / OUTCOMES)

    def estimates(self, model: str) -> Iterator[tuple[str, Metric, Estimate | Contrast]]:
        """The numbers of a model that have a value and rest on a number of rows, contrasts included, each with its
        condition."""
        for result in self.summary.results:
            for key, value in result.metrics.items() if result.model == model else ():
                if isinstance(value, Estimate) and value.value is not None and key in METRICS:
                    yield result.condition, METRICS[key], value
        for key, contrast in self.summary.contrasts_of(model).items():
            if contrast.value is not None and contrast.n and contrast.condition:
                yield contrast.condition, METRICS[key], contrast


def export(settings: ExportConfig, *, progress: Progress = SILENT) -> list[Path]:
    """Write a run in a format; the paths of the files."""
    if kind_of(settings.run) != "evaluate":
        raise BadInput(f"{settings.run} is not a run of `prb evaluate`; only those can be exported")
    evaluation = read_run(settings.run)
    write: Callable[[ExportedRun, Path], list[Path]] = write_hub_results if settings.format == "hf" else write_tables
    if module := FORMATS[settings.format].module:
        write = import_module(f"{__name__}.{module}").write
    progress.begin(f"reading {settings.run}")
    outcomes = read_outcomes(settings.run)  # every line is checked before anything is made from it
    dataset = None
    if settings.texts and module:
        dataset, missing = dataset_of([evaluation], outcomes.pairs, progress)
        if missing:
            progress.note(f"exported without texts: {missing}")
    progress.begin(f"writing {settings.format}")
    out = settings.out or inside(settings.run, "export", settings.format)
    with explain_damage(settings.run):
        return write(ExportedRun(settings, evaluation, dataset), out)


def write_file(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be a folder: {error.strerror or error}") from None
    write_bytes(path, content)
    return path


def file_names(models: Sequence[str]) -> dict[str, str]:
    """Of each model a name that a file can have; two never share one."""
    names: dict[str, str] = {}
    for model in models:
        name = base = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
        number = 2
        while name.lower() in {taken.lower() for taken in names.values()}:
            name, number = f"{base}-{number}", number + 1
        names[model] = name
    return names


def model_id(name: str, spec: str) -> str:
    """`owner/name` where the spec has one, such as `classifier?path=owner/name` or `judge?llm=openai/gpt-5`."""
    for value in Spec.parse(spec).options.values():
        text = value.partition("?")[0]
        if HUB_ID.fullmatch(text) and not Path(text).exists():
            return text
    return f"prb/{file_names([name])[name]}"


# --- hf ---
def write_hub_results(run: ExportedRun, out: Path) -> list[Path]:
    """Hugging Face: `.eval_results/*.yaml` for the repository of each model, an entry per metric and condition, in %.

    The `eval.yaml` that makes a dataset a benchmark on the hub must name a framework of the hub's own list, and what to
    run in it. Ours is not on that list, so none is written.
    """
    import yaml

    if run.hub is None:
        raise BadInput(f"{run.about.name!r} is not on the hub; name the benchmark there: --to 'hf?dataset=owner/name'")
    dataset, options = run.hub
    if not HUB_ID.fullmatch(dataset):
        raise BadInput(f"dataset={dataset!r} is not owner/name")
    day, url = run.settings.options.date, run.settings.options.url
    revision = {"revision": options["revision"]} if options.get("revision") else {}
    source = {"source": {"url": url, "name": "prb report"}} if url else {}
    rows = f"{run.about.rows} rows" + (f" of split {run.about.split}" if run.about.split else "")
    files = []
    for model, name in file_names(list(run.models)).items():
        entries = []
        for condition, metric, value in run.estimates(model):
            assert value.value is not None
            interval = ""
            if value.low is not None and value.high is not None:
                interval = f"95 % interval {100 * value.low:.2f} to {100 * value.high:.2f}, "
            failed = f", {count} failed" if (count := getattr(value, "failed", 0)) else ""
            task = metric.key if metric.needs else f"{metric.key}_{condition}"
            entry = {
                "dataset": {"id": dataset, "task_id": task, **revision},
                "value": round(100 * value.value, 4),
                **({"date": f"{day}"} if day else {}),
                **source,
                "notes": f"{interval}n = {value.n}{failed}; {rows}; {run.models[model]}; prb {__version__}",
            }
            entries.append(entry)
        content: str = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=1_000)
        files.append(write_file(out / "models" / name / ".eval_results" / f"{BENCHMARK}.yaml", content.encode()))
    return files


# --- csv: one number per cell ---
def write_tables(run: ExportedRun, out: Path) -> list[Path]:
    """`estimates` (one row per model and condition), `outcomes` and `users`."""
    folder = run.evaluation.folder
    tables = {
        "estimates": numbers_table({folder.name: run.summary}),
        "outcomes": table_of("", [_flat(line) for line in run.lines()]),
        "users": table_of("", list(user_rows(UserTable.of_run(folder)))),
    }
    return [write_file(out / f"{name}.csv", as_csv(table).encode()) for name, table in tables.items()]


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """An outcome without texts: lists become counts, or columns with a number."""
    return {
        **{name: line[name] for name in ("pair", "user", "cluster", "model", "condition", "credit", "margin")},
        **{name: line.get(name) for name in ("failure", "failure_kind")},
        "posts_shown": len(line["post_ids"]),
        "choices_shown": len(line.get("choices", ())),
        **{name: line[name] for name in ("cut", "tokens", "seconds", "cost")},
        "leaks": line.get("leaks", 0),
        **{f"score_{n}": score for n, score in enumerate(line["scores"] or (), 1)},
        **{f"verdict_{n}": verdict for n, verdict in enumerate(line["verdicts"] or (), 1)},
    }
