"""Hooks: objects that follow a run, such as an experiment tracker or a class of your own.

    class Printer:                                   # any of these three methods
        def on_run_start(self, run: RunStart) -> None: ...
        def on_batch(self, batch: Batch) -> None: ...
        def on_result(self, result: RunResult) -> None: ...

`--hook wandb`, `--hook mine.py:Printer` or `prb.evaluate(hooks=[Printer()])`. Other packages declare theirs under the
entry-point group `prb.hooks`. A hook that raises is reported in one line and not called again: no tracker may cost a
result.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from prb.config import Name, Rare, Repeated, Settings, config
from prb.registry import Registry
from prb.types import UNMEASURED, Outcome, visible


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins or is resumed."""

    verb: str
    folder: Path
    settings: Mapping[str, Any]
    """As `config.json` has them."""
    dataset: Mapping[str, Any]
    """Name, fingerprint and number of rows."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows that one model has just finished, under all conditions. Their lines are on disk already."""

    model: str
    done: int
    """Rows of this model so far, earlier processes included."""
    total: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run."""

    folder: Path
    summary: Mapping[str, Any]
    """The content of `summary.json`."""


Event = Literal["on_run_start", "on_batch", "on_result"]
HOOKS: Registry[object] = Registry("hook", package="prb.hooks", group="prb.hooks")
PROJECT = "personalized-rewardbench"


@config
class HookConfig(Settings):
    """Who follows the run."""

    presentation: ClassVar[frozenset[str]] = frozenset({"hook"})

    hook: Rare[Repeated[Name]] = ()
    """Report the run to a tracker: `wandb`, `mlflow`, `trackio`, or `mine.py:Class`."""


class Hooks:
    """The hooks of one run."""

    def __init__(self, specs: Sequence[str], given: Sequence[object] = ()) -> None:
        """Specs are built at once, so a wrong name or a missing package is an error before anything happens."""
        self._hooks = [(spec, HOOKS.make(spec)) for spec in specs]
        self._hooks += [(type(hook).__name__, hook) for hook in given]

    def tell(self, event: Event, about: object) -> None:
        """Call a method of every hook that has it; what it prints goes to standard error."""
        for name, hook in tuple(self._hooks):
            try:
                with redirect_stdout(sys.stderr):
                    getattr(hook, event, lambda _: None)(about)
            except Exception as error:  # third-party code: anything can be wrong with it
                self._hooks.remove((name, hook))
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                warning = f"prb: hook {name!r} failed in {event} and is left out from here on ({reason})"
                print(visible(warning), file=sys.stderr)  # noqa: T201 - also where no progress is shown


# --- experiment trackers ---
class Tracker:
    """Logs accuracy so far after every batch, and all estimates at the end of a run."""

    def __init__(self) -> None:
        self.rows = 0
        self._won: dict[str, float] = defaultdict(float)
        self._answered: dict[str, int] = defaultdict(int)
        self._spent: dict[str, dict[str, float]] = {}

    def so_far(self, batch: Batch) -> dict[str, float]:
        """The metrics of a model after a batch; failures are counted and never averaged."""
        spent = self._spent.setdefault(batch.model, {"failed": 0, "tokens": 0, "cost": 0.0})
        metrics: dict[str, float] = {}
        for outcome in batch.outcomes:
            spent["failed"] += outcome.failure is not None and outcome.failure_kind != UNMEASURED
            spent["tokens"] += outcome.tokens
            spent["cost"] += outcome.cost
            if outcome.credit is not None:
                name = metric_name(batch.model, outcome.condition, "accuracy so far")
                self._won[name] += outcome.credit
                self._answered[name] += 1
                metrics[name] = self._won[name] / self._answered[name]
        self.rows += len({outcome.pair for outcome in batch.outcomes})
        metrics |= {metric_name(batch.model, name): value for name, value in spent.items()}
        return metrics | {metric_name(batch.model, "rows"): batch.done}


def metric_name(*parts: str) -> str:
    """As all trackers accept it: `embedding_encoder_minilm/profile/accuracy`."""
    return "/".join(re.sub(r"[^\w\-. :]", "_", part) for part in parts)


def final_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Every estimate of a summary with its interval, by model, condition and name."""
    estimates = {
        (row["model"], row["condition"], name): entry for row in summary["results"] for name, entry in row.items()
    }
    estimates |= {(row["model"], row["kind"]): row for row in summary["contrasts"]}
    return {
        metric_name(*place, name if part == "value" else f"{name}_{part}"): entry[part]
        for (*place, name), entry in estimates.items()
        if isinstance(entry, Mapping) and "value" in entry
        for part in ("value", "low", "high", "p")
        if entry.get(part) is not None
    }


class WandbLike(Tracker):
    """wandb, and trackio, which has the same functions."""

    def __init__(self, module: Any, **options: Any) -> None:
        super().__init__()
        self._module, self._options = module, {key: value for key, value in options.items() if value is not None}
        self._run: Any = None

    def on_run_start(self, run: RunStart) -> None:
        about = {**run.settings, "dataset": dict(run.dataset), "verb": run.verb, "folder": str(run.folder)}
        self._run = self._module.init(config=about, **{"name": run.folder.name, **self._options})

    def on_batch(self, batch: Batch) -> None:
        self._run.log({**self.so_far(batch), "rows": self.rows})  # without a step: with one, wandb waits for the next

    def on_result(self, result: RunResult) -> None:
        self._run.log(final_metrics(result.summary))
        self._run.finish()


@HOOKS.register("wandb")
def wandb(
    project: str = PROJECT, name: str | None = None, mode: Literal["online", "offline", "disabled"] | None = None
) -> WandbLike:
    """Weights & Biases. Without `mode` the environment decides (WANDB_MODE); `offline` writes files only."""
    import wandb as module

    return WandbLike(module, project=project, name=name, mode=mode)


@HOOKS.register("trackio")
def trackio(project: str = PROJECT, name: str | None = None, space_id: str | None = None) -> WandbLike:
    """Trackio: a local database that `trackio show` displays, or a Space with `space_id=owner/name`."""
    import trackio as module

    return WandbLike(module, project=project, name=name, space_id=space_id, embed=False)


class Mlflow(Tracker):
    """An MLflow run through its client, so the active run of the process is left alone."""

    def __init__(self, client: Any, experiment: str, name: str | None) -> None:
        super().__init__()
        self._client, self._experiment, self._name = client, experiment, name
        self._run = ""

    def on_run_start(self, run: RunStart) -> None:
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(experiment, run_name=self._name or run.folder.name).info.run_id
        about = {**run.settings, **{f"dataset_{key}": value for key, value in run.dataset.items()}}
        for key, value in {**about, "folder": run.folder}.items():
            self._client.log_param(self._run, key, str(value)[:500])

    def on_batch(self, batch: Batch) -> None:
        self._log(self.so_far(batch))

    def on_result(self, result: RunResult) -> None:
        self._log(final_metrics(result.summary))
        self._client.log_dict(self._run, dict(result.summary), "summary.json")
        self._client.set_terminated(self._run)

    def _log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=self.rows)


@HOOKS.register("mlflow")
def mlflow(experiment: str = PROJECT, name: str | None = None, uri: str | None = None) -> Mlflow:
    """MLflow. Without `uri` the environment decides (MLFLOW_TRACKING_URI)."""
    from mlflow import MlflowClient

    return Mlflow(MlflowClient(tracking_uri=uri), experiment, name)
