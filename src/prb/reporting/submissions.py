"""`prb leaderboard`: one site from the runs of many people, each of which is checked first.

A submission is a run folder of `prb evaluate` from a stranger, so nothing in it is trusted. The leaderboard reads the
dataset itself, requires an outcome for every row, derives credit from scores and verdicts again, and shows the summary
that it computes. Only `config.json` and `outcomes.jsonl` are read: regular files inside the folder, each up to a limit.
The dataset and the models that a submission names are never opened, so nothing it brings along is run or published.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from prb.config import OutputConfig, Place, Positional, Rare, Share, config, read_config
from prb.data.load import Dataset
from prb.errors import BadInput, NotAccepted, PrbError
from prb.evaluation.config import EvaluateConfig, check_failures
from prb.evaluation.metrics import summarize
from prb.evaluation.outcomes import Outcomes
from prb.evaluation.run import load_rows
from prb.progress import SILENT, Progress
from prb.registry import names_code
from prb.reporting.format import Table
from prb.reporting.gather import EvaluationRun, gather
from prb.reporting.site import check_target, write_site
from prb.runs import CONFIG, OUTCOMES
from prb.stats.credit import credit_of_scores, credit_of_verdicts
from prb.types import NO_EVIDENCE, visible

MB = 1 << 20
LIMITS = {CONFIG: MB, OUTCOMES: 2048 * MB}
"""The most bytes that are read of each file."""
LINE = 4 * MB
"""The most bytes of an outcome."""
REQUIRED = ("history", "k", "planner", "mask_pii", "limit", "seed", "task", "protocol", "orders")
"""Settings that every submission must have as the leaderboard does."""
CONDITIONS = ("none", "profile", "shuffled")
"""What every submission must have been run with, beside the settings of the leaderboard."""


@config
class LeaderboardConfig(OutputConfig):
    """A site from many submissions, each checked and refused with the reason. Exit 1 if all are refused."""

    submissions: Positional[Place]
    """Folder whose subfolders are run folders of `prb evaluate`."""
    config: Place | None = None
    """A run of `prb evaluate`, or its config.json: all submissions must have its data, settings and conditions.
    Default: those of `prb evaluate` on the embedded benchmark, under none, profile and shuffled."""
    out: Place = Path("site")
    """Folder of the site. Only an earlier report is overwritten."""
    max_failed: Rare[Share] = 0.1
    """Refuse a submission in which more than this share of a model's rows failed."""
    strict: bool = False
    """Exit 1 if any submission is refused; the site is written all the same."""
    texts: bool = True
    """Include the texts of the dataset and the replies of judges."""


@dataclass(frozen=True)
class Leaderboard:
    index: Path | None
    """First page of the site; none if there was nothing to show."""
    accepted: tuple[str, ...]
    refused: Mapping[str, str]
    """Reasons by name of the submission."""


def leaderboard(config: LeaderboardConfig, *, progress: Progress = SILENT) -> Leaderboard:
    """Check many run folders and write one site from those that pass.

    Raises `NotAccepted`, with the result attached, if all are refused, or any with `strict`.
    """
    place = config.submissions
    if not place.is_dir():
        raise BadInput(f"{place} is not a folder of submissions")
    folders = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise BadInput(f"{place} holds no submissions: each is a run folder of its own")
    check_target(config.out)
    required = required_settings(config.config)
    progress.begin(f"checking {required.dataset}")
    dataset = load_rows(required)
    accepted: list[EvaluationRun] = []
    refused: dict[str, str] = {}
    for folder in folders:
        name = visible(os.fsencode(folder.name).decode(errors="replace"))
        progress.begin(f"checking {name}")
        try:
            accepted.append(check_submission(folder, required, dataset, config.max_failed))
        except PrbError as error:
            refused[name] = " ".join(str(error).replace(f"{folder}", name).split())
        except Exception as error:  # whatever else a stranger's files raise refuses them alone
            refused[name] = f"it cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    appendix = [Table("Refused submissions", ("submission", "reason"), tuple(refused.items()))] if refused else []
    index = None
    if accepted:
        inputs = gather((), runs=accepted, appendix=appendix, texts=config.texts, progress=progress)
        index = write_site(inputs, config.out, progress=progress)
    result = Leaderboard(index, tuple(run.folder.name for run in accepted), refused)
    if refused and (not accepted or config.strict):
        failed = NotAccepted(f"{len(refused)} of {len(folders)} submissions were refused")
        failed.result = result
        raise failed
    return result


def required_settings(reference: Path | None) -> EvaluateConfig:
    """What submissions must have been run with: as a reference run was, or by default."""
    if reference is None:
        return EvaluateConfig(condition=CONDITIONS)
    given = read_config(reference, EvaluateConfig)
    for name in ("dataset", "planner"):
        if names_code(str(given.get(name, ""))):
            raise BadInput(f"{reference} names code, {given[name]!r}; the {name} of a leaderboard may not")
    known = EvaluateConfig(**given)
    same = {name: getattr(known, name) for name in ("dataset", "split", "skip_bad", *REQUIRED)}
    return EvaluateConfig(condition=known.condition or CONDITIONS, **same)


def check_submission(folder: Path, required: EvaluateConfig, dataset: Dataset, max_failed: float) -> EvaluationRun:
    """The run with our summary of its outcomes, if all of it is as it must be; else `BadInput` with the reason."""
    if folder.is_symlink():
        raise BadInput("it is a link")
    if not folder.name.isprintable():
        raise BadInput("its name has characters that cannot be shown")
    with _opened(folder / CONFIG) as file:
        try:
            config = orjson.loads(file.read(LIMITS[CONFIG]))
        except orjson.JSONDecodeError as error:
            raise BadInput(f"{CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("evaluate"), dict):
        raise BadInput("it is not a run of `prb evaluate`")
    run = EvaluateConfig(**EvaluateConfig.restore(config))
    about = config.get("dataset")
    theirs = str(about.get("fingerprint") if isinstance(about, dict) else None)
    if theirs != dataset.fingerprint:
        ours = dataset.fingerprint[:12]
        raise BadInput(f"it is about other data: fingerprint {theirs[:12]}…, the leaderboard's is {ours}…")
    compared = {name: (getattr(run, name), getattr(required, name)) for name in REQUIRED}
    if differing := [f"{name} is {theirs}, not {ours}" for name, (theirs, ours) in compared.items() if theirs != ours]:
        raise BadInput(f"it was run with other settings: {'; '.join(differing)}")
    if missing := [condition for condition in required.condition if condition not in run.condition]:
        raise BadInput(f"it lacks the condition {', '.join(missing)}")
    outcomes = _read_outcomes(folder / OUTCOMES, run, dataset)
    summary, _ = summarize(run, dataset, outcomes)
    check_failures(summary, max_failed)
    return EvaluationRun(folder, run, summary, outcomes=outcomes, dataset=dataset)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file of a submission, no larger than its limit. A link is not followed, a pipe is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadInput(f"it has no {path.name}: it is not a finished run of `prb evaluate`") from None
    except OSError as error:
        raise BadInput(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise BadInput(f"{path.name} is not a file")
        if about.st_size > LIMITS[path.name]:
            raise BadInput(f"{path.name} has {about.st_size:,} bytes; at most {LIMITS[path.name]:,} are read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _read_outcomes(path: Path, run: EvaluateConfig, dataset: Dataset) -> Outcomes:
    """One outcome per row, model and condition, each with the credit that its scores or verdicts earn."""
    index = dataset.index
    cells = [(model, condition) for model in run.names for condition in run.condition]
    outcomes = Outcomes(index.ids, cells, details=True)
    with _opened(path) as file:
        for number, text in enumerate(iter(partial(file.readline, LINE), b""), 1):
            where = f"{OUTCOMES}, line {number}"
            try:
                line = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise BadInput(f"{where}: not JSON, or longer than {LINE:,} bytes: {error}") from None
            if not isinstance(line, dict):
                raise BadInput(f"{where}: not an outcome")
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
        of_verdicts = credit_of_verdicts(verdicts or (), line.get("log_odds"), n_best)
        if of_verdicts is None or len(verdicts) != 2 * n_best * (n_answers - n_best):
            return f"the verdicts do not fit {n_answers} answers"
        earned = of_verdicts
    credit = None if tier == NO_EVIDENCE else earned.credit
    if not _same(line["credit"], credit) or not _same(line["margin"], earned.margin):
        return f"credit {line['credit']} and margin {line['margin']} are not what the answers of the model earn"
    return None


def _same(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
