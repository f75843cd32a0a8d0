"""What the verbs return: a run as numbers with uncertainty, as tables, and as data frames.

result = prb.evaluate(model="embedding")
result.accuracy("embedding", "profile")     # Estimate(value=0.508, low=0.487, high=0.530, n=240, …)
result.frame()                              # a pandas DataFrame, one row per model and condition
prb.open_run("runs/mirror-1a2b3c4d")        # the same object from its folder
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prb.errors import BadInput, MissingExtra, unknown
from prb.registry import Spec
from prb.runs import CONFIG, OUTCOMES, SUMMARY, USERS, Finished, read_identity, read_lines, read_result, read_sealed
from prb.types import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

    from prb.reporting.format import Table

FRAMES = Literal["summary", "outcomes", "users"]


class Run(Finished):
    """A finished job: the folder it wrote and the content of its result file."""

    def tables(self) -> Sequence[Table]:
        """The tables that the command line prints."""
        return ()

    def frame(self) -> DataFrame:
        """One row per result; nested values become dotted columns."""
        return data_frame(self.summary.get("results", [self.summary]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder}>"

    def __str__(self) -> str:
        from prb.reporting.format import layout

        return "\n\n".join("\n".join(layout(table, None)) for table in self.tables()) or repr(self)

    def _repr_html_(self) -> str:
        from prb.reporting.format import html_table

        return "\n".join(map(html_table, self.tables())) or f"<p>{escape(repr(self))}</p>"


class Evaluation(Run):
    """The result of `prb evaluate`, by model and condition."""

    @cached_property
    def users(self) -> Mapping[str, Any]:
        """The content of `users.json`."""
        return read_result(self.folder, USERS)  # type: ignore[no-any-return]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row["model"] for row in self.summary["results"]))

    @property
    def conditions(self) -> list[str]:
        return list(dict.fromkeys(row["condition"] for row in self.summary["results"]))

    def accuracy(self, model: str | None = None, condition: str = "profile") -> Estimate:
        """Mean credit; the model may be left out if there is only one."""
        return estimate(self.result(model, condition)["accuracy"])

    def person_effect(self, model: str | None = None, condition: str = "profile") -> Estimate:
        """Share of twins that the model orders by the user; 0.5 for a user-blind one."""
        return estimate(self.result(model, condition)["person_effect"])

    def gain(self, model: str | None = None) -> Estimate:
        """Accuracy with the user's own history minus accuracy without any."""
        return estimate(self.contrast("gain", model))

    def control(self, model: str | None = None) -> Estimate:
        """Accuracy with the user's own history minus accuracy with another user's."""
        return estimate(self.contrast("control", model))

    def result(self, model: str | None = None, condition: str = "profile") -> Mapping[str, Any]:
        """The entry of `summary.json` with every metric of one model under one condition."""
        name = self._model(model)
        if condition not in self.conditions:
            raise unknown("condition of this run", condition, self.conditions)
        return next(r for r in self.summary["results"] if (r["model"], r["condition"]) == (name, condition))

    def contrast(self, kind: Literal["gain", "control"], model: str | None = None) -> Mapping[str, Any]:
        """The entry of `summary.json` with difference, interval and p-values."""
        name = self._model(model)
        rows = [row for row in self.summary["contrasts"] if (row["kind"], row["model"]) == (kind, name)]
        if not rows:
            raise BadInput(f"this run has no {kind}: it needs profile and {'none' if kind == 'gain' else 'shuffled'}")
        return rows[0]  # type: ignore[no-any-return]

    def frame(self, of: FRAMES = "summary") -> DataFrame:
        """One row per model and condition, per outcome, or per user, model and condition."""
        if of == "outcomes":
            return data_frame(read_lines(self.folder / OUTCOMES))
        if of == "users":
            return data_frame(
                {"user": user} | {k: v if k in ("model", "condition") else v[n] for k, v in row.items()}
                for row in self.users["results"]
                for n, user in enumerate(self.users["users"])
            )
        contrasts = {(row["model"], row["kind"]): row for row in self.summary["contrasts"]}
        rows = [dict(row) for row in self.summary["results"]]
        for row in rows:
            if row["condition"] == "profile":
                row |= {kind: contrasts.get((row["model"], kind)) for kind in ("gain", "control")}
        return data_frame(rows)

    def tables(self) -> Sequence[Table]:
        from prb.reporting.evaluation_tables import evaluation_table

        return [evaluation_table(self.summary)]

    def _model(self, model: str | None) -> str:
        if model is None and len(self.models) == 1:
            return self.models[0]
        if model not in self.models:
            raise unknown("model of this run", str(model), self.models)
        return model


class Grading(Run):
    """The result of `prb grade`."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.tables import grade_table

        return [grade_table(self.summary)]


class BestOfN(Run):
    """The result of `prb bon`."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.downstream_tables import bon_tables

        return list(bon_tables(self.summary))


@dataclass(frozen=True, repr=False)
class Ppo(Run):
    """The result of `prb ppo`."""

    message: str = ""
    """What to show if verl trained, which writes no summary."""
    main_process: bool = True
    """False in all but one of the processes that accelerate started."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.downstream_tables import ppo_tables

        return list(ppo_tables(self.summary))


class Audit(Run):
    """The result of `prb audit`."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.evaluation_tables import audit_tables

        return list(audit_tables(self.summary))


class Correlation(Run):
    """The result of `prb correlate`."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.downstream_tables import correlation_tables

        return list(correlation_tables(self.summary))


class Comparison(Run):
    """The result of `prb compare`; `folder` is that of the first run."""

    def tables(self) -> Sequence[Table]:
        from prb.reporting.evaluation_tables import comparison

        return [comparison(self.summary)]

    def frame(self) -> DataFrame:
        return data_frame(self.summary["comparisons"])


class TrainedModel(Run):
    """A head or model that `prb train` made."""

    @property
    def spec(self) -> str:
        """What to give to `prb evaluate --model`."""
        return str(self.summary.get("model") or Spec("personal", {"path": str(self.folder)}))


class BuiltBenchmark(Run):
    """The result of `prb build`; with `dry_run` the summary is the estimate and nothing was written."""

    @property
    def pairs(self) -> Path:
        return self.folder / "pairs.jsonl"

    def tables(self) -> Sequence[Table]:
        from prb.reporting.tables import build_estimate

        return [build_estimate(self.summary)] if "stages" in self.summary else ()


KINDS: dict[str, tuple[type[Run], str]] = {
    "evaluate": (Evaluation, SUMMARY),
    "grade": (Grading, SUMMARY),
    "bon": (BestOfN, SUMMARY),
    "ppo": (Ppo, SUMMARY),
    "train": (TrainedModel, "card.json"),
    "build": (BuiltBenchmark, "card.json"),
}
"""By the verb in `config.json`: the class, and the file that is written last."""
WITHOUT_CONFIG: dict[str, type[Run]] = {"audit.json": Audit, "correlation.json": Correlation}


def open_run(path: str | Path) -> Run:
    """The run in a folder, whichever verb made it."""
    folder = Path(path)
    for name, kind in WITHOUT_CONFIG.items():
        if (folder / name).exists():
            from prb.reporting.gather import kind_of

            kind_of(folder / name)  # refuses a file that is no such result
            return kind(folder, read_sealed(folder / name))
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not a run: it has no {CONFIG}")
    config = read_identity(folder)
    verb = next((name for name in KINDS if name in config), None)
    if verb is None:
        raise BadInput(f"{folder / CONFIG} names no verb that makes runs")
    cls, name = KINDS[verb]
    if verb == "train":
        from prb.models.personal.head import read as read_head

        return cls(folder, read_head(folder)[1])
    return cls(folder, read_result(folder, name))


def estimate(entry: Mapping[str, Any] | None) -> Estimate:
    """An entry of a summary as an object."""
    if entry is None:
        return Estimate(value=None, low=None, high=None, n=0)
    return Estimate(**{field.name: entry[field.name] for field in fields(Estimate) if field.name in entry})


def data_frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    try:
        from pandas import DataFrame, json_normalize
    except ImportError:
        raise MissingExtra("a data frame", "pandas") from None
    flat = json_normalize(list(rows))
    return flat if len(flat) else DataFrame()
