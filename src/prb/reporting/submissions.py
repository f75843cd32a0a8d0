"""`prb leaderboard`: one site from the runs of many people, each of which is checked first.

A submission is a run folder of `prb evaluate`. It is never believed: the leaderboard reads the dataset itself, asks for
an outcome of every row, derives credit from scores and verdicts again, computes the summary again and compares. The
dataset that a submission names is not opened, so nothing that it brings along is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import orjson

from prb.config import (
    Condition,
    DataConfig,
    Name,
    OutputConfig,
    Place,
    Positional,
    Repeated,
    Seed,
    Share,
    UserConfig,
    config,
)
from prb.data.load import Dataset, load
from prb.errors import BadInput, NotAccepted, PrbError
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.summary import check_failures, summarize
from prb.progress import SILENT, Progress
from prb.reporting.format import Table
from prb.reporting.gather import DAMAGED, EvaluationRun, gather, kind_of, read_run
from prb.reporting.site import Host, check_target, write_inputs
from prb.runs import OUTCOMES, USERS, check_unchanged, read_lines, read_result
from prb.stats.credit import credit_of_duels, credit_of_scores, duel_shares
from prb.types import NO_EVIDENCE

TOLERANCE = 1e-9
"""Sums may differ in their last digits between machines."""
FREE = ("prb", "dataset.name")
"""What may differ in a summary: the version of prb, and where the submitter had the rows."""
FIXED: Mapping[str, Any] = {"task": "pairs", "protocol": "prb", "orders": "both"}
"""What every submission must have been run with, beside the settings of the leaderboard."""


@config
class LeaderboardConfig(OutputConfig, UserConfig, DataConfig):
    """A site from many submissions, each checked and refused with the reason. Exit 1 if all are refused."""

    verb: ClassVar[str] = "leaderboard"

    submissions: Positional[Place]
    """Folder whose subfolders are run folders of `prb evaluate`."""
    out: Place = Path("site")
    """Folder of the site. Only an earlier report is overwritten."""
    condition: Repeated[Condition] = ("none", "profile", "shuffled")
    """Conditions that every submission must have."""
    seed: Seed = 0
    """That of the runs."""
    max_failed: Share = 0.1
    """Refuse a submission in which more than this share of a model's rows failed."""
    strict: bool = False
    """Exit 1 if any submission is refused; the site is written all the same."""
    texts: bool = True
    """Include the texts of the dataset and the replies of judges."""
    published: Name | None = None
    """Also show published results about the dataset: a YAML file, or `default` for those we ship."""
    publish: Host | None = None
    """Also write what a host needs: `pages` for GitHub Pages, `space` for a static Hugging Face Space."""
    title: Name = "Leaderboard"
    """Of the README that --publish writes."""
    json: bool = False
    """Print the accepted and the refused submissions as JSON."""


@dataclass(frozen=True)
class Leaderboard:
    index: Path | None
    """First page of the site; none if there was nothing to show."""
    accepted: tuple[str, ...]
    refused: Mapping[str, str]
    """Reasons by name of the submission."""


def leaderboard(settings: LeaderboardConfig, *, progress: Progress = SILENT) -> Leaderboard:
    place = settings.submissions
    if not place.is_dir():
        raise BadInput(f"{place} is not a folder of submissions")
    folders = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise BadInput(f"{place} holds no submissions: each is a run folder of its own")
    check_target(settings.out)
    progress.begin(f"checking {settings.dataset}")
    dataset = load(
        settings.dataset,
        split=settings.split,
        limit=settings.limit,
        skip_bad=settings.skip_bad,
        donors="shuffled" in settings.condition,
    )
    accepted: list[EvaluationRun] = []
    refused: dict[str, str] = {}
    for folder in folders:
        progress.begin(f"checking {folder.name}")
        try:
            accepted.append(check_submission(folder, settings, dataset))
        except PrbError as error:
            refused[folder.name] = " ".join(str(error).replace(f"{folder}", folder.name).split())
    appendix = [Table("Refused submissions", ("submission", "reason"), tuple(refused.items()))] if refused else []
    index = None
    if accepted:
        read = partial(gather, (), runs=accepted, appendix=appendix, texts=settings.texts, published=settings.published)
        index = write_inputs(read, settings.out, publish=settings.publish, name=settings.title, progress=progress)
    result = Leaderboard(index, tuple(run.folder.name for run in accepted), refused)
    if refused and (not accepted or settings.strict):
        failed = NotAccepted(f"{len(refused)} of {len(folders)} submissions were refused")
        failed.result = result
        raise failed
    return result


def check_submission(folder: Path, settings: LeaderboardConfig, dataset: Dataset) -> EvaluationRun:
    """The run, if all of it is as it must be; else `BadInput` with the reason."""
    if kind_of(folder) != "evaluate":
        raise BadInput("it is not a run of `prb evaluate`")
    run = read_run(folder)
    try:
        _check_data(run, dataset)
        _check_settings(run, settings)
        outcomes = _read_outcomes(run, dataset)
        summary, users = summarize(EvaluateConfig(**EvaluateConfig.restore(run.config)), dataset, outcomes)
        for name, stored, computed in (
            ("summary.json", run.summary, summary),
            (USERS, read_result(folder, USERS), users),
        ):
            if path := next(_differences(stored, orjson.loads(orjson.dumps(computed))), None):
                raise BadInput(f"{name} does not follow from the outcomes: {path}")
    except DAMAGED as error:
        raise BadInput(f"it is damaged or was written by another version of prb: {error!r}") from None
    check_failures(summary, settings.max_failed)
    return EvaluationRun(folder, run.config, summary, None, dataset)


def _check_data(run: EvaluationRun, dataset: Dataset) -> None:
    for about in (run.config["dataset"], run.summary["dataset"]):
        if about["fingerprint"] != dataset.fingerprint:
            theirs, ours = str(about["fingerprint"])[:12], dataset.fingerprint[:12]
            raise BadInput(f"it is about other data: fingerprint {theirs}…, the leaderboard's is {ours}…")
        if about["rows"] != len(dataset):
            raise BadInput(f"it has {about['rows']} rows, the leaderboard has {len(dataset)}")
    if run.summary["dataset"]["split"] != dataset.split:
        raise BadInput(
            f"it is about split {run.summary['dataset']['split']!r}, the leaderboard about {dataset.split!r}"
        )


def _check_settings(run: EvaluationRun, settings: LeaderboardConfig) -> None:
    names = [field.name for field in fields(UserConfig)] + ["limit", "seed"]
    required = {**{name: getattr(settings, name) for name in names}, **FIXED}
    differing = [
        f"{name} is {run.settings.get(name)}, not {value}"
        for name, value in required.items()
        if run.settings.get(name) != value
    ]
    if differing:
        raise BadInput(f"it was run with other settings: {'; '.join(differing)}")
    if missing := [condition for condition in settings.condition if condition not in run.settings["condition"]]:
        raise BadInput(f"it lacks the condition {', '.join(missing)}")


def _read_outcomes(run: EvaluationRun, dataset: Dataset) -> Outcomes:
    """One outcome per row, model and condition, each with the credit that its scores or verdicts earn."""
    names = EvaluateConfig(**EvaluateConfig.restore(run.config)).names
    cells = [(model, condition) for model in names for condition in run.settings["condition"]]
    path, index = run.folder / OUTCOMES, dataset.index
    check_unchanged(path)
    outcomes = Outcomes(index.ids, cells)
    for number, line in enumerate(read_lines(path), 1):
        where = f"{OUTCOMES}, line {number}"
        outcomes.read(line, where)
        row = len(outcomes.of[line["model"], line["condition"]]) - 1
        if (line["user"], line["cluster"]) != (index.users[row], index.clusters[row]):
            raise BadInput(f"{where}: user or cluster is not that of the row")
        problem = credit_problem(line, index.answers[0][row], index.answers[1][row], index.tiers[row])
        if problem:
            raise BadInput(f"{where}: {problem}")
    for (model, condition), column in outcomes.of.items():
        if len(column) != len(dataset):
            raise BadInput(f"{model} under {condition} has {len(column)} of {len(dataset)} rows")
    return outcomes


def credit_problem(line: Mapping[str, Any], n_best: int, n_answers: int, tier: str | None) -> str | None:
    """Why credit and margin are not what scores or verdicts earn, if they are not."""
    if line["failure"] is not None:
        return None  # no credit and no margin: the reader of outcomes has checked that
    scores, verdicts = line["scores"], line["verdicts"]
    if scores is not None:
        if len(scores) != n_answers or None in scores:
            return f"{n_answers} scores expected, not {scores}"
        earned = credit_of_scores(scores, n_best)
    else:
        shares = duel_shares(verdicts or ())
        if len(shares) != n_best * (n_answers - n_best) or None in shares:
            return f"the verdicts do not fit {n_answers} answers"
        earned = credit_of_duels(shares, n_best)  # type: ignore[arg-type]
    credit = None if tier == NO_EVIDENCE else earned.credit
    if not _same(line["credit"], credit) or not _same(line["margin"], earned.margin):
        return f"credit {line['credit']} and margin {line['margin']} are not what the answers of the model earn"
    return None


def _same(a: Any, b: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b))
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) if numbers else bool(a == b)


def _differences(stored: Any, computed: Any, at: str = "") -> Iterator[str]:
    """Places where two contents differ by more than rounding."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for key in dict.fromkeys([*stored, *computed]):
            if (path := f"{at}.{key}".lstrip(".")) not in FREE:
                yield from _differences(stored.get(key), computed.get(key), path)
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        for n, (a, b) in enumerate(zip(stored, computed, strict=True)):
            yield from _differences(a, b, f"{at}[{n}]")
    elif not _same(stored, computed):
        yield f"{at} is {_short(stored)}, computed {_short(computed)}"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else f"{text[:40]}…"
