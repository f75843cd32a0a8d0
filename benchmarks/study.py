"""Does `mirror` predict best-of-N better than a user-blind benchmark does? Trained reward models of graded knowledge.

Each reward model is scored on `mirror` (test), on a general-quality benchmark without users, and by best-of-8 on the
pool of answers that ships with mirror's questions, whose grades an LLM gave once, blind to reward models; then the
correlations over models and over means of families (method × features, whose members are not independent), into
docs/tables/correlation.md, docs/correlation.svg and docs/correlation.csv. Everything is in runs/study and resumes:
python benchmarks/study.py

Honest models were trained on more or fewer axes of preference, with several methods and features, or not at all. The
constructed ones (the true rubric read with noise, or another user's rubric) correlate by construction: they are named
as such, and all results are given without them too.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import orjson
import tyro
from record import ROOT, write_between

from prb.config import ConditionName, UserConfig
from prb.data.load import Dataset, load
from prb.downstream.bon import BonConfig, best_of_n
from prb.downstream.correlate import CorrelateConfig, correlate
from prb.evaluation.conditions import Built, QueryBuilder, pick_donor, true_plan
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.planners import PLANNERS
from prb.evaluation.run import evaluate
from prb.models import MODELS
from prb.models.scripted import Noisy
from prb.progress import Progress, watch
from prb.reporting.figures import scatter
from prb.reporting.format import markdown
from prb.reporting.results import Correlation
from prb.runs import write_json
from prb.text.words import words
from prb.training.config import TrainConfig
from prb.training.run import train
from prb.types import Ask, Failure, Pair, Query, Scorer

NOISE = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)
AXES = (5, 15, 30, 60, 92)
"""How many axes of preference the training data has."""
STATES = "hidden?lm=smollm2&layer=22&alone=true&dtype=fp32"
TAUGHT = {"static": "static", "minilm": "minilm", "SmolLM2": STATES}
LEARNED = ("light", "profile-mlp", "bilinear", "attention")
CONSTRUCTED = ("noisy *", "wrong rubric *")
K, N = 40, 8
"""Posts that are shown, which are all in the median history; answers per question."""
RIGHT_USER = "right-user.jsonl"
BENCH, DOWNSTREAM = ("mirror", "general"), ("best_of_8", "right_user")
"""Columns of the table of scores."""


@dataclass(frozen=True)
class Args:
    limit: int | None = None
    """Rows of the benchmark and of best-of-N, for a trial."""
    out: Path = ROOT / "runs" / "study"
    record: bool = True
    """Write the result into docs/."""


def main(args: Args) -> None:
    with watch() as progress:
        args.out.mkdir(parents=True, exist_ok=True)
        general, right = args.out / "general.jsonl", args.out / RIGHT_USER
        for path, rows in ((general, general_rows()), (right, right_user_rows())):
            path.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
        models = reward_models(args, progress)
        print(f"{len(models)} reward models")
        runs = [
            run(args, models, name, spec, progress)
            for name, spec in (("mirror", "mirror"), ("general", f"rewardbench?path={general}"))
        ]
        best = [
            downstream(args, models, name, candidates, grader, progress)
            for name, candidates, grader in (
                ("bon", "mirror", "recorded"),
                ("right-user", str(right), f"recorded?path={right}"),
            )
        ]
        config = CorrelateConfig(bench=tuple(map(str, runs)), downstream=tuple(map(str, best)), constructed=CONSTRUCTED)
        result = msgspec.to_builtins(correlate(config, progress=progress))
        result["families"] = {model: family_of(model) for model in result["models"]}
    write_json(args.out / "correlation.json", {**result, "sentences": Correlation(args.out, result).lines()})
    scatter(Correlation(args.out, result), args.out / "scatter.svg")
    models_csv, families_csv = args.out / "models.csv", args.out / "families.csv"
    write_scores(result, models_csv, families_csv)
    config = CorrelateConfig(table=families_csv, bench=BENCH, downstream=DOWNSTREAM, constructed=CONSTRUCTED)
    by_family = msgspec.to_builtins(correlate(config))
    text = "\n".join(
        line
        for title, content in (("", result), ("Over means of families (method × features):", by_family))
        for line in (
            title,
            *map(markdown, Correlation(args.out, content).tables()),
            *(f"- {sentence}" for sentence in Correlation(args.out, content).lines()),
        )
    ).replace(f"{args.out}/", "")  # the folder is this machine's
    print(text)
    if args.record:
        scatter(Correlation(args.out, result), ROOT / "docs" / "correlation.svg")
        (ROOT / "docs" / "correlation.csv").write_bytes(models_csv.read_bytes())
        about = f"{len(models)} reward models; best of {N} from the pool of `mirror`, all {K} posts shown at most."
        write_between("study", f"{about}\n\n{text}", ROOT / "docs" / "tables" / "correlation.md")


def write_scores(result: dict[str, Any], models_csv: Path, families_csv: Path) -> None:
    """Scores and standard errors of every model, and the means of every family."""
    columns = dict(zip((*BENCH, *DOWNSTREAM), (*result["bench"], *result["downstream"]), strict=True))
    families: dict[str, list[int]] = {}
    with models_csv.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", "family", "constructed", *(f"{name}{end}" for name in columns for end in ("", "_se"))])
        for n, model in enumerate(result["models"]):
            families.setdefault(family_of(model), []).append(n)
            numbers = [round(column[part][n], 6) for column in columns.values() for part in ("values", "errors")]
            table.writerow([model, family_of(model), str(model in result["constructed"]).lower(), *numbers])
    with families_csv.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", *columns])
        for family, members in families.items():
            means = [fmean(round(column["values"][n], 6) for n in members) for column in columns.values()]
            table.writerow([family, *(round(mean, 6) for mean in means)])


def family_of(model: str) -> str:
    """Method and features of a head; of other models their name without settings."""
    head = re.match(r"(\S+ on \w+)(, |$)", model)
    return head[1] if head else re.split(r"[?,]| (?=sd=|nearest=)", model)[0]


def run(args: Args, models: dict[str, Scorer], name: str, dataset: str, progress: Progress) -> Path:
    out, limit = args.out / name, args.limit
    config = EvaluateConfig(model=tuple(models), condition=("profile",), dataset=dataset, k=K, limit=limit, out=out)
    return evaluate(config, models=models, progress=progress).folder


def downstream(
    args: Args, models: dict[str, Scorer], name: str, candidates: str, grader: str, progress: Progress
) -> Path:
    out, limit = args.out / name, args.limit
    config = BonConfig(candidates=candidates, model=tuple(models), grader=grader, n=N, limit=limit, k=K, out=out)
    return best_of_n(config, models=models, progress=progress).folder


def right_user_rows() -> Iterator[dict[str, object]]:
    """Policy accuracy: an answer counts 1 if it is graded higher for this user than for the twin, half if equal."""
    for line in (files("prb.data") / "mirror" / "pool.jsonl").read_bytes().splitlines():
        row = orjson.loads(line)
        (one, first), (other, second) = ((pair, [sum(g) for g in grades]) for pair, grades in row["grades"].items())
        better = [(a > b) - (a < b) for a, b in zip(first, second, strict=True)]
        grades = {one: [[1 + sign] * 3 for sign in better], other: [[1 - sign] * 3 for sign in better]}
        yield {**row, "grades": grades}


class OtherQueries:
    """A scorer with other queries than those of the run, question by question."""

    def __init__(self, inner: Scorer, what: str, queries: dict[tuple[str | None, str], Query]) -> None:
        self.fingerprint = f"{inner.fingerprint} shown {what}"
        self._inner, self._queries = inner, queries

    def score(self, asks: Sequence[Ask]) -> Sequence[float | Failure]:
        return self._inner.score([Ask(self._replace(ask.query), ask.answer) for ask in asks])

    def _replace(self, query: Query) -> Query:
        return self._queries.get((query.user, query.question), query)


def reward_models(args: Args, progress: Progress) -> dict[str, Scorer]:
    dataset = load("mirror", donors=True)
    asked = {what: queries(dataset, what) for what in ("oracle", "plan", "shuffled")}
    asked["wrong rubric"] = dict(wrong_rubrics(dataset))
    reads, feels = scorer("aspect-match?encoder=minilm"), scorer("embedding?encoder=minilm")
    models: dict[str, Scorer] = {}
    for n, sd in enumerate(NOISE):
        models[f"noisy oracle sd={sd:g}"] = OtherQueries(Noisy(reads, sd, n), "oracle", asked["oracle"])
    for sd in (0.0, 0.1):
        models[f"wrong rubric sd={sd:g}"] = OtherQueries(Noisy(reads, sd, 50), "wrong rubric", asked["wrong rubric"])
    models |= {name: scorer(name) for name in ("random", "random?seed=1", "length", "constant", "lexical")}
    models |= {f"embedding nearest={n}": scorer(f"embedding?encoder=minilm&nearest={n}") for n in (1, 3, 10)}
    models["embedding, another user's posts"] = OtherQueries(feels, "shuffled", asked["shuffled"])
    models["aspect-match, inferred plan"] = OtherQueries(reads, "plan", asked["plan"])
    return models | dict(trained(args, progress))


def trained(args: Args, progress: Progress) -> Iterator[tuple[str, Scorer]]:
    """Heads that learned from 5 to 92 axes of preference, or from half of their texts; `bt` never sees the user."""
    todo = {
        f"axes on {name}, {axes} axes": ("axes", features, 2, f"&axes={axes}")
        for name, features in TAUGHT.items()
        for axes in AXES
    }
    for half in (1, 2):
        todo |= {
            f"axes on SmolLM2, {axes} axes, half {half}": ("axes", STATES, 2, f"&axes={axes}&half={half}")
            for axes in AXES[1:]
        }
    for features in ("static", "minilm"):
        for axes in (15, 60):
            todo |= {
                f"{method} on {features}, {axes} axes": (method, features, 600, f"&axes={axes}") for method in LEARNED
            }
        todo[f"bt on {features}"] = ("bt", features, 600, "")
    for name, (method, features, users, options) in todo.items():
        folder = args.out / "heads" / "".join(c if c.isalnum() else "-" for c in name)
        dataset = f"mirror?split=train&users={users}{options}"
        held = 0.0 if users == 2 else 0.2  # taught by the labeled axes, not by the users' rows
        config = TrainConfig(method=method, features=features, dataset=dataset, k=K, validation=held, out=folder)
        train(config, progress=progress)
        yield name, scorer(f"personal?path={folder}")


def scorer(spec: str) -> Scorer:
    model = MODELS.make(spec)
    assert isinstance(model, Scorer)
    return model


def queries(dataset: Dataset, condition: ConditionName) -> dict[tuple[str | None, str], Query]:
    """The query of each row under a condition, by the user and question it has under `profile`."""
    planner = PLANNERS.make("extractive")
    builder = QueryBuilder.of(UserConfig(k=K), dataset, planner, reader=None, seed=0)
    built = {(pair.user, pair.question): builder.build(pair, condition) for pair in dataset}
    return {key: made.query for key, made in built.items() if isinstance(made, Built)}


def wrong_rubrics(dataset: Dataset) -> Iterator[tuple[tuple[str | None, str], Query]]:
    """Another user's rubric, for another question."""
    pairs = [pair for pair in dataset if isinstance(pair, Pair)]
    rubrics = {pair.user: true_plan(pair) for pair in pairs}
    for pair in pairs:
        donor = pick_donor(pair, dataset.users, seed=0)
        assert donor is not None
        yield (pair.user, pair.question), Query(question=pair.question, user=donor, plan=rubrics[donor])


def general_rows() -> Iterator[dict[str, object]]:
    """Good answers of mirror against corrupted ones in RewardBench's format: off topic, shuffled words, truncated."""
    pairs = [pair for pair in load("mirror") if isinstance(pair, Pair)]
    for n, pair in enumerate(pairs):
        elsewhere = pairs[(n + len(pairs) // 2) % len(pairs)].chosen
        mixed = sorted(words(pair.chosen), key=lambda word: hashlib.sha256(f"{pair.id}{word}".encode()).digest())
        corrupted = {"off-topic": elsewhere, "mixed": " ".join(mixed), "cut": pair.chosen[: len(pair.chosen) // 3]}
        for subset, rejected in corrupted.items():
            row = {"id": f"{subset}-{pair.id}", "prompt": pair.question, "subset": subset}
            yield {**row, "chosen": pair.chosen, "rejected": rejected}


if __name__ == "__main__":
    main(tyro.cli(Args))
