"""Grading in a folder: every distinct answer once, appended to `grades.jsonl` as batches finish, then the summary.

What is to be graded is a list in a fixed order, and a line of the file is an entry of the list, so a run that was
killed goes on after its last whole line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from prb import __version__
from prb.data.load import Dataset, load
from prb.grading import GRADERS, Grader, Grades, Reseedable, about_grader, answered, as_line, grade_all
from prb.grading.config import GradeConfig, complete, settings_of
from prb.grading.given import Given, Rows, read_answers, read_human
from prb.grading.validate import Graded, Judged, Twice, agreement, discrimination, failures, scores
from prb.models import is_remote
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import SUMMARY, Folder, Journal, write_json
from prb.stats.best_of import average
from prb.stats.estimate import codes
from prb.types import Failure, Pair

GRADES = "grades.jsonl"
RETEST = 1
"""How far the seed of the second round is from that of the first."""


@dataclass(frozen=True)
class Grading:
    """A finished run: its folder and what stands in its `summary.json`."""

    folder: Path
    summary: dict[str, Any]


class Entry(NamedTuple):
    """One answer to be graded in the first or the second round."""

    given: Given
    round: int = 0


Done = Mapping[Entry, Graded]


class Kept(Folder):
    """The folder of a grading."""

    journal: Journal

    def __enter__(self) -> Self:
        self.open()
        self.journal = Journal(self.folder / GRADES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        empty = self.journal.empty
        self.journal.close()
        self.close()
        if error is not None and empty:
            self.leave_no_trace(GRADES)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.journal.sync()
        write_json(self.folder / SUMMARY, summary)


def grade(config: GradeConfig, *, grader: Grader | None = None, progress: Progress = SILENT) -> Grading:
    """Run or resume; a grader of your own stands in for what `config.grader` names."""
    config = complete(config)
    assert config.out is not None
    if grader is None:
        GRADERS.check(Spec.parse(config.grader))
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad)
    if dataset.problems:
        progress.note(f"left out {len({(p.place, p.line) for p in dataset.problems})} rows with errors")
    work = Work(config, dataset)
    with Kept(config.out, work.identity()) as kept:
        progress.begin(f"loading {config.grader}")
        marker = GRADERS.make(config.grader) if grader is None else grader
        kept.confirm_model(config.grader, marker.fingerprint)
        done = work.do(marker, kept.journal, progress)
        progress.begin("summing up")
        summary = {**work.about(marker), **work.results(done, marker), **_spent(kept.journal.lines())}
        kept.finish(summary)
    return Grading(config.out, summary)


class Work:
    """What is to be graded, and what the grades say."""

    def __init__(self, config: GradeConfig, dataset: Dataset) -> None:
        self._config, self._dataset, self._rows = config, dataset, Rows(dataset)
        self._given = read_answers(config.answers, self._rows)[: config.limit] if config.answers else []
        self._human = read_human(config.human, self._rows) if config.human else []
        self._labelled = list(islice(self._rows.pairs.values(), config.limit)) if config.validate else []

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        files = {"answers": self._config.answers, "human": self._config.human}
        handed = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path}
        return {"prb": __version__, "grade": settings_of(self._config), "dataset": self._about_data(), "files": handed}

    def entries(self, grader: Grader) -> list[Entry]:
        """Each answer once, in the order of the files, then all of them once more for a retest."""
        own = [Given(pair.id, answer) for pair in self._labelled for answer in pair.answers]
        first = [Entry(given) for given in dict.fromkeys([*self._given, *own, *(h.given for h in self._human)])]
        again = self._config.retest and isinstance(grader, Reseedable)
        return [*first, *(Entry(given, RETEST) for given in own if again)]

    def do(self, grader: Grader, journal: Journal, progress: Progress) -> Done:
        entries = self.entries(grader)
        done = dict(zip(entries, map(_from_line, journal.lines()), strict=False))
        if journal.dropped_tail:
            progress.note("the last line was torn by a crash; dropped and done again")
        if done:
            progress.note(f"resuming: {len(done)} of {len(entries)} answers are graded")
        progress.begin(f"grading by {self._config.grader}", total=len(entries), done=len(done))
        for batch in self._batches(entries[len(done) :]):
            asked = grader.reseeded(RETEST) if batch[0].round and isinstance(grader, Reseedable) else grader
            graded = self._graded(asked, batch)
            journal.append(map(self._line, batch, graded))
            done.update(zip(batch, graded, strict=True))
            progress.advance(len(batch))
        return done

    def _batches(self, entries: Sequence[Entry]) -> Iterator[list[Entry]]:
        """Of one round each."""
        for number in (0, RETEST):
            own = [entry for entry in entries if entry.round == number]
            yield from (own[at : at + self._config.batch] for at in range(0, len(own), self._config.batch))

    def _graded(self, grader: Grader, batch: Sequence[Entry]) -> list[Graded]:
        masked = self._config.mask_pii == "on" or (self._config.mask_pii == "auto" and is_remote(grader))
        shown = [answered(self._rows.pairs[e.given.pair], e.given.answer, masked=masked) for e in batch]
        return grade_all(grader, shown)

    def _line(self, entry: Entry, graded: Graded) -> dict[str, Any]:
        pair = self._rows.pairs[entry.given.pair]
        about = {"pair": pair.id, "user": pair.user, "cluster": self._rows.clusters[pair.id], "round": entry.round}
        return {**about, "answer": entry.given.answer, **as_line(graded)}

    def about(self, grader: Grader) -> dict[str, Any]:
        told = about_grader(self._config.grader, grader)
        return {"prb": __version__, "grader": told, "dataset": self._about_data(), "seed": self._config.seed}

    def _about_data(self) -> dict[str, Any]:
        data = self._dataset
        return {"name": data.name, "split": data.split, "fingerprint": data.fingerprint, "rows": len(data)}

    def results(self, done: Done, grader: Grader) -> dict[str, Any]:
        return self._validation(done, grader) if self._config.validate else self._scores(done)

    def _scores(self, done: Done) -> dict[str, Any]:
        """Every answer that was handed in counts, also where its text came before."""
        graded = [done[Entry(given)] for given in self._given]
        clusters = codes([self._rows.clusters[given.pair] for given in self._given])
        return {
            "answers": {"given": len(graded), "distinct": len(set(self._given))},
            "score": average(scores(graded), clusters).as_dict(),
            "failures": failures(graded),
        }

    def _validation(self, done: Done, grader: Grader) -> dict[str, Any]:
        seed = self._config.seed
        human = [Twice(self._rows.clusters[h.given.pair], done[Entry(h.given)], h.grades) for h in self._human]
        return {
            "validation": discrimination([self._judged(pair, done) for pair in self._labelled], seed=seed),
            "human": agreement(human, seed=seed) if human else None,
            "retest": self._retest(done, grader) if self._config.retest else None,
        }

    def _judged(self, pair: Pair, done: Done) -> Judged:
        chosen, rejected = (done[Entry(Given(pair.id, answer))] for answer in pair.answers)
        return Judged(self._rows.clusters[pair.id], pair.category, pair.tier, chosen, rejected)

    def _retest(self, done: Done, grader: Grader) -> dict[str, Any]:
        if not isinstance(grader, Reseedable):
            return {"deterministic": True}
        again = [entry.given for entry in done if entry.round == RETEST]
        twice = [Twice(self._rows.clusters[g.pair], done[Entry(g)], done[Entry(g, RETEST)]) for g in again]
        return {"deterministic": False, **agreement(twice, seed=self._config.seed)}


def _from_line(line: Mapping[str, Any]) -> Graded:
    if line["failure"] is None:
        return Grades(aspects=tuple(line["aspects"]))
    reason, _, detail = line["failure"].partition(": ")
    return Failure(reason, detail)


def _spent(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    booked = [(line["tokens"], line["cost"]) for line in lines]
    return {"tokens": sum(tokens for tokens, _ in booked), "cost": sum(cost for _, cost in booked)}
