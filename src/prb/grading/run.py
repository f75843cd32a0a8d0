"""Grade answers in a run folder: each distinct answer once, appended to `grades.jsonl` batch by batch, then a summary.

A line belongs to the answer it names (pair, answer, round), wherever in the file it is. What has no line yet is
graded, so an interrupted run resumes, and a line that is deleted is graded again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from prb import __version__
from prb.batches import chunks
from prb.data.load import Dataset, load
from prb.data.schema import read_items
from prb.engine.executors import Later, ahead, begin, given, open_executor, window
from prb.errors import BadInput
from prb.failures import Breaker, breaking, refuse_failures, share_problem, unanswered
from prb.grading import (
    GRADERS,
    TOP,
    Answered,
    GradeConfig,
    Grader,
    Grades,
    Reseedable,
    about_grader,
    answered,
    as_line,
    checked_grades,
    fits_rubric,
    make_grader,
)
from prb.grading.validate import Graded, GradedPair, GradedTwice, agreement, count_failures, discrimination, scores
from prb.progress import SILENT, Progress, Tally
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, Journal, RunFolder
from prb.stats.estimate import average, codes
from prb.types import Failure, FailureKind, Pair

GRADES = "grades.jsonl"
RETEST = 1
"""Number of the second round, and how much higher its seed is."""


class GradeKey(NamedTuple):
    """What is graded: an answer to a row, in the first or the second round."""

    pair: str
    answer: str
    round: int = 0


class HumanGrades(NamedTuple):
    """One annotator's grades of an answer."""

    key: GradeKey
    grades: Grades


@dataclass(frozen=True, kw_only=True)
class GradeLine:
    """One line of `grades.jsonl`."""

    pair: str
    user: str
    cluster: str
    round: int
    answer: str
    score: float | None
    aspects: tuple[float, ...] | None
    failure: str | None
    failure_kind: FailureKind | None = None
    tokens: int
    cost: float
    text: tuple[str, ...]

    @property
    def key(self) -> GradeKey:
        return GradeKey(self.pair, self.answer, self.round)

    @property
    def graded(self) -> Graded:
        if self.aspects is not None:
            return Grades(aspects=self.aspects)
        return Failure.parse(str(self.failure), self.failure_kind)


Lines = Mapping[GradeKey, GradeLine]
_LINE = TypeAdapter(GradeLine)


def grade(
    config: GradeConfig | None = None, *, grader: Grader | None = None, progress: Progress = SILENT, **settings: Any
) -> Finished:
    """Run or resume. `grader` takes the place of the one that `config.grader` names."""
    config = GradeConfig.of(config, settings)
    if grader is None:
        GRADERS.check(Spec.parse(config.grader))
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad)
    for note in dataset.notes:
        progress.note(note)
    job = GradingJob(config, dataset)
    out = config.folder(f"grade-{Path(config.dataset).name}")
    with (
        open_executor(config.engine) as executor,
        RunFolder(out, job.identity(), journals=(GRADES,)) as run,
        breaking(config.max_fatal) as breaker,
    ):
        progress.begin(f"loading {config.grader}")
        make = partial(make_grader, config.grader) if grader is None else partial(given, grader)
        grader = executor.load(make, config.grader)
        run.confirm_model(config.grader, grader.fingerprint)
        lines = job.grade_missing(grader, run[GRADES], breaker, progress)
        progress.begin("summarizing")
        summary = job.summary(lines, grader)
        run.finish({SUMMARY: summary})
    return Finished(out, summary)


def check_failures(summary: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if more than this share of the answers (with `validate`, of the pairs) failed."""
    validation = summary.get("validation")
    counts, failures = (
        (validation["accuracy"], validation["failures"]) if validation else (summary["score"], summary["failures"])
    )
    failed, total = counts["failed"], counts["n"] + counts["failed"]
    refuse_failures([share_problem(summary["grader"]["spec"], failed, total, failures, max_failed)], max_failed)


class GradableRows:
    """The rows of a split by id, without their posts: no grader sees those."""

    def __init__(self, dataset: Dataset) -> None:
        self.name = dataset.name + (f", split {dataset.split}" if dataset.split else "")
        self.pairs = {pair.id: replace(pair, profile=()) for pair in dataset if isinstance(pair, Pair)}
        self.clusters = dict(zip(dataset.index.ids, dataset.index.clusters, strict=True))
        if not any(pair.rubric for pair in self.pairs.values()):
            raise BadInput(f"no row of {self.name} has a rubric (`rubric_aspects`): there is nothing to grade against")
        self._ids_by_question: dict[str, list[str]] = defaultdict(list)
        for pair in self.pairs.values():
            self._ids_by_question[pair.question].append(pair.id)

    def key(self, line: Mapping[str, Any]) -> GradeKey:
        """The answer on a line of an input file; its row is named by id, or by question if that is unique."""
        if "pair" in line:
            pair = str(line["pair"])
            if pair not in self.pairs:
                raise ValueError(f"no row of {self.name} has the id {line['pair']!r}")
        elif "question" in line:
            ids = self._ids_by_question.get(str(line["question"]), [])
            if len(ids) != 1:
                raise ValueError(f"{len(ids)} rows of {self.name} have this `question`: give `pair`")
            pair = ids[0]
        else:
            raise ValueError("`pair` (the id of a row) or `question` is missing")
        if not isinstance(line.get("answer"), str):
            raise ValueError("`answer` is missing or not a string")
        return GradeKey(pair, line["answer"])

    def human_grades(self, line: Mapping[str, Any]) -> HumanGrades:
        key, grades = self.key(line), line.get("grades")
        aspects = len(self.pairs[key.pair].rubric)
        if not aspects:
            raise ValueError(f"row {key.pair!r} has no rubric")
        if not isinstance(grades, list) or len(grades) != aspects:
            raise ValueError(f"`grades` must be a list of {aspects}, one per aspect of row {key.pair!r}")
        if not all(isinstance(g, int) and not isinstance(g, bool) and 0 <= g <= TOP for g in grades):
            raise ValueError(f"`grades` holds {grades!r}; a grade is 0, 1 or 2")
        return HumanGrades(key, Grades(aspects=tuple(map(float, grades))))


class GradingJob:
    """What has to be graded, and what the grades add up to."""

    def __init__(self, config: GradeConfig, dataset: Dataset) -> None:
        self._config, self._rows = config, GradableRows(dataset)
        about = {"name": dataset.name, "split": dataset.split, "fingerprint": dataset.fingerprint}
        self._data = {**about, "rows": len(dataset)}
        self._answers = read_items(config.answers, self._rows.key)[: config.limit] if config.answers else []
        self._human = read_items(config.human, self._rows.human_grades) if config.human else []
        pairs = list(self._rows.pairs.values())
        self._labeled = [pairs[n] for n in dataset.index.sample(config.limit)] if config.validate else []

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        files = {"answers": self._config.answers, "human": self._config.human}
        hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path}
        return {"prb": __version__, "grade": self._config.saved(), "dataset": self._data, "files": hashes}

    def keys(self, grader: Grader) -> list[GradeKey]:
        """Each answer once, in the order of the files; for a retest all labeled ones once more."""
        labeled = dict.fromkeys(GradeKey(pair.id, answer) for pair in self._labeled for answer in pair.contrast)
        first = dict.fromkeys([*self._answers, *labeled, *(human.key for human in self._human)])
        again = labeled if self._config.retest and isinstance(grader, Reseedable) else {}
        return [*first, *(key._replace(round=RETEST) for key in again)]

    def grade_missing(self, grader: Grader, journal: Journal, breaker: Breaker, progress: Progress) -> Lines:
        """One line per key, in the order of the keys: those of the journal, and the rest graded and appended to it."""
        keys = self.keys(grader)
        lines = self._read_journal(journal, frozenset(keys))
        retried = [self._config.retries(line.failure, line.failure_kind) for line in lines.values()]
        if any(retried):
            progress.note(f"regrading {sum(retried)} answers that failed")
            journal.replace({number: None for number, again in enumerate(retried) if again})
            lines = {key: line for (key, line), again in zip(lines.items(), retried, strict=True) if not again}
        if journal.dropped_tail:
            progress.note("dropped the last line, cut short by a crash; it is regraded")
        if lines:
            progress.note(f"resuming: {len(lines)} of {len(keys)} answers are graded")
        progress.begin(f"grading by {self._config.grader}", total=len(keys), done=len(lines))
        tally = Tally(progress)
        rounds = ([key for key in keys if key.round == number and key not in lines] for number in (0, RETEST))
        batches = (batch for of_round in rounds for batch in chunks(of_round, self._config.batch))
        for batch, (asks, later) in ahead(batches, partial(self._ask, grader), window(grader)):
            results = checked_grades(later.result(), asks)
            error = breaker.error(results, self._config.grader)
            graded = [(key, one) for key, one in zip(batch, results, strict=True) if not (error and unanswered(one))]
            fresh = {key: self._line(key, one) for key, one in graded}
            journal.append(fresh.values())
            if error:
                raise error
            lines |= fresh
            tally.add([line.failure for line in fresh.values()], [line.cost for line in fresh.values()])
            progress.advance(len(batch))
        return {key: lines[key] for key in keys}

    def _ask(self, grader: Grader, batch: Sequence[GradeKey]) -> tuple[list[Answered], Later]:
        asked = grader.reseeded(RETEST) if batch[0].round and isinstance(grader, Reseedable) else grader
        masked = self._config.masks(asked)
        asks = [answered(self._rows.pairs[key.pair], key.answer, masked=masked) for key in batch]
        return asks, begin(asked, "grade", asks)

    def _read_journal(self, journal: Journal, keys: frozenset[GradeKey]) -> dict[GradeKey, GradeLine]:
        lines: dict[GradeKey, GradeLine] = {}
        for number, content in enumerate(journal.lines(), 1):
            problem = ""
            try:
                line = _LINE.validate_python(content)
                if bool(line.aspects) == (line.failure is not None):
                    problem = "it must have either `aspects` or `failure`"
                elif line.key not in keys or line.key in lines:
                    problem = "its answer is not part of this run or has a line already"
                elif line.aspects and not fits_rubric(line.aspects, len(self._rows.pairs[line.pair].rubric)):
                    problem = "`aspects` does not fit the rubric"
                lines[line.key] = line
            except ValidationError as error:
                first = error.errors()[0]
                problem = f"`{first['loc'][0]}`: {first['msg']}"
            if problem:
                advice = "delete the line and run again to grade its answer again"
                raise BadInput(f"{journal.path}:{number} is not a valid line: {problem}; {advice}")
        return lines

    def _line(self, key: GradeKey, graded: Graded) -> GradeLine:
        user, cluster = self._rows.pairs[key.pair].user, self._rows.clusters[key.pair]
        return GradeLine(**key._asdict(), user=user, cluster=cluster, **as_line(graded))

    def summary(self, lines: Lines, grader: Grader) -> dict[str, Any]:
        graded = {key: line.graded for key, line in lines.items()}
        return {
            "prb": __version__,
            "grader": about_grader(self._config.grader, grader),
            "dataset": self._data,
            "seed": self._config.seed,
            **(self._validation(graded, grader) if self._config.validate else self._mean_score(graded)),
            "tokens": sum(line.tokens for line in lines.values()),
            "cost": sum(line.cost for line in lines.values()),
        }

    def _mean_score(self, graded: Mapping[GradeKey, Graded]) -> dict[str, Any]:
        """Over all answers of the file; repeated ones count each time."""
        results = [graded[key] for key in self._answers]
        clusters = codes([self._rows.clusters[key.pair] for key in self._answers])
        return {
            "answers": {"given": len(results), "distinct": len(set(self._answers))},
            "score": average(scores(results), clusters).as_dict(),
            "failures": count_failures(results),
        }

    def _validation(self, graded: Mapping[GradeKey, Graded], grader: Grader) -> dict[str, Any]:
        seed, clusters = self._config.seed, self._rows.clusters
        pairs = [
            GradedPair(
                clusters[pair.id],
                pair.category,
                pair.tier,
                *(graded[GradeKey(pair.id, text)] for text in pair.contrast),
            )
            for pair in self._labeled
        ]
        human = [GradedTwice(clusters[key.pair], graded[key], grades) for key, grades in self._human]
        retest: dict[str, Any] | None = None
        if self._config.retest and not isinstance(grader, Reseedable):
            retest = {"deterministic": True}
        elif self._config.retest:
            twice = [
                GradedTwice(clusters[key.pair], graded[key._replace(round=0)], again)
                for key, again in graded.items()
                if key.round == RETEST
            ]
            retest = {"deterministic": False, **agreement(twice, seed=seed)}
        return {
            "validation": discrimination(pairs, seed=seed),
            "human": agreement(human, seed=seed) if human else None,
            "retest": retest,
        }
