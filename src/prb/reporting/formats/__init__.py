"""`prb export`: a finished evaluation in a format that others read. Here is what all formats share; each has its file.

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
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from prb.config import Name, OutputConfig, Place, Positional, config
from prb.data.load import Dataset
from prb.errors import BadInput, unknown
from prb.evaluation.outcomes import read_outcomes
from prb.progress import SILENT, Progress
from prb.registry import Spec, split_alias, typed_options
from prb.reporting.gather import EvaluationRun, dataset_of, inside, kind_of, read_run
from prb.reporting.results import explain_damage
from prb.runs import OUTCOMES, read_lines, write_bytes
from prb.summary import METRICS, Contrast, DatasetSummary, Metric, Summary
from prb.types import Estimate, Item

Format = Literal["hf", "every-eval-ever", "inspect", "csv", "parquet"]
MODULES: dict[Format, str] = {
    "hf": "hub_results",
    "every-eval-ever": "every_eval_ever",
    "inspect": "inspect_log",
    "csv": "tidy",
    "parquet": "tidy",
}
"""Where each format is written; each module has `write(run, out)`."""
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
    """Day of the evaluation; part of all but csv and parquet. Default: today where needed."""


def _parse_format(text: str) -> tuple[Format, ExportOptions]:
    spec = Spec.parse(text)
    if spec.name not in MODULES:
        raise unknown("format", spec.name, MODULES)
    return spec.name, ExportOptions(**typed_options(ExportOptions, spec, "format"))


def _known_format(text: str) -> str:
    _parse_format(text)
    return text


@config
class ExportConfig(OutputConfig):
    """A finished evaluation in the format of the Hugging Face hub, every_eval_ever, inspect, CSV or Parquet."""

    verb: ClassVar[str] = "export"
    from_file: ClassVar[bool] = False

    run: Positional[Place]
    """Folder of a finished `prb evaluate`."""
    to: Annotated[str, AfterValidator(_known_format)]
    """Format to write: `hf?dataset=OWNER/NAME` (owner/name of the benchmark on the hub, unless the run used it from
    there; `url=…` where the run can be seen), `every-eval-ever?organization=…` (who ran it;
    `relationship=first_party`), `inspect`, `csv` or `parquet`; all but the last two take `date=YYYY-MM-DD`, the day of
    the evaluation."""
    out: Place | None = None
    """Folder to write to. Default: RUN/export/FORMAT. Files of the same name are replaced, others stay."""
    texts: bool = True
    """Include questions, answers and replies of judges in every-eval-ever and inspect; without: ids and numbers."""

    @property
    def format(self) -> Format:
        return _parse_format(self.to)[0]

    @property
    def options(self) -> ExportOptions:
        return _parse_format(self.to)[1]


@dataclass(frozen=True)
class Estimated:
    """One number of a summary, by model, condition and metric."""

    model: str
    condition: str
    metric: Metric
    value: Estimate | Contrast


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

    def estimates(self, model: str) -> Iterator[Estimated]:
        """The numbers of a model that have a value and rest on a number of rows, contrasts included."""
        for result in self.summary.results:
            for key, value in result.metrics.items() if result.model == model else ():
                if isinstance(value, Estimate) and value.value is not None and key in METRICS:
                    yield Estimated(model, result.condition, METRICS[key], value)
        for key, contrast in self.summary.contrasts_of(model).items():
            if contrast.value is not None and contrast.n and key in METRICS:
                yield Estimated(model, METRICS[key].needs[0], METRICS[key], contrast)


def export(settings: ExportConfig, *, progress: Progress = SILENT) -> list[Path]:
    """Write a run in a format; the paths of the files."""
    if kind_of(settings.run) != "evaluate":
        raise BadInput(f"{settings.run} is not a run of `prb evaluate`; only those can be exported")
    evaluation = read_run(settings.run)
    write: Callable[[ExportedRun, Path], list[Path]] = import_module(f"{__name__}.{MODULES[settings.format]}").write
    progress.begin(f"reading {settings.run}")
    outcomes = read_outcomes(settings.run)  # every line is checked before anything is made from it
    dataset = None
    if settings.texts and settings.format in ("every-eval-ever", "inspect"):
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


def shown_answer(line: Mapping[str, Any]) -> str:
    """What the model preferred: the chosen answer, the rejected one, or neither."""
    return "tie" if 0 < line["credit"] < 1 else "chosen" if line["credit"] else "rejected"
