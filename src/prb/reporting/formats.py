"""`prb export`: a finished evaluation in a format that others read: results for the Hugging Face hub, every_eval_ever,
inspect logs, and tables.

The same run, settings and date give the same bytes: a run folder holds no time, so the day is told or today's; names
are made from content.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import orjson
from msgspec import convert, to_builtins
from pydantic import AfterValidator, Field

from prb import __version__
from prb.config import Name, OutputConfig, Place, Positional, config
from prb.errors import BadInput, explain_import, unknown
from prb.evaluation.outcomes import read_outcomes
from prb.hashing import digest
from prb.progress import SILENT, Progress
from prb.registry import Spec, split_alias, typed_options
from prb.reporting.evaluation_results import numbers_table
from prb.reporting.format import as_csv, distinct, table_of
from prb.reporting.gather import EvaluationRun, dataset_of, explain_damage, inside, kind_of, read_run
from prb.runs import OUTCOMES, read_lines, write_bytes
from prb.summary import METRICS, Contrast, DatasetSummary, Metric, PairResult, UserTable, short_name
from prb.types import Estimate, Item, Outcome, Pair

BENCHMARK = "personalized-rewardbench"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SCHEMA = "0.3.0"
"""Of every_eval_ever."""
SCORER = "preference"
"""What inspect logs call a pair's credit."""


# --- settings ---
@dataclass(frozen=True)
class ExportOptions:
    dataset: Name | None = None
    """owner/name of the benchmark on the hub; hf needs it unless the run used hub:owner/name."""
    organization: Name = "unknown"
    """Who ran the evaluation; part of every-eval-ever."""
    date: datetime.date | None = None
    """Day of the evaluation, for formats that hold one. Default: today where needed."""


def _parse_format(text: str) -> tuple[str, ExportOptions]:
    spec = Spec.parse(text)
    if spec.name not in FORMATS:
        raise unknown("format", spec.name, FORMATS)
    return spec.name, ExportOptions(**typed_options(ExportOptions, spec, "format"))


TO = """Format to write: `hf?dataset=OWNER/NAME` (owner/name of the benchmark on the hub, unless the run used it from
there), `every-eval-ever?organization=…` (who ran it), `inspect`, `csv`. `date=YYYY-MM-DD` is the day of the evaluation,
for formats that hold one."""


@config
class ExportConfig(OutputConfig):
    """A finished evaluation in a format that others read: the Hugging Face hub, other evaluation tools, tables."""

    run: Positional[Place]
    """Folder of a finished `prb evaluate`."""
    to: Annotated[str, AfterValidator(lambda text: _parse_format(text) and text), Field(description=TO)]
    out: Place | None = None
    """Folder to write to. Default: RUN/export/FORMAT. Files of the same name are replaced, others stay."""
    texts: bool = True
    """Include questions, answers and replies of judges in inspect logs; without: ids and numbers."""


@dataclass(frozen=True)
class ExportedRun:
    """A finished evaluation, as the formats need it."""

    options: ExportOptions
    evaluation: EvaluationRun
    items: Mapping[str, Item]
    """Rows of the dataset by id, if their texts may be exported and are still there."""

    @property
    def about(self) -> DatasetSummary:
        return self.evaluation.summary.dataset

    @property
    def day(self) -> datetime.datetime:
        """Midnight (UTC) of the day that was told, else of today."""
        day = self.options.date or datetime.datetime.now(datetime.UTC).date()
        return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)

    @property
    def models(self) -> dict[str, str]:
        """Specs by the name they have in the run."""
        return dict(map(split_alias, self.evaluation.settings.models))

    @property
    def hub(self) -> tuple[str, Mapping[str, str]] | None:
        """Id and options (revision, subset) of the dataset on the hub, from the run or from the options."""
        name = self.about.name
        spec = Spec.parse(name.removeprefix("hub:")) if name.startswith("hub:") else None
        if given := self.options.dataset:
            return given, spec.options if spec and spec.name == given else {}
        return (spec.name, spec.options) if spec else None

    def outcomes(self) -> Iterator[Outcome]:
        return (convert(line, Outcome) for line in read_lines(self.evaluation.folder / OUTCOMES))

    def estimates(self, model: str) -> Iterator[tuple[str, Metric, Estimate | Contrast]]:
        """The numbers of a model that have a value and rest on a number of rows, contrasts included, each with its
        condition."""
        for result in self.evaluation.summary.results:
            for key, value in result.metrics.items() if result.model == model else ():
                if isinstance(value, Estimate) and value.value is not None and key in METRICS:
                    yield result.condition, METRICS[key], value
        for key, contrast in self.evaluation.summary.contrasts_of(model).items():
            if contrast.value is not None and contrast.n and contrast.condition:
                yield contrast.condition, METRICS[key], contrast


def export(config: ExportConfig, *, progress: Progress = SILENT) -> list[Path]:
    """Write a finished evaluation in a format that other tools read; returns the paths of the files."""
    name, options = _parse_format(config.to)
    if kind_of(config.run) != "evaluate":
        raise BadInput(f"{config.run} is not a run of `prb evaluate`; only those can be exported")
    evaluation = read_run(config.run)
    progress.begin(f"reading {config.run}")
    outcomes = read_outcomes(config.run)  # every line is checked before anything is made from it
    items: dict[str, Item] = {}
    if config.texts and FORMATS[name].texts:
        dataset, missing = dataset_of([evaluation], outcomes.pairs, progress)
        items = {item.id: item for item in dataset or ()}
        if missing:
            progress.note(f"exported without texts: {missing}")
    progress.begin(f"writing {name}")
    out = config.out or inside(config.run, "export", name)
    with explain_damage(config.run):
        return FORMATS[name].write(ExportedRun(options, evaluation, items), out)


def write_file(path: Path, content: bytes) -> Path:
    write_bytes(path, content)
    return path


def file_names(models: Sequence[str]) -> dict[str, str]:
    """Of each model a name that a file can have; two never share one."""
    plain = [re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model" for model in models]
    return dict(zip(models, distinct(plain, "-"), strict=True))


def model_id(name: str, spec: str) -> str:
    """`owner/name` where the spec has one, such as `classifier?path=owner/name` or `judge?llm=openai/gpt-5`."""
    for value in Spec.parse(spec).options.values():
        text = value.partition("?")[0]
        if HUB_ID.fullmatch(text) and not Path(text).exists():
            return text
    return f"prb/{file_names([name])[name]}"


# --- hf ---
def write_hub_results(run: ExportedRun, out: Path) -> list[Path]:
    """Hugging Face: `.eval_results/*.yaml` for the repository of each model, an entry per metric and condition; shares
    and points in %.

    The `eval.yaml` that makes a dataset a benchmark on the hub must name a framework of the hub's own list, and what to
    run in it. Ours is not on that list, so none is written.
    """
    import yaml

    if run.hub is None:
        raise BadInput(f"{run.about.name!r} is not on the hub; name the benchmark there: --to 'hf?dataset=owner/name'")
    dataset, options = run.hub
    if not HUB_ID.fullmatch(dataset):
        raise BadInput(f"dataset={dataset!r} is not owner/name")
    day = run.options.date
    revision = {"revision": options["revision"]} if options.get("revision") else {}
    rows = f"{run.about.rows} rows" + (f" of split {run.about.split}" if run.about.split else "")
    files = []
    for model, name in file_names(list(run.models)).items():
        entries = []
        for condition, metric, value in run.estimates(model):
            assert value.value is not None
            interval, scale = "", 1 if metric.unit == "number" else 100
            if value.low is not None and value.high is not None:
                interval = f"95 % interval {scale * value.low:.2f} to {scale * value.high:.2f}, "
            failed = f", {count} failed" if (count := getattr(value, "failed", 0)) else ""
            task = metric.key if metric.needs else f"{metric.key}_{condition}"
            entry = {
                "dataset": {"id": dataset, "task_id": task, **revision},
                "value": round(scale * value.value, 4),
                **({"date": f"{day}"} if day else {}),
                "notes": f"{interval}n = {value.n}{failed}; {rows}; {run.models[model]}; prb {__version__}",
            }
            entries.append(entry)
        content: str = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=1_000)
        files.append(write_file(out / "models" / name / ".eval_results" / f"{BENCHMARK}.yaml", content.encode()))
    return files


# --- every-eval-ever ---
def write_records(run: ExportedRun, out: Path) -> list[Path]:
    """One record per model. A failure is not a score: it is counted beside the estimate."""
    files = []
    time, settings = str(int(run.day.timestamp())), run.evaluation.settings.saved()
    told = {key: str(value) for key, value in settings.items() if key != "model"}
    told["dataset"] = short_name(told["dataset"])
    for name, spec in run.models.items():
        model = model_id(name, spec)
        evaluation = f"{BENCHMARK}/{model}/{time}"
        about = {"deployment_type": "unknown", "model_availability": "unknown", "spec": spec}
        about["fingerprint"] = run.evaluation.fingerprints.get(name, "")
        record = {
            "schema_version": SCHEMA,
            "evaluation_id": evaluation,
            **({"evaluation_timestamp": time} if run.options.date else {}),
            "retrieved_timestamp": time,
            "source_metadata": {
                "source_name": "Personalized RewardBench",
                "source_type": "evaluation_run",
                "source_organization_name": run.options.organization,
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "prb", "version": __version__, "additional_details": told},
            "model_info": {"name": name, "id": model, "additional_details": about},
            "evaluation_results": [_result(run, *estimate) for estimate in run.estimates(name)],
        }
        identity = digest(evaluation, name, to_builtins(run.about), settings)
        content = orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        place = out / Path("data", BENCHMARK, *model.split("/", 1), f"{UUID(bytes=identity[:16], version=4)}.json")
        files.append(write_file(place, content))
    return files


def _result(run: ExportedRun, condition: str, metric: Metric, value: Estimate | Contrast) -> dict[str, Any]:
    about = run.about
    facts = {"fingerprint": about.fingerprint, "users": str(about.users), "clusters": str(about.clusters)}
    source: dict[str, Any] = {"dataset_name": short_name(about.name), "source_type": "other"}
    if run.hub is None:
        facts |= {"split": about.split or "all", "rows": str(about.rows)}
    else:
        name, split = run.hub[0], {"hf_split": about.split} if about.split else {}
        source = {"dataset_name": name.partition("/")[2], "source_type": "hf_dataset", "hf_repo": name}
        source |= {**split, "samples_number": about.rows}
    interval = {}
    if value.low is not None:
        method = "inverted sign-flip test" if metric.needs else "clustered by user"
        bounds = {"lower": value.low, "upper": value.high, "confidence_level": 0.95, "method": method}
        interval = {"confidence_interval": bounds}
    parts = {part: getattr(value, part, None) for part in ("failed", "ties", "p", "p_holm")}
    return {
        "evaluation_result_id": f"{metric.key}/{condition}",
        "evaluation_name": f"{metric.key} ({condition})",
        "source_data": {**source, "additional_details": facts},
        "metric_config": {
            "metric_id": metric.key if metric.key == "accuracy" else f"prb.{metric.key}",
            "metric_name": metric.key,
            **({} if metric.unit == "number" else {"metric_unit": "proportion"}),
            "metric_parameters": {"condition": condition},
            "lower_is_better": metric.better == "lower",
            "score_type": "continuous",
            "min_score": metric.limits[0] if isfinite(metric.limits[0]) else "-Infinity",
            "max_score": metric.limits[1] if isfinite(metric.limits[1]) else "Infinity",
        },
        "score_details": {
            "score": value.value,
            "details": {part: str(number) for part, number in parts.items() if number is not None},
            "uncertainty": {**interval, "num_samples": value.n},
        },
    }


# --- inspect ---
def write_logs(run: ExportedRun, out: Path) -> list[Path]:
    """One log per model and condition, written by inspect_ai itself: a pair is a sample, credit its score. A failure is
    an unscored sample with its reason."""
    if run.evaluation.summary.task != "pairs":
        raise BadInput(f"{run.evaluation.folder} has no pairs; inspect logs hold pairs as samples")
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise explain_import("prb export --to inspect", error) from None
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in run.outcomes():
        outcomes.setdefault((outcome.model, outcome.condition), []).append(outcome)
    names = file_names(list(run.models))
    files = []
    for result in run.evaluation.summary.pairs:
        cell = result.model, result.condition
        path = write_file(out / f"{names[cell[0]]}_{cell[1]}.eval", b"")  # a folder that cannot be written is one line
        write_eval_log(_log(run, result, outcomes[cell]), str(path))
        files.append(path)
    return files


def _log(run: ExportedRun, result: PairResult, outcomes: Sequence[Outcome]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalMetric, EvalResults, EvalScore, EvalSpec, EvalStats

    about, time = run.about, run.day.isoformat()
    identity = digest(result.model, result.condition, to_builtins(about), run.evaluation.settings.saved()).hex()
    estimate = result.accuracy
    values = {"accuracy": estimate.value, "low": estimate.low, "high": estimate.high}
    score = EvalScore(
        name=SCORER,
        scorer=SCORER,
        scored_samples=estimate.n,
        unscored_samples=len(outcomes) - estimate.n,
        metrics={name: EvalMetric(name=name, value=value) for name, value in values.items() if value is not None},
    )
    return EvalLog(
        status="success",
        eval=EvalSpec(
            eval_id=identity[:22],
            run_id=identity[:22],
            task_id=identity[:22],
            created=time,
            task=f"{BENCHMARK}/{result.condition}",
            dataset=EvalDataset(name=about.name, samples=about.rows),
            model=result.model,
            config=EvalConfig(),
            packages={BENCHMARK: __version__},
            metadata={
                "condition": result.condition,
                "spec": run.models[result.model],
                "dataset": to_builtins(about),
                "settings": run.evaluation.settings.saved(),
            },
        ),
        results=EvalResults(total_samples=len(outcomes), completed_samples=len(outcomes), scores=[score]),
        stats=EvalStats(started_at=time, completed_at=time),
        samples=[_sample(run, outcome) for outcome in outcomes],
    )


def _sample(run: ExportedRun, outcome: Outcome) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
    from inspect_ai.scorer import Score

    item = run.items.get(outcome.pair)
    roles = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    asked: Any = outcome.pair
    texts: dict[str, Any] = {}
    right = 1
    if isinstance(item, Pair):
        turns = [roles[turn.role](content=turn.text) for turn in item.context]
        asked = [*turns, ChatMessageUser(content=item.question)] if turns else item.question
        texts, right = {"choices": list(item.answers)}, item.n_best
    names = ("user", "cluster", "margin", "scores", "verdicts", "post_ids", "cut", "tokens", "seconds", "cost")
    about = {name: getattr(outcome, name) for name in names}
    explanation = "\n\n".join(outcome.text) if run.items and outcome.text else None
    if outcome.credit is None:
        reason = outcome.failure or "no answer is right"
        score = Score.unscored(explanation=explanation or reason, metadata={**about, "failure": outcome.failure})
    else:
        answer = "A" if outcome.credit else "B"  # of duels only the winner of two is known
        if 0 < outcome.credit < 1:
            answer = "tie"
        elif scores := [score for score in outcome.scores or () if score is not None]:
            answer = chr(ord("A") + scores.index(max(scores)))
        score = Score(value=outcome.credit, answer=answer, explanation=explanation, metadata=about)
    return EvalSample(
        id=outcome.pair,
        epoch=1,
        input=asked,
        target=[chr(ord("A") + n) for n in range(right)],
        scores={SCORER: score},
        metadata={"user": outcome.user, "condition": outcome.condition},
        **texts,
    )


# --- csv: one number per cell ---
def write_tables(run: ExportedRun, out: Path) -> list[Path]:
    """`estimates` (one row per model and condition), `outcomes` and `users`; without texts: lists become counts, or
    columns with a number."""
    folder, users = run.evaluation.folder, list[dict[str, Any]]()
    table = UserTable.of_run(folder)
    for row in table.results:
        for user, *numbers in zip(table.users, *row.columns.values(), strict=True):
            about = {"user": user, "model": row.model, "condition": row.condition}
            users.append(about | dict(zip(row.columns, numbers, strict=True)))
    names = ("pair", "user", "cluster", "model", "condition", "credit", "margin", "failure", "failure_kind")
    outcomes = [
        {name: getattr(outcome, name) for name in (*names, "leaks", "cut", "tokens", "seconds", "cost")}
        | {"posts_shown": len(outcome.post_ids), "choices_shown": len(outcome.choices)}
        | {f"score_{n}": score for n, score in enumerate(outcome.scores or (), 1)}
        | {f"verdict_{n}": verdict for n, verdict in enumerate(outcome.verdicts or (), 1)}
        for outcome in run.outcomes()
    ]
    tables = {
        "estimates": numbers_table({folder.name: run.evaluation.summary}),
        "outcomes": table_of(outcomes),
        "users": table_of(users),
    }
    return [write_file(out / f"{name}.csv", as_csv(table).encode()) for name, table in tables.items()]


class Format(NamedTuple):
    write: Callable[[ExportedRun, Path], list[Path]]
    texts: bool = False
    """Whether it holds texts of rows and replies."""


FORMATS = {
    "hf": Format(write_hub_results),
    "every-eval-ever": Format(write_records),
    "inspect": Format(write_logs, texts=True),
    "csv": Format(write_tables),
}
