"""The main job: models × conditions over a dataset, appended to a run folder as it finishes.

Order is fixed: model by model (only one is loaded at a time), batch by batch in dataset order, all conditions of
a batch together. So a run that was killed is cut back to its last whole batch and goes on from there, and ends
with the same bytes in `summary.json` as one that was never disturbed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from prb import __version__
from prb.data.load import Dataset, load
from prb.data.retrieve import ranker
from prb.errors import BadInput, unknown
from prb.evaluation.columns import Columns
from prb.evaluation.conditions import Asker
from prb.evaluation.config import CONDITIONS, DEFAULT_CONDITIONS, DEFAULT_MODELS, PRESENTATION, EvaluateConfig
from prb.evaluation.gate import parse_requirements
from prb.evaluation.paper import BATCH as PAPER_TEXTS
from prb.evaluation.paper import PaperJudging, PaperScoring, paper_scoring
from prb.evaluation.plan import PLANNERS, Planner
from prb.evaluation.score import Comparing, Scoring
from prb.evaluation.summary import summarise
from prb.models import MODELS, is_remote
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import OUTCOMES, SUMMARY, USERS, RunFolder
from prb.types import Comparer, Item, RewardModel, Scorer

PAPER_ROWS = PAPER_TEXTS // 2


@dataclass(frozen=True)
class Evaluation:
    """A finished run: its folder and what stands in its `summary.json` and `users.json`."""

    folder: Path
    summary: dict[str, Any]
    users: dict[str, Any]


def evaluate(
    config: EvaluateConfig, *, models: Mapping[str, RewardModel] | None = None, progress: Progress = SILENT
) -> Evaluation:
    """Run or resume; `models` holds reward models of your own by the name they have in `config.model`."""
    config = complete(config)
    own = models or {}
    for spec in config.model:
        if spec not in own:
            MODELS.check(Spec.parse(spec))
    planner = PLANNERS.make(config.planner)
    progress.begin(f"checking {config.dataset}")
    dataset = load(
        config.dataset,
        task=config.task,
        split=config.split,
        limit=config.limit,
        skip_bad=config.skip_bad,
        donors="shuffled" in config.condition,
    )
    if dataset.problems:
        progress.note(f"left out {len({(p.place, p.line) for p in dataset.problems})} rows with errors")
    assert config.out is not None
    with RunFolder(config.out, identity(config, dataset, planner), journals=(OUTCOMES,)) as run:
        work = Work(config, dataset, planner, run, progress)
        for position, spec in enumerate(config.model):
            work.one_model(position, spec, own)
        summary, users = summarise(config, dataset, work.columns)
        run.finish({USERS: users, SUMMARY: summary})
    return Evaluation(config.out, summary, users)


def complete(config: EvaluateConfig) -> EvaluateConfig:
    """Defaults filled in and every setting checked, before anything expensive happens."""
    for name in config.condition:
        if name not in CONDITIONS:
            raise unknown("condition", name, CONDITIONS)
    for setting, least in (("limit", 1), ("k", 0), ("budget", 0), ("batch", 1)):
        value = getattr(config, setting)
        if value is not None and value < least:
            raise BadInput(f"--{setting} {value}: wants {least} or more")
    parse_requirements(config.require or "")
    if config.protocol == "paper":
        config = _as_in_the_paper(config)
    config = replace(
        config,
        model=tuple(dict.fromkeys(config.model)) or DEFAULT_MODELS,
        condition=tuple(dict.fromkeys(config.condition)) or DEFAULT_CONDITIONS,
    )
    return config if config.out else replace(config, out=default_folder(config))


def _as_in_the_paper(config: EvaluateConfig) -> EvaluateConfig:
    if config.condition not in ((), ("none",)) or config.task != "pairs":
        raise BadInput("--protocol paper shows no profile and knows pairs only: leave out --condition and --task")
    if config.batch % PAPER_ROWS:
        raise BadInput(f"--protocol paper: --batch {config.batch} is no multiple of {PAPER_ROWS} rows (8 texts)")
    return replace(config, condition=("none",))


def settings_of(config: EvaluateConfig) -> dict[str, Any]:
    """What may change an outcome, as JSON can hold it."""
    kept = {key: value for key, value in asdict(config).items() if key not in PRESENTATION}
    return {key: str(value) if isinstance(value, Path) else value for key, value in kept.items()}


def default_folder(config: EvaluateConfig) -> Path:
    settings = settings_of(config)
    digest = hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
    name = "".join(c if c.isalnum() else "-" for c in Path(config.dataset).name).strip("-")
    return Path("runs") / f"{name}-{digest}"


def identity(config: EvaluateConfig, dataset: Dataset, planner: Planner) -> dict[str, Any]:
    """What must be the same for a run to be continued."""
    settings = settings_of(config)
    about = {"name": dataset.name, "fingerprint": dataset.fingerprint, "rows": len(dataset)}
    return {"prb": __version__, "evaluate": settings, "dataset": about, "planner": planner.fingerprint}


class Work:
    """The lines of one run: which are there, which are still to be made."""

    def __init__(
        self, config: EvaluateConfig, dataset: Dataset, planner: Planner, run: RunFolder, progress: Progress
    ) -> None:
        self.config, self.dataset, self.planner, self.run, self.progress = config, dataset, planner, run, progress
        self.columns = Columns(config.model, config.condition)
        self._per_row = len(config.condition)
        self._per_model = len(dataset) * self._per_row
        self._journal = run[OUTCOMES]
        self._kept = self._whole_batches(self._journal.count())
        if self._journal.dropped_tail:
            progress.note("the last line was torn by a crash; dropped and done again")
        if self._kept:
            progress.note(f"resuming: {self._kept} of {self._per_model * len(config.model)} outcomes are there")
        self._journal.keep(self._kept)
        self._stored = islice(self._journal.lines(), self._kept)

    def one_model(self, position: int, spec: str, own: Mapping[str, RewardModel]) -> None:
        rows_done = min(len(self.dataset), max(0, self._kept - position * self._per_model) // self._per_row)
        self.progress.begin(spec, total=len(self.dataset), done=rows_done)
        if rows_done == len(self.dataset):
            for ids in chunks(self.dataset.index.ids, self.config.batch):
                self._read(ids)
            return
        scoring = self._paper(spec) if self.config.protocol == "paper" else self._loaded(spec, own)
        ids, clusters = self.dataset.index.ids, self.dataset.index.clusters
        start = 0
        for batch in chunks(self.dataset, self.config.batch):
            end = start + len(batch)
            if end <= rows_done:
                scoring.recall(batch, self.config.condition, self._read(ids[start:end]))
            else:
                outcomes = list(scoring.batch(batch, clusters[start:end], self.config.condition))
                self._journal.append(outcomes)
                self.columns.add(outcomes)
                self.progress.advance(len(batch))
            start = end

    def _read(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """The stored lines of one batch."""
        lines = list(islice(self._stored, len(ids) * self._per_row))
        for n, line in enumerate(lines):
            self.columns.read(line, ids[n % len(ids)])
        return lines

    def _paper(self, spec: str) -> PaperScoring | PaperJudging:
        index = self.dataset.index
        scoring, fingerprint = paper_scoring(spec, index.ids, index.categories, self.config.judge_prompt)
        self.run.confirm_model(spec, fingerprint)
        return scoring

    def _loaded(self, spec: str, own: Mapping[str, RewardModel]) -> Scoring | Comparing:
        model = own[spec] if spec in own else MODELS.make(spec)
        self.run.confirm_model(spec, model.fingerprint)
        return self._scoring(spec, model)

    def _scoring(self, spec: str, model: RewardModel) -> Scoring | Comparing:
        config = self.config
        refuse = config.on_overflow == "error"
        asker = Asker(
            rank=ranker(config.ranker),
            planner=self.planner,
            people=self.dataset.people,
            k=config.k,
            budget=config.budget,
            seed=config.seed,
            mask=self._masked(model),
            mask_for_planner=self._masked(self.planner),
        )
        if isinstance(model, Scorer):
            return Scoring(spec, model, asker, refuse_cuts=refuse)
        if not isinstance(model, Comparer):
            raise BadInput(f"{spec!r} is no reward model: it has neither score() nor prefer()")
        if config.task == "ratings":
            raise BadInput(f"{spec!r} only compares answers; ratings need a model that scores them")
        both = config.orders == "both"
        return Comparing(spec, model, asker, both_orders=both, seed=config.seed, refuse_cuts=refuse)

    def _masked(self, reader: RewardModel | Planner) -> bool:
        return self.config.mask_pii == "on" or (self.config.mask_pii == "auto" and is_remote(reader))

    def _whole_batches(self, lines: int) -> int:
        """How many of the lines belong to finished batches; the rest is done again whole."""
        done, rest = divmod(min(lines, self._per_model * len(self.config.model)), self._per_model)
        return done * self._per_model + rest - rest % (self.config.batch * self._per_row)


def chunks(items: Iterator[Item] | Dataset | Sequence[Any], size: int) -> Iterator[list[Any]]:
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch
