"""Grade answers in a run folder, each distinct one once; `grades.jsonl` and the summary are derived from replies."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from prb import __version__
from prb.batches import chunks
from prb.data.load import Dataset, load
from prb.data.schema import read_items
from prb.engine.executors import given, open_executor
from prb.errors import BadInput
from prb.failures import Breaker, refuse_failures, share_problem
from prb.grading import (
    GRADERS,
    TOP,
    GradeConfig,
    Grader,
    Grades,
    Reseedable,
    about_grader,
    answered,
    as_line,
    checked_grades,
    grades_of,
    grading_calls,
    make_grader,
)
from prb.grading.license import GRADES as HUMAN_GRADES
from prb.grading.license import graded_item, read_license
from prb.grading.validate import Graded, GradedPair, GradedTwice, agreement, count_failures, discrimination, scores
from prb.progress import SILENT, Progress, Tally
from prb.registry import Spec
from prb.runs import SUMMARY, Finished, RunFolder, write_lines
from prb.stats.estimate import average, codes
from prb.types import Failure, Pair
from prb.work import Asked, Call, Replies, ask_missing, open_replies

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
    identity = job.identity()
    out = config.folder(f"grade-{Path(config.dataset).name}", dataset.fingerprint, *identity["files"].values())
    with (
        open_executor(config.engine) as executor,
        RunFolder(out, identity, fresh=config.fresh) as run,
        open_replies(out, progress, cache=config.cache) as replies,
    ):
        progress.begin(f"loading {config.grader}")
        make = partial(make_grader, config.grader) if grader is None else partial(given, grader)
        grader = executor.load(make, config.grader)
        run.confirm_model(config.grader, grader.fingerprint)
        graded = job.grade_missing(grader, replies, Breaker(), progress, given=is_given)
        progress.begin("summarizing")
        write_lines(out / GRADES, job.lines(graded))
        summary = job.summary(graded, grader)
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
        return HumanGrades(key, Grades(aspects=tuple(map(float, grades)), rubric=self.pairs[key.pair].rubric))


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

    def grade_missing(
        self, grader: Grader, replies: Replies, breaker: Breaker, progress: Progress, *, given: bool
    ) -> dict[GradeKey, Graded]:
        """What the grader says of every key; it is asked about what has no reply yet."""
        keys = self.keys(grader)
        graded: dict[GradeKey, Graded] = {}
        progress.begin(f"grading by {self._config.grader}", total=len(keys))
        tally = Tally(progress)
        for number in (0, RETEST):
            of_round = [key for key in keys if key.round == number]
            grades = grader.reseeded(RETEST) if number and isinstance(grader, Reseedable) else grader
            asked = Asked.of(self._config.grader, grades, "grade", given=given)
            if number:
                asked = asked._replace(identity=f"{asked.identity}\nretest")
            for calls in ask_missing(self._plan(asked, grades, of_round), replies, asked, breaker):
                results = [checked_grades([grades_of(replies[call.key])], [call.ask])[0] for call in calls.values()]
                graded |= zip(calls, results, strict=True)
                tally.add([r if isinstance(r, Failure) else None for r in results], [r.cost for r in results])
                progress.advance(len(calls))
        return graded

    def _plan(
        self, asked: Asked, grader: Grader, keys: Sequence[GradeKey]
    ) -> Iterator[tuple[dict[GradeKey, Call], Sequence[Call]]]:
        masked = self._config.masks(grader)
        for batch in chunks(keys, self._config.batch):
            asks = [answered(self._rows.pairs[key.pair], key.answer, masked=masked) for key in batch]
            calls = grading_calls(asked, grader, asks)
            yield dict(zip(batch, calls, strict=True)), calls

    def lines(self, graded: Mapping[GradeKey, Graded]) -> Iterator[dict[str, Any]]:
        """The content of `grades.jsonl`."""
        for key, one in graded.items():
            user, cluster = self._rows.pairs[key.pair].user, self._rows.clusters[key.pair]
            yield {**key._asdict(), "user": user, "cluster": cluster, **as_line(one)}

    def summary(self, graded: Mapping[GradeKey, Graded], grader: Grader) -> dict[str, Any]:
        return {
            "prb": __version__,
            "grader": about_grader(self._config.grader, grader),
            "dataset": self._data,
            "seed": self._config.seed,
            **(self._validation(graded, grader) if self._config.validate else self._mean_score(graded)),
            "tokens": sum(one.tokens for one in graded.values()),
            "cost": sum(one.cost for one in graded.values()),
        }

    def _mean_score(self, graded: Mapping[GradeKey, Graded]) -> dict[str, Any]:
        """Over all answers of the file; repeated ones count each time."""
        results = [graded[key] for key in self._answers]
        clusters = codes([self._rows.clusters[key.pair] for key in self._answers])
        return {
            "answers": {"given": len(results), "distinct": len(set(self._answers))},
            "score": average(scores(results), clusters).as_dict(),
            "failures": count_failures(results),
            "licensed": self._licensed(results) if self._config.license else None,
        }

    def _licensed(self, results: Sequence[Graded]) -> dict[str, Any]:
        """The mean that people would give, and what the license says of the grader."""
        license = read_license(self._config.license) if self._config.license else None
        assert license is not None
        items = [graded_item({"pair": key.pair, "answer": key.answer}) for key in self._answers]
        clusters = [self._rows.clusters[key.pair] for key in self._answers]
        powered = license.correct(HUMAN_GRADES, items, scores(results), clusters)
        return {"score": powered.tuned.as_dict(), "sentence": license.sentence()}

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
