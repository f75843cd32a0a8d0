"""What an evaluation found: `summary.json` and `users.json`, typed. And the two registries everything is shown from.

A `Metric` and a `Condition` are each one object, declared once. The terminal table, the site, `prb compare`, exports,
`--require` and the glossary read the registries, so a new one needs its declaration and nothing else; paired tests of
two models are of accuracy only. Ours are in `evaluation/metrics.py` and `evaluation/conditions.py`; other packages
declare theirs under the entry-point groups `prb.metrics` and `prb.conditions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from prb.errors import BadInput
from prb.registry import Declared
from prb.runs import SUMMARY, USERS, read_result
from prb.types import Difference, Estimate, Tested

FORMAT = 2
"""Of summary.json and users.json."""
MAIN = "profile"
"""The condition a reader asks for first: the user's own history."""
Task = Literal["pairs", "ratings"]


# --- declared once ---
@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a model: under each condition, or from one condition to another."""

    key: str
    """Its name in summary.json, in `--require` and in exports."""
    label: str
    """The heading of its column."""
    says: str
    """One sentence without its subject: "share of …", "accuracy under … minus …"."""
    of: Callable[..., Any]
    """From `evaluation.metrics.Rows`, one per condition in `needs` (without `needs`: of the condition at hand), to an
    `Estimate`, a number, or `None` where it does not apply; a contrast may be a `Difference`. Formats that
    want the number of rows, hf and every-eval-ever, leave out plain numbers."""
    unit: Literal["share", "points", "number"] = "share"
    """A share is shown in percent, points as a difference of percentages with its sign."""
    better: Literal["higher", "lower", "neither"] = "higher"
    needs: tuple[str, ...] = ()
    """The conditions it compares. Without them it is unknown, shown as a dash and never as 0."""
    difference: bool = False
    """Whether it is accuracy under the first of two `needs` minus that under the second. Only these have a panel in
    the figure, and ranks on the site."""
    tested: bool = False
    """Whether it has a p, as a `Tested` or a `Difference`, that it is 0, or as a share one half: shown as stars, after
    Holm's correction over the models and contrasts it is shown with."""
    limits: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest value it can have; infinite where there is none."""
    task: Task = "pairs"
    column: bool = True
    """Whether it is a column of tables; the others are in summary.json and on the site's page of a model."""
    reference: str = ""
    """What to compare it with, such as "user-blind: exactly 50"."""

    @property
    def sentence(self) -> str:
        """For notes below tables, tooltips and the glossary."""
        return f"{self.says} ({self.reference})" if self.reference else self.says


@dataclass(frozen=True, kw_only=True)
class Condition:
    """How a pair becomes a query."""

    name: str
    shows: str
    """What a model sees of the user, in a few words."""
    build: Callable[..., Any]
    """`build(builder, item, plan)` of `evaluation.conditions`: what was built for the item, or a `Failure`."""
    applies: Callable[[Any], bool] = lambda _: True
    """Whether it applies to any row of a dataset; if not, it is not run by default."""
    donors: bool = False
    """Whether it needs the histories of other users."""
    planned: bool = False
    """Whether the planner runs for it; what it inferred is the `plan` of `build`."""
    color: str = "#4d4a12"
    dark: str = "#f0dc5a"
    """The color on dark paper."""
    mark: str = "P"
    """The shape of its points, as matplotlib names it."""


METRICS: Declared[Metric] = Declared("metric", Metric, "key", "prb.evaluation.metrics", "prb.metrics")
CONDITIONS: Declared[Condition] = Declared(
    "condition", Condition, "name", "prb.evaluation.conditions", "prb.conditions"
)


def needs_donors(conditions: Iterable[str]) -> bool:
    """Whether one of them shows histories of other users."""
    return any(CONDITIONS[name].donors for name in conditions)


def shown_condition(conditions: Collection[str]) -> str:
    """The condition that is shown first: the user's own history, if it was run."""
    return MAIN if MAIN in conditions else next(iter(conditions))


# --- summary.json ---
Value = Estimate | float | None
"""Of a metric; `Tested` where it is tested."""
Counts = dict[str, int]
"""By reason."""


def short_name(dataset: str) -> str:
    """A dataset's name without the folders its file is in: `polis, conversation=london`."""
    if dataset.startswith("hub:"):
        return dataset
    name, path, rest = dataset.partition("?path=")
    if not path:
        return Path(dataset).name
    place, *options = rest.split("&")
    file = Path(place).name
    label = ", ".join([name if file == name else f"{name} {file}", *options])
    return label if len(label) <= 60 else f"{label[:59]}…"  # what follows are names of columns, mostly


def dataset_label(data: DatasetAbout | DatasetSummary) -> str:
    """What people read: the name without folders, and the split."""
    return short_name(data.name) + (f", split {data.split}" if data.split else "")


class DatasetAbout(Struct, frozen=True):
    """What every result says of the rows it is about."""

    name: str
    split: str | None
    fingerprint: str = ""
    left_out: int = 0

    @property
    def label(self) -> str:
        return dataset_label(self)


class Retest(Struct, kw_only=True):
    """How often users repeat their own vote."""

    agreement: float
    n: int


class DatasetSummary(Struct, kw_only=True, omit_defaults=True):
    name: str
    split: str | None
    rows: int
    users: int
    clusters: int
    clustered_by: str
    fingerprint: str
    left_out: int
    """Rows with errors that `--skip-bad` left out."""
    chance: float | None = None
    """How often a random pick is right, where rows have more than two answers."""
    noise_ceiling: Retest | UnsetType | None = UNSET
    """Only of votes; `None` if nobody voted twice."""
    restraint: int = 0
    """Rows that the user's history must not decide."""

    @property
    def only_restraint(self) -> bool:
        """Whether no row is to be decided by a history."""
        return 0 < self.restraint == self.rows

    @property
    def label(self) -> str:
        return dataset_label(self)


class Spread(Struct, kw_only=True):
    """Accuracy over users."""

    n: int
    mean: float | None
    spread: float | None
    worst_decile: float | None


class Groups(Struct, kw_only=True):
    """Accuracy by the values of one attribute of users."""

    groups: dict[str, Estimate]
    worst: str | None
    gap: float | None


class LengthBias(Struct, kw_only=True):
    chosen_longer: Estimate
    chosen_shorter: Estimate
    accuracy_at_equal_length: float | None
    slope: float | None


class PositionBias(Struct, kw_only=True, omit_defaults=True):
    n: int
    consistency: float | None
    """How often the same answer wins in both orders; `None` if only one order was asked."""
    first_share: float | None
    cancels: bool = False
    """Whether the log-odds of both orders are averaged, so that the winner does not depend on it."""

    @property
    def warning(self) -> str | None:
        """What to say of a comparer whose verdicts follow the order of the answers more than the answers.

        It is said if the share of first answers is a tenth away from a half, and fewer than half of the pairs have the
        same winner in both orders; or if 10 or more verdicts in one order are all the same.
        """
        if self.cancels or self.first_share is None or abs(self.first_share - 0.5) < 0.1:
            return None
        if self.consistency is None:
            explained = self.first_share in (0.0, 1.0) and self.n >= 10
        else:
            explained = self.consistency < 0.5
        place, how_often = ("first", self.first_share) if self.first_share > 0.5 else ("second", 1 - self.first_share)
        always = f"prefers the {place} answer in {100 * how_often:.0f} % of its verdicts, whichever it is"
        return f"{always}; its accuracy says little about the answers" if explained else None


class ReliabilityBin(Struct, kw_only=True):
    confidence: float
    accuracy: float
    n: int


class Calibration(Struct, kw_only=True):
    n: int
    temperature: float
    brier: float
    ece: float
    curve: list[ReliabilityBin]


class Biases(Struct, kw_only=True):
    length: LengthBias | None
    position: PositionBias | None
    calibration: Calibration | None


class PaperCounts(Struct, kw_only=True):
    ties: int
    unparsed: int


class TrainedCounts(Struct, kw_only=True):
    """How much of the data a model was trained on."""

    rows: int
    users: int


class _Result(Struct, kw_only=True, omit_defaults=True):
    """One model under one condition. In JSON the metrics stand beside the other keys."""

    model: str
    condition: str
    metrics: dict[str, Value]
    failures: Counts
    not_measured: Counts
    """Rows that were neither answered nor failed, by reason."""
    trained_on: TrainedCounts | None = None
    paper: PaperCounts | None = None

    def estimate(self, key: str) -> Estimate | None:
        """A metric with its interval; `None` where it does not apply."""
        value = self.metrics.get(key)
        return Estimate(value=value, low=None, high=None, n=0) if isinstance(value, (int, float)) else value

    @property
    def position_warning(self) -> str | None:
        position = self.biases.position if isinstance(self, PairResult) else None
        return position.warning if position else None

    def as_json(self) -> dict[str, Any]:
        content = msgspec.to_builtins(self)
        metrics = content.pop("metrics")
        return {"model": self.model, "condition": self.condition, **metrics, **content}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        names = set(cls.__struct_fields__) - {"metrics"}
        result = msgspec.convert({key: row[key] for key in names & row.keys()} | {"metrics": {}}, cls)
        for key, value in row.items():
            if key not in names:
                kind: Any = (Tested if "p" in value else Estimate) if isinstance(value, Mapping) else float | None
                result.metrics[key] = msgspec.convert(value, kind)
        return result


class PairResult(_Result, kw_only=True, omit_defaults=True):
    by_category: dict[str, Estimate]
    by_tier: dict[str, Estimate]
    by_group: dict[str, Groups]
    users: Spread
    biases: Biases
    cut_posts: int
    indifference: Estimate | None = None
    """How often the answer called chosen is preferred in rows on which no history bears."""
    official: dict[str, float] = {}
    """The score that a benchmark itself reports, by its name."""

    @property
    def accuracy(self) -> Estimate:
        accuracy = self.estimate("accuracy")
        assert accuracy is not None
        return accuracy

    @property
    def failed(self) -> int:
        return self.accuracy.failed

    @property
    def measured(self) -> int:
        """Rows that were answered or failed."""
        return self.accuracy.n + self.accuracy.failed


class RatingResult(_Result, kw_only=True, omit_defaults=True):
    n: int
    failed: int
    users: int
    by_group: dict[str, dict[str, Estimate]]

    @property
    def measured(self) -> int:
        return self.n + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired(Difference):
    """A difference among others."""

    p_holm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(Paired):
    """A metric that compares conditions, of one model."""

    model: str
    kind: str
    """The key of the metric."""

    @property
    def condition(self) -> str | None:
        """The condition whose change it measures from the others; `None` if its metric is not installed here."""
        metric = METRICS.get(self.kind)
        return metric.needs[0] if metric and metric.needs else None

    @property
    def estimate(self) -> Tested:
        return Tested(
            value=self.value, low=self.low, high=self.high, n=self.n, p=self.p, p_holm=self.p_holm, test=self.test
        )


class Summary(Struct, kw_only=True):
    """The content of summary.json."""

    prb: str
    task: Task
    protocol: Literal["prb", "paper"]
    dataset: DatasetSummary
    results: list[PairResult] | list[RatingResult]
    contrasts: list[Contrast]
    license: str | None = None
    """Whether the labels' judge may stand in for people, if labels by people were given."""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(result.model for result in self.results))

    @property
    def conditions(self) -> list[str]:
        return list(dict.fromkeys(result.condition for result in self.results))

    @property
    def shown(self) -> str:
        return shown_condition(self.conditions)

    @property
    def pairs(self) -> list[PairResult]:
        """The results, for what only pairs have."""
        return [result for result in self.results if isinstance(result, PairResult)]

    def result(self, model: str, condition: str) -> PairResult | RatingResult | None:
        return next((r for r in self.results if (r.model, r.condition) == (model, condition)), None)

    def contrasts_of(self, model: str) -> dict[str, Contrast]:
        """By metric."""
        return {contrast.kind: contrast for contrast in self.contrasts if contrast.model == model}

    def warnings(self, model: str) -> Iterator[str]:
        """What explains a model's numbers better than the user does: the order of the answers, or training on the rows.

        Clauses without their subject, the model.
        """
        results = [result for result in self.results if result.model == model]
        biased = [(result.condition, warning) for result in results if (warning := result.position_warning)]
        if biased:
            yield f"{biased[0][1]} (under {', '.join(condition for condition, _ in biased)})"
        trained = [result for result in results if result.trained_on]
        if trained and (counts := trained[0].trained_on):
            left_out = any(TRAINED in result.not_measured for result in trained)
            what = "are not counted" if left_out else "are counted, so its numbers are not a test"
            these = f"{counts.rows} of these rows, which {what}" if counts.rows else "none of these rows"
            yield f"was trained on {these}; on {counts.users} of these users"

    def as_json(self) -> dict[str, Any]:
        content = {key: msgspec.to_builtins(getattr(self, key)) for key in ("prb", "task", "protocol", "dataset")}
        results = [result.as_json() for result in self.results]
        content |= {"results": results, "contrasts": msgspec.to_builtins(self.contrasts)}
        return {"format": FORMAT, **content, **({"license": self.license} if self.license else {})}

    @classmethod
    def read(cls, content: Mapping[str, Any], where: object = "the summary") -> Self:
        """From the content of a file; one of another format or shape is refused."""
        check_format(content, where)
        try:
            kind: type[PairResult | RatingResult] = RatingResult if content["task"] == "ratings" else PairResult
            results = [kind.read(row) for row in content["results"]]
            others = [f for f in msgspec.structs.fields(cls) if f.name != "results" and f.name in content]
            rest = {f.name: msgspec.convert(content[f.name], f.type) for f in others}
            return cls(results=results, **rest)  # type: ignore[arg-type]
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{where} is damaged: {error}") from None

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        return cls.read(read_result(folder, SUMMARY), folder / SUMMARY)


TRAINED = "the model was trained on this row"
"""Why such a row is not measured."""


def check_format(content: Mapping[str, Any], where: object) -> None:
    """Refuse what another version of prb wrote."""
    version = content.get("format", 1) if isinstance(content, Mapping) else "unknown"
    if version != FORMAT:
        raise BadInput(f"{where} has format {version}; this version of prb reads format {FORMAT}: evaluate again")


# --- users.json ---
class UserColumns(Struct, kw_only=True):
    """One model under one condition; every column has one entry per user."""

    model: str
    condition: str
    columns: dict[str, list[float | None]]


class UserTable(Struct, kw_only=True):
    """The content of users.json, by column, so that the file of a million users stays small and readable."""

    users: list[str]
    results: list[UserColumns]

    def as_json(self) -> dict[str, Any]:
        rows = [{"model": row.model, "condition": row.condition, **row.columns} for row in self.results]
        return {"format": FORMAT, "users": self.users, "results": rows}

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        content = read_result(folder, USERS)
        check_format(content, folder / USERS)
        try:
            rows = [dict(row) for row in content["results"]]
            results = [{"model": row.pop("model"), "condition": row.pop("condition"), "columns": row} for row in rows]
            return msgspec.convert({"users": content["users"], "results": results}, cls)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise BadInput(f"{folder / USERS} is damaged: {error}") from None
