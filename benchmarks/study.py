"""Does `mirror` predict best-of-N better than a user-blind benchmark does? Over 30 reward models on one machine.

Reward models of graded quality, each scored on `mirror` (test), on a general-quality benchmark without users, and by
best-of-N on mirror's questions; then the correlations, into docs/correlation.md and docs/correlation.svg. Everything is
in runs/study and resumes there: python benchmarks/study.py

The reward models read MiniLM vectors, the grader static ones. Constructed models (the true rubric read with noise, or
another user's rubric) correlate by construction: they are named as such, and all results are given without them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import tyro
from record import ROOT, write_between

from prb.config import Condition, UserConfig
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
from prb.reporting.downstream_figures import scatter
from prb.reporting.downstream_tables import correlation_sentences, correlation_tables
from prb.reporting.format import markdown
from prb.runs import write_json
from prb.text.words import words
from prb.training.config import TrainConfig
from prb.training.run import train
from prb.types import Ask, Failure, Pair, Query, Scorer

NOISE = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0)
HEADS = ("bt", "bilinear", "profile-mlp", "attention", "lore", "pal", "light")
HEAD_SEEDS = (0, 1)
CONSTRUCTED = ("noisy *", "wrong rubric *")
K = 10


@dataclass(frozen=True)
class Args:
    policy: str = "llamacpp/smollm2"
    grader: str = "embedded?encoder=static"
    n: int = 8
    per_user: int = 1
    limit: int | None = None
    max_tokens: int = 128
    out: Path = ROOT / "runs" / "study"
    heads: bool = True
    record: bool = True
    """Write the result into docs/."""


def main(args: Args) -> None:
    with watch() as progress:
        general = args.out / "general.jsonl"
        args.out.mkdir(parents=True, exist_ok=True)
        general.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in general_rows()))
        models = reward_models(args, progress)
        print(f"{len(models)} reward models")
        runs = [run(args, models, name, spec, progress) for name, spec in benchmarks(general).items()]
        best = downstream(args, models, progress)
        config = CorrelateConfig(bench=tuple(map(str, runs)), downstream=(str(best),), constructed=CONSTRUCTED)
        result = correlate(config, progress=progress)
    write_json(args.out / "correlation.json", {**result, "sentences": correlation_sentences(result)})
    scatter(result, args.out / "scatter.svg")
    text = "\n".join(
        [*map(markdown, correlation_tables(result)), *(f"- {sentence}" for sentence in correlation_sentences(result))]
    )
    print(text)
    if args.record:
        scatter(result, ROOT / "docs" / "correlation.svg")
        write_between("study", f"{about(args, models)}\n\n{text}", ROOT / "docs" / "correlation.md")


def about(args: Args, models: dict[str, Scorer]) -> str:
    asked = f"`{args.policy}`, N = {args.n}, questions per user: {args.per_user}, at most {args.max_tokens} tokens"
    return f"{len(models)} reward models; best-of-N by {asked}; graded by `{args.grader}`."


def benchmarks(general: Path) -> dict[str, str]:
    return {"mirror": "mirror", "general": f"rewardbench?path={general}"}


def run(args: Args, models: dict[str, Scorer], name: str, dataset: str, progress: Progress) -> Path:
    out = args.out / name
    config = EvaluateConfig(model=tuple(models), condition=("profile",), dataset=dataset, k=K, out=out)
    return evaluate(config, models=models, progress=progress).folder


def downstream(args: Args, models: dict[str, Scorer], progress: Progress) -> Path:
    config = BonConfig(
        policy=args.policy,
        model=tuple(models),
        grader=args.grader,
        n=args.n,
        per_user=args.per_user,
        limit=args.limit,
        k=K,
        max_tokens=args.max_tokens,
        out=args.out / "bon",
    )
    return best_of_n(config, models=models, progress=progress).folder


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
    models["embedding, wrong person"] = OtherQueries(feels, "shuffled", asked["shuffled"])
    models["aspect-match, inferred plan"] = OtherQueries(reads, "plan", asked["plan"])
    return models | (dict(trained(args, progress)) if args.heads else {})


def scorer(spec: str) -> Scorer:
    model = MODELS.make(spec)
    assert isinstance(model, Scorer)
    return model


def trained(args: Args, progress: Progress) -> Iterator[tuple[str, Scorer]]:
    """Heads on MiniLM vectors, fitted on mirror's train split; `bt` never sees the user."""
    for method in HEADS:
        for seed in HEAD_SEEDS:
            folder = args.out / "heads" / f"{method}-{seed}"
            train(TrainConfig(method=method, features="minilm", k=K, seed=seed, out=folder), progress=progress)
            yield f"head {method} seed={seed}", scorer(f"personal?path={folder}")


def queries(dataset: Dataset, condition: Condition) -> dict[tuple[str | None, str], Query]:
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
