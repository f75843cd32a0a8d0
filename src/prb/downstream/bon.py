"""Best-of-N: a policy's answers sampled once, scored by every reward model, graded once, in a folder that can grow.

Each stage has a file of lines and does only what is missing there, so a killed run goes on where it was, and a later
command with further models on the same folder samples and grades nothing again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prb import __version__
from prb.data.load import Dataset, load
from prb.data.retrieve import ranker
from prb.downstream.bon_config import DEFAULT_MODELS, BonConfig, complete, settings_of
from prb.downstream.curves import Graded, plot, summarise
from prb.downstream.rank import MOST_COMPARED, Answers, require, score
from prb.downstream.sample import draw
from prb.errors import BadInput, MissingExtra
from prb.evaluation.conditions import Asked, Asker
from prb.evaluation.plan import PLANNERS, Planner
from prb.evaluation.run import chunks
from prb.grading import GRADERS, Grader, about_grader, answered, as_line, grade_all
from prb.llm import LLM, Sampling, check_llm, make_llm
from prb.models import MODELS, is_remote
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import CONFIG, SUMMARY, Folder, Journal, read_json, write_json
from prb.types import Failure, Pair, Query, RewardModel

LINES = ("samples.jsonl", "scores.jsonl", "grades.jsonl")
PLOT = "bon.svg"
POLICY, GRADER = "policy: ", "grader: "
"""How the folder's list of weights tells these two from reward models."""


@dataclass(frozen=True)
class BestOfN:
    """A finished run: its folder and what stands in its `summary.json`."""

    folder: Path
    summary: dict[str, Any]


def bon(
    config: BonConfig,
    *,
    models: Mapping[str, RewardModel] | None = None,
    policy: LLM | None = None,
    grader: Grader | None = None,
    progress: Progress = SILENT,
) -> BestOfN:
    """Run, resume or extend; objects of your own stand in for what the specs of `config` name."""
    config = complete(config)
    own = models or {}
    _check(config, own, policy)
    planner = PLANNERS.make(config.planner)
    progress.begin(f"loading {config.grader}")
    marker = grader or GRADERS.make(config.grader)
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, skip_bad=config.skip_bad, donors=config.condition == "shuffled")
    pairs = choose(dataset, config)
    if dataset.problems:
        progress.note(f"left out {left_out(dataset)} rows with errors")
    assert config.out is not None
    with Stages(config.out, identity(config, dataset, planner)) as stages:
        stages.confirm_model(GRADER + config.grader, marker.fingerprint)
        work = Work(config, dataset, pairs, planner, stages, progress)
        work.sample(policy)
        for spec in work.models():
            work.score(spec, own)
        work.grade(marker)
        told = about(config, dataset, stages.known(), marker)
        summary = {**summarise(work.graded(), told, ks=config.best_of), "clusters": work.clusters()}
        stages.finish(summary)
        _draw_plot(summary, config.out / PLOT, progress)
    return BestOfN(config.out, summary)


def _check(config: BonConfig, own: Mapping[str, RewardModel], policy: LLM | None) -> None:
    """Wrong names and options are told now, not after hours of sampling."""
    if policy is None:
        check_llm(config.policy)
    for spec in config.model:
        if spec not in own:
            MODELS.check(Spec.parse(spec))
        if config.n > MOST_COMPARED:  # only the model itself tells whether it can be asked that much
            require(spec, own[spec] if spec in own else MODELS.make(spec), config.n)


def identity(config: BonConfig, dataset: Dataset, planner: Planner) -> dict[str, Any]:
    """What must be the same for a folder to be continued; its reward models are not part of it."""
    data = {"name": dataset.name, "fingerprint": dataset.fingerprint}
    return {"prb": __version__, "bon": settings_of(config), "dataset": data, "planner": planner.fingerprint}


def choose(dataset: Dataset, config: BonConfig) -> list[Pair]:
    """The rows in use: with a rubric to grade by, at most so many of a person, the first so many."""
    with_rubric = (item for item in dataset if isinstance(item, Pair) and item.rubric)
    seen: Counter[str] = Counter()

    def wanted(pair: Pair) -> bool:
        seen[pair.user] += 1
        return config.per_user is None or seen[pair.user] <= config.per_user

    pairs = list(islice(filter(wanted, with_rubric), config.limit))
    if not pairs:
        raise BadInput(f"{dataset.name} has no row with a rubric, so no answer to it can be graded")
    return pairs


def left_out(dataset: Dataset) -> int:
    """Rows with errors, passed over by `skip_bad`."""
    return len({(problem.place, problem.line) for problem in dataset.problems})


def about(config: BonConfig, dataset: Dataset, known: Mapping[str, str], grader: Grader) -> dict[str, Any]:
    """What the numbers of a summary are about."""
    return {
        "prb": __version__,
        "dataset": {
            "name": dataset.name,
            "split": dataset.split,
            "fingerprint": dataset.fingerprint,
            "left_out": left_out(dataset),
        },
        "condition": config.condition,
        "policy": {"spec": config.policy, "fingerprint": known.get(POLICY + config.policy)},
        "grader": about_grader(config.grader, grader),
        "n": config.n,
        "seed": config.seed,
    }


class Stages(Folder):
    """The folder: a file of lines for each stage."""

    samples: Journal
    scores: Journal
    grades: Journal

    def __enter__(self) -> Self:
        self.open()
        self.samples, self.scores, self.grades = self._all = tuple(Journal(self.folder / name) for name in LINES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        empty = all(journal.empty for journal in self._all)
        for journal in self._all:
            journal.close()
        self.close()
        if error is not None and empty:
            self.leave_no_trace(*LINES)

    def known(self) -> dict[str, str]:
        """Fingerprints by name of all that had a part so far."""
        return dict(read_json(self.folder / CONFIG).get("models", {}))

    def finish(self, summary: Mapping[str, Any]) -> None:
        for journal in self._all:
            journal.sync()
        write_json(self.folder / SUMMARY, summary)


def reward_models(known: Mapping[str, str]) -> list[str]:
    """Of a folder's `models`, those that score."""
    return [name for name in known if not name.startswith((POLICY, GRADER))]


Lines = dict[int, dict[str, Any]]
"""Of one pair, by number of the sample."""


@dataclass
class Work:
    """What is there, and what is still to be done."""

    config: BonConfig
    dataset: Dataset
    pairs: list[Pair]
    planner: Planner
    stages: Stages
    progress: Progress
    _samples: dict[str, Lines] = field(default_factory=dict)
    _grades: dict[str, Lines] = field(default_factory=dict)
    _scores: dict[str, dict[str, Lines]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in self._read(self.stages.samples):
            self._samples.setdefault(line["pair"], {})[line["n"]] = line
        for line in self._read(self.stages.grades):
            self._grades.setdefault(line["pair"], {})[line["n"]] = line
        for line in self._read(self.stages.scores):
            self._scores.setdefault(line["model"], {}).setdefault(line["pair"], {})[line["n"]] = line

    def _read(self, journal: Journal) -> Iterator[dict[str, Any]]:
        if journal.dropped_tail:
            self.progress.note(f"the last line of {journal.path.name} was torn by a crash; dropped and done again")
        lines = journal.lines()
        return (line for line in lines if not (self.config.retry_failed and line["failure"]))

    def models(self) -> list[str]:
        """Those the folder has, then those asked for now."""
        had = reward_models(self.stages.known())
        return list(dict.fromkeys([*had, *(self.config.model or (() if had else DEFAULT_MODELS))]))

    def sample(self, policy: LLM | None) -> None:
        places = [(pair, n) for pair in self.pairs for n in range(self.config.n)]
        todo = [(pair, n) for pair, n in places if n not in self._samples.get(pair.id, {})]
        self.progress.begin(f"sampling {self.config.policy}", total=len(places), done=len(places) - len(todo))
        if not todo:
            return
        llm = policy or make_llm(self.config.policy)
        self.stages.confirm_model(POLICY + self.config.policy, llm.fingerprint)
        asker = self._asker(llm)
        for batch in chunks(todo, self.config.at_once):
            queries = self._queries(asker, [pair for pair, _ in batch])
            drawn = draw(llm, [(pair.id, n) for pair, n in batch], queries, self._sampling())
            self.stages.samples.append(drawn)
            for sample in drawn:
                self._samples.setdefault(sample.pair, {})[sample.n] = asdict(sample)
            self.progress.advance(len(drawn))

    def score(self, spec: str, own: Mapping[str, RewardModel]) -> None:
        """Whole batches again if anything of one is missing, since a number may depend on what it is computed with."""
        have = self._scores.setdefault(spec, {})
        size = max(1, self.config.at_once // self.config.n)
        batches = list(chunks([pair for pair in self.pairs if self._texts(pair)], size))
        todo = [batch for batch in batches if any(len(have.get(pair.id, {})) < self.config.n for pair in batch)]
        total = sum(map(len, batches))
        self.progress.begin(f"scoring by {spec}", total=total, done=total - sum(map(len, todo)))
        if not todo:
            return
        model = own[spec] if spec in own else MODELS.make(spec)
        require(spec, model, self.config.n)
        self.stages.confirm_model(spec, model.fingerprint)
        asker = self._asker(model)
        for batch in todo:
            queries = self._queries(asker, batch)
            lines = score(spec, model, [Answers(pair.id, queries[pair.id], self._texts(pair)) for pair in batch])
            self.stages.scores.append(lines)
            for line in lines:
                have.setdefault(line.pair, {})[line.n] = asdict(line)
            self.progress.advance(len(batch))

    def grade(self, grader: Grader) -> None:
        """Each distinct answer of a pair once: the first sample with that text stands for all."""
        todo = [(pair, n, text) for pair in self.pairs for n, text in self._firsts(pair).items()]
        missing = [(pair, n, text) for pair, n, text in todo if n not in self._grades.get(pair.id, {})]
        self.progress.begin(f"grading by {self.config.grader}", total=len(todo), done=len(todo) - len(missing))
        masked = self._masked(grader)
        for batch in chunks(missing, self.config.at_once):
            said = grade_all(grader, [answered(pair, text, masked=masked) for pair, _, text in batch])
            lines = [{"pair": p.id, "n": n, **as_line(grades)} for (p, n, _), grades in zip(batch, said, strict=True)]
            self.stages.grades.append(lines)
            for line in lines:
                self._grades.setdefault(line["pair"], {})[line["n"]] = line
            self.progress.advance(len(lines))

    def graded(self) -> Graded:
        """All lines as tables: a row a pair, a column a sample."""
        models = self.models()
        return Graded(
            clusters=list(self.clusters().values()),
            samples=[[self._samples[pair.id][n] for n in range(self.config.n)] for pair in self.pairs],
            grades=[self._grade_row(pair) for pair in self.pairs],
            scores={spec: [self._score_row(spec, pair) for pair in self.pairs] for spec in models},
        )

    def clusters(self) -> dict[str, str]:
        """Who is not independent of whom, by pair, so that nobody needs the dataset to read this folder."""
        cluster = dict(zip(self.dataset.index.ids, self.dataset.index.clusters, strict=True))
        return {pair.id: cluster[pair.id] for pair in self.pairs}

    def _grade_row(self, pair: Pair) -> list[dict[str, Any]] | None:
        """The grade of each sample; nothing if not all of them are answers."""
        first = {text: n for n, text in self._firsts(pair).items()}
        return [self._grades[pair.id][first[text]] for text in self._texts(pair)] or None

    def _score_row(self, spec: str, pair: Pair) -> list[dict[str, Any]] | None:
        lines = self._scores[spec].get(pair.id)
        return None if lines is None else [lines[n] for n in range(self.config.n)]

    def _texts(self, pair: Pair) -> list[str]:
        """All N answers, or none: a query with a failed sample is left out."""
        lines = self._samples[pair.id]
        texts = [lines[n]["text"] for n in range(self.config.n)]
        return [] if None in texts else texts

    def _firsts(self, pair: Pair) -> dict[int, str]:
        """The distinct answers, each under its first number."""
        texts = self._texts(pair)
        return {texts.index(text): text for text in dict.fromkeys(texts)}

    def _sampling(self) -> Sampling:
        c = self.config
        return Sampling(temperature=c.temperature, top_p=c.top_p, max_tokens=c.max_tokens, seed=c.seed)

    def _asker(self, reader: object) -> Asker:
        return Asker(
            rank=ranker(self.config.ranker),
            planner=self.planner,
            people=self.dataset.people,
            k=self.config.k,
            budget=self.config.budget,
            seed=self.config.seed,
            mask=self._masked(reader),
            mask_for_planner=self._masked(self.planner),
        )

    def _queries(self, asker: Asker, pairs: Sequence[Pair]) -> dict[str, Query | Failure]:
        condition = self.config.condition
        distinct = {pair.id: pair for pair in pairs}
        plans = asker.plans(list(distinct.values())) if condition == "plan" else {}
        asked = {id_: asker.ask(pair, condition, plans.get(id_)) for id_, pair in distinct.items()}
        return {id_: found.query if isinstance(found, Asked) else found for id_, found in asked.items()}

    def _masked(self, reader: object) -> bool:
        return self.config.mask_pii == "on" or (self.config.mask_pii == "auto" and is_remote(reader))


def _draw_plot(summary: Mapping[str, Any], path: Path, progress: Progress) -> None:
    try:
        plot(summary, path)
    except MissingExtra as missing:
        progress.note(f"no {path.name}: {missing}")
