"""Grade answers in a run folder, each distinct one once; `grades.jsonl` and the summary are derived from replies.

With --validate the summary says how good the grader is: its grades compared with labels and with human grades.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from prb import __version__
from prb.data.load import Dataset, load
from prb.data.schema import read_items
from prb.engine.executors import given, open_executor
from prb.errors import BadInput
from prb.grading import (
    GRADERS,
    TOP,
    GradeConfig,
    Grader,
    GraderAbout,
    Grades,
    answered,
    as_line,
    grade_answers,
    is_graded,
    make_grader,
)
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder, write_lines
from prb.stats.agreement import Coefficient, with_interval
from prb.stats.estimate import Floats, Ints, average, by_label, codes, share
from prb.stats.paired import difference
from prb.summary import DatasetAbout
from prb.types import Difference, Estimate, Failure, Pair
from prb.work import Breaker, CalledModel, open_replies, refuse_failures

GRADES = "grades.jsonl"
Graded = Grades | Failure


class GradeKey(NamedTuple):
    """What is graded: an answer to a row."""

    pair: str
    answer: str


def grade(
    config: GradeConfig | None = None, *, grader: Grader | None = None, progress: Progress = SILENT, **settings: Any
) -> Finished:
    """Run or resume. `grader` takes the place of the one that `config.grader` names."""
    config, is_given = GradeConfig.of(config, settings), grader is not None
    if grader is None:
        GRADERS.check(Spec.parse(config.grader))
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad)
    for note in dataset.notes:
        progress.note(note)
    job = GradingJob(config, dataset)
    files = {"answers": config.answers, "human": config.human}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path}
    about = msgspec.to_builtins(job.about)
    identity = {"prb": __version__, "grade": config.saved(), "dataset": about, "files": hashes}
    out = config.folder(f"grade-{Path(config.dataset).name}", dataset.fingerprint, *hashes.values())
    with (
        open_executor(config.engine) as executor,
        RunFolder(out, identity, fresh=config.fresh) as run,
        open_replies(out, progress, cache=config.cache) as replies,
    ):
        progress.begin(f"loading {config.grader}")
        make = partial(make_grader, config.grader) if grader is None else partial(given, grader)
        grader = executor.load(make, config.grader)
        run.confirm_model(config.grader, grader.fingerprint)
        asked, masked = CalledModel.of(config.grader, grader, "grade", from_caller=is_given), config.masks(grader)
        answers = {key: answered(job.pairs[key.pair], key.answer, masked=masked) for key in job.keys}
        graded = grade_answers(asked, answers, replies, Breaker(), progress)
        progress.begin("summarizing")
        of = {key: {"user": job.pairs[key.pair].user, "cluster": job.clusters[key.pair]} for key in graded}
        write_lines(out / GRADES, ({**key._asdict(), **of[key], **as_line(one)} for key, one in graded.items()))
        summary: dict[str, Any] = msgspec.to_builtins(job.summary(graded, grader))
        run.finish({SUMMARY: summary})
    return Finished(out, summary)


# --- the summary ---
class GradedDataset(DatasetAbout, frozen=True, omit_defaults=True):
    rows: int = 0


class AnswerCounts(Struct, frozen=True):
    given: int
    distinct: int


class ScoreSummary(Struct, frozen=True, kw_only=True):
    """The content of `summary.json` with --answers."""

    prb: str = __version__
    grader: GraderAbout
    dataset: GradedDataset
    seed: int
    answers: AnswerCounts
    score: Estimate
    """The mean over all answers of the file; repeated ones count each time."""
    failures: dict[str, int]
    tokens: int
    cost: float


class Discrimination(Struct, frozen=True, kw_only=True):
    """How often, and by how much, the chosen answer is graded above the rejected one."""

    accuracy: Estimate
    strict_accuracy: Estimate
    score_chosen: Estimate
    score_rejected: Estimate
    gap: Difference
    by_category: dict[str, Estimate]
    by_tier: dict[str, Estimate]
    failures: dict[str, int]


class GradeAgreement(Struct, frozen=True, kw_only=True):
    """A grader's and people's grades of the same answers."""

    equal: Estimate
    """Share of aspects with equal grades, fractional ones rounded first."""
    kappa: Coefficient
    """Of aspects, with quadratic weights."""
    spearman: Coefficient
    """Of the scores of answers."""
    answers: int
    failed: int
    """Answers that the grader failed to grade, which are left out."""


class ValidationSummary(Struct, frozen=True, kw_only=True):
    """The content of `summary.json` with --validate."""

    prb: str = __version__
    grader: GraderAbout
    dataset: GradedDataset
    seed: int
    validation: Discrimination
    human: GradeAgreement | None = None
    tokens: int
    cost: float


def read_summary(content: Mapping[str, Any]) -> ScoreSummary | ValidationSummary:
    kind: type[ScoreSummary | ValidationSummary] = ValidationSummary if "validation" in content else ScoreSummary
    return msgspec.convert(content, kind)


def check_failures(summary: ScoreSummary | ValidationSummary, max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the answers (with `validate`, of the pairs) failed."""
    if isinstance(summary, ScoreSummary):
        counted, failures = summary.score, summary.failures
    else:
        counted, failures = summary.validation.accuracy, summary.validation.failures
    total = counted.n + counted.failed
    refuse_failures([(summary.grader.spec, counted.failed, total, failures)], max_failed)


# --- the job ---
class GradingJob:
    """What has to be graded, and what the grades add up to. Rows are kept without posts: no grader sees those."""

    def __init__(self, config: GradeConfig, dataset: Dataset) -> None:
        self._config = config
        self.name = dataset.name + (f", split {dataset.split}" if dataset.split else "")
        self.about = GradedDataset(dataset.name, dataset.split, dataset.fingerprint, rows=len(dataset))
        self.pairs = {pair.id: replace(pair, profile=()) for pair in dataset if isinstance(pair, Pair)}
        self.clusters = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        if not any(pair.rubric for pair in self.pairs.values()):
            raise BadInput(f"no row of {self.name} has a rubric (`rubric_aspects`): there is nothing to grade against")
        self._answers = read_items(config.answers, self.key)[: config.limit] if config.answers else []
        self._human = read_items(config.human, self.human_grades) if config.human else []
        pairs = list(self.pairs.values())
        self._labeled = [pairs[n] for n in dataset.index.sample(config.limit)] if config.validate else []
        labeled = (GradeKey(pair.id, answer) for pair in self._labeled for answer in pair.contrast)
        self.keys = dict.fromkeys([*self._answers, *labeled, *(key for key, _ in self._human)])
        """What is graded, in the order of the files."""

    def key(self, line: Mapping[str, Any]) -> GradeKey:
        if str(line.get("pair")) not in self.pairs:
            raise ValueError(f"`pair` must be the id of a row of {self.name}, not {line.get('pair')!r}")
        if not isinstance(line.get("answer"), str):
            raise ValueError("`answer` is missing or not a string")
        return GradeKey(str(line["pair"]), line["answer"])

    def human_grades(self, line: Mapping[str, Any]) -> tuple[GradeKey, Grades]:
        """One annotator's grades of an answer."""
        key, grades = self.key(line), line.get("grades")
        rubric = self.pairs[key.pair].rubric
        if not rubric:
            raise ValueError(f"row {key.pair!r} has no rubric")
        if not is_graded(grades) or len(grades) != len(rubric) or any(isinstance(grade, float) for grade in grades):
            raise ValueError(f"`grades` must be {len(rubric)} times 0, 1 or 2, one per aspect of row {key.pair!r}")
        return key, Grades(aspects=tuple(map(float, grades)), rubric=rubric)

    def summary(self, graded: Mapping[GradeKey, Graded], grader: Grader) -> ScoreSummary | ValidationSummary:
        seed, clusters = self._config.seed, self.clusters
        about: dict[str, Any] = {
            "grader": GraderAbout.of(self._config.grader, grader),
            "dataset": self.about,
            "seed": seed,
            "tokens": sum(one.tokens for one in graded.values()),
            "cost": sum(one.cost for one in graded.values()),
        }
        if not self._config.validate:
            results = [graded[key] for key in self._answers]
            return ScoreSummary(
                answers=AnswerCounts(given=len(results), distinct=len(set(self._answers))),
                score=average(scores(results), codes([clusters[key.pair] for key in self._answers])),
                failures=count_failures(results),
                **about,
            )
        pairs = []
        for pair in self._labeled:
            chosen, rejected = (graded[GradeKey(pair.id, answer)] for answer in pair.contrast)
            pairs.append(GradedPair(clusters[pair.id], pair.category, pair.tier, chosen, rejected))
        human = [GradedTwice(clusters[key.pair], graded[key], grades) for key, grades in self._human]
        return ValidationSummary(
            validation=discrimination(pairs, seed=seed), human=agreement(human, seed=seed) if human else None, **about
        )


# --- how good is a grader: pure functions of grades that exist already ---
class GradedPair(NamedTuple):
    """The grades of both answers of a labeled pair."""

    cluster: str
    category: str
    tier: str | None
    chosen: Graded
    rejected: Graded


class GradedTwice(NamedTuple):
    """A grader's and a person's grades of the same answer."""

    cluster: str
    graded: Graded
    human: Grades


def discrimination(rows: Sequence[GradedPair], *, seed: int = 0) -> Discrimination:
    """A pair with an ungraded answer has no credit; it is counted as failed."""
    clusters = codes([row.cluster for row in rows])
    chosen, rejected = scores([row.chosen for row in rows]), scores([row.rejected for row in rows])
    credit = np.where(np.isnan(chosen - rejected), np.nan, (np.sign(chosen - rejected) + 1) / 2)
    known = ~np.isnan(credit)
    failed = int((~known).sum())
    return Discrimination(
        accuracy=share(credit[known], clusters[known], failed=failed),
        strict_accuracy=share((credit[known] == 1).astype(np.float64), clusters[known], failed=failed),
        score_chosen=average(np.where(known, chosen, np.nan), clusters),
        score_rejected=average(np.where(known, rejected, np.nan), clusters),
        gap=difference(chosen, rejected, clusters, seed=seed),
        by_category=by_label(credit, clusters, [row.category for row in rows]),
        by_tier=by_label(credit, clusters, [row.tier for row in rows]),
        failures=count_failures(graded for row in rows for graded in (row.chosen, row.rejected)),
    )


def agreement(rows: Sequence[GradedTwice], *, seed: int = 0) -> GradeAgreement:
    both = [(row.cluster, row.graded, row.human) for row in rows if isinstance(row.graded, Grades)]
    aspects = [pair for _, grader, human in both for pair in zip(grader.aspects, human.aspects, strict=True)]
    grades = np.rint(np.array(aspects).reshape(-1, 2)).astype(np.int64)
    totals = np.array([[grader.score, human.score] for _, grader, human in both]).reshape(-1, 2)
    by_aspect = codes([cluster for cluster, grader, _ in both for _ in grader.aspects])
    by_answer = codes([cluster for cluster, *_ in both])
    return GradeAgreement(
        equal=share((grades[:, 0] == grades[:, 1]).astype(np.float64), by_aspect),
        kappa=with_interval(weighted_kappa, grades, by_aspect, seed=seed),
        spearman=with_interval(rank_correlation, ranks(totals), by_answer, seed=seed),
        answers=len(both),
        failed=len(rows) - len(both),
    )


def weighted_kappa(grades: Ints) -> float | None:
    """1 − observed / expected squared distance of two columns (Cohen 1968, doi:10.1037/h0026256); `None` for 0/0."""
    counts = [np.bincount(column, minlength=TOP + 1) for column in grades.T]
    apart = np.square(np.subtract.outer(np.arange(TOP + 1), np.arange(TOP + 1)))
    expected = float((np.outer(*counts) * apart).sum()) / max(1, len(grades))
    return 1 - float(np.square(grades[:, 0] - grades[:, 1]).sum()) / expected if expected else None


def ranks(columns: Floats) -> Ints:
    """Each column as integers in the same order, which is all that a rank correlation uses."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in columns.T], axis=1).astype(np.int64)


def rank_correlation(columns: Ints) -> float | None:
    """Spearman's ρ of two columns; `None` if one of them is constant."""
    from scipy.stats import spearmanr

    if not len(columns) or not np.ptp(columns, axis=0).all():
        return None
    return float(spearmanr(columns[:, 0], columns[:, 1]).statistic)


def scores(graded: Iterable[Graded]) -> Floats:
    """One number per answer, NaN for a failure."""
    return np.array([np.nan if isinstance(g, Failure) else g.score for g in graded], dtype=np.float64)


def count_failures(graded: Iterable[Graded]) -> dict[str, int]:
    return dict(sorted(Counter(g.reason for g in graded if isinstance(g, Failure)).items()))
