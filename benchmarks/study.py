"""Does `mirror` predict best-of-N? The unit is the family (method × features) of reward models.

Each reward model is scored on `mirror` (test), on a general-quality benchmark with the same users, and by best-of-8 on
the pool of answers that ships with mirror's questions, whose grades an LLM gave once, blind to reward models. Scores by
cluster go to docs/correlation.csv; docs/tables/correlation.md and docs/correlation.svg come from that file. What
decides was written down in docs/tables/correlation.md before the run. Everything is in runs/study and resumes:
python benchmarks/study.py           (needs the pulled weights smollm2, minilm, mpnet and qwen2.5-1.5b)
python benchmarks/study.py --later   (only what was added since, beside the scores in docs/correlation.csv)

Honest families learned from 15 or 60 axes of preference, with several methods and features, or not at all, and see the
user's posts. The others have their place by construction and decide nothing: the true rubric read with noise, another
user's rubric or posts, and user-blind models, which are at exactly 50 % of `mirror` and of policy accuracy.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import orjson
import tyro
from record import ROOT, write_between

from prb.cache import Memo
from prb.config import ConditionName, UserConfig
from prb.data.load import Dataset, load
from prb.downstream.answers import SAMPLES, SCORES, Sample, Score, read_stage
from prb.downstream.bon import BonConfig, best_of_n
from prb.downstream.correlate import CorrelateConfig, Measure, correlate
from prb.evaluation.conditions import Built, QueryBuilder, pick_donor, true_plan
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.outcomes import read_outcomes
from prb.evaluation.planners import PLANNERS
from prb.evaluation.run import evaluate
from prb.hashing import draw
from prb.models import MODELS
from prb.models.baselines import history_affinity, plan_affinity
from prb.models.personal.features import Features, encoded_texts, make_features
from prb.models.personal.head import Personal, fingerprint, read
from prb.models.scripted import Noisy, ScriptedScorer
from prb.progress import Progress, watch
from prb.reporting.figures import scatter
from prb.reporting.format import Table, markdown, number, p_equals
from prb.reporting.results import Correlation
from prb.stats.credit import curves
from prb.stats.estimate import Floats
from prb.stats.ranking import permutation_p, spearman
from prb.text.encoders import Encoder, Matrix, Vector
from prb.text.words import sentences
from prb.training.config import TrainConfig
from prb.training.run import train
from prb.types import Ask, Failure, Pair, Query, Scorer

NOISE = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
FEATURES = {
    "static": "static",
    "minilm": "minilm",
    "mpnet": "mpnet",
    "SmolLM2": "hidden?lm=smollm2&layer=22&alone=true&dtype=fp32",
}
METHODS = ("axes", "light", "profile-mlp", "bilinear", "attention", "bt")
AXES = {"static": (15, 60), "minilm": (15, 60), "mpnet": (15,), "SmolLM2": (15, 60)}
"""How many axes of preference the training data have; what MPNet reads takes longest."""
BLIND = ("random*", "length", "shortest", "constant", "bt on *")
CONSTRUCTED = ("noisy *", "wrong *", *BLIND)
LATER = ("matcher on *",)
"""Scored when the study had been decided: in all tables, but not in what decides."""
K, N = 40, 8
"""Posts that are shown, which are all in the median history; answers per question."""
BENCH, DOWNSTREAM = ("mirror", "general"), ("policy accuracy", "grade")
"""Columns of the table of scores."""
EARLIER = frozenset(
    [
        "lexical",
        "aspect-match on minilm",
        "embedding on minilm",
        *(f"axes on {name}" for name in ("static", "minilm", "SmolLM2")),
    ]
    + [f"{method} on {name}" for method in METHODS[1:5] for name in ("static", "minilm")]
)
"""Families that the study before this one scored on the same rows: their results were known."""
HALVINGS = 1000
Cells = dict[tuple[str, str], list[float]]
"""Model and cluster → scores of rows."""


@dataclass(frozen=True)
class Args:
    limit: int | None = None
    """Rows of the benchmark and of best-of-N, for a trial."""
    features: tuple[str, ...] = ("static", "minilm", "SmolLM2", "mpnet")
    later: bool = False
    """Score only what was added later; the other scores are those in docs/correlation.csv."""
    out: Path = ROOT / "runs" / "study"
    record: bool = True
    """Write the result into docs/."""


def main(args: Args) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    table = ROOT / "docs" / "correlation.csv" if args.record else args.out / "correlation.csv"
    columns = read_scores(ROOT / "docs" / "correlation.csv") if args.later else [{}, {}, {}, {}]
    with watch() as progress:
        general = args.out / "general.jsonl"
        rows = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in general_rows()]
        general.write_bytes(b"".join(rows))
        for group, models in later_models() if args.later else reward_models(args, progress):
            print(f"{group}: {len(models)} reward models", flush=True)
            scores = [run(args, models, f"mirror-{group}", "mirror", progress)]
            scores += [run(args, models, f"general-{group}", str(general), progress)]
            scores += picks(args, models, f"bon-{group}", progress)
            for column, cells in zip(columns, scores, strict=True):
                column.update(cells)
    write_scores(table, columns)
    text = report(table, args.out)
    print(text)
    if args.record:
        write_between("study", text, ROOT / "docs" / "tables" / "correlation.md")


def report(table: Path, out: Path) -> str:
    """Everything that the table of scores says, in Markdown; the first line is the one that decides."""

    def found(
        path: Path, bench: tuple[str, ...], downstream: tuple[str, ...], measure: tuple[Measure, ...]
    ) -> Correlation:
        config = CorrelateConfig(
            table=path, bench=bench, downstream=downstream, measure=measure, unit="family", constructed=CONSTRUCTED
        )
        return Correlation(out, msgspec.to_builtins(correlate(config)))

    registered = out / "registered.csv"
    columns = read_scores(table)
    write_scores(registered, [{key: v for key, v in c.items() if not matches(key[0], LATER)} for c in columns])
    decision = found(registered, BENCH[:1], DOWNSTREAM[:1], ("spearman",))
    rest = found(table, BENCH, DOWNSTREAM, ("spearman", "kendall", "pearson"))
    placed = set(rest.summary["constructed"])
    rest.summary["families"] = {
        family: "constructed" if family in placed else family.rpartition(" on ")[2] for family in rest.summary["models"]
    }
    # the figure names the set that decides first
    scatter(Correlation(out, {**rest.summary, "sets": rest.summary["sets"][::-1]}), table.with_suffix(".svg"))
    honest = "Without constructed families: "
    claims = [line.removeprefix(honest) for line in decision.lines() if line.startswith(honest)]
    others = [line for line in rest.lines() if line.removeprefix(honest) not in claims]
    parts = ["What decides:", "\n".join(f"- {line}" for line in claims)]
    parts += ["Looked at afterwards:", "\n".join(f"- {line}" for line in checks(table)), markdown(family_table(rest))]
    return "\n\n".join([*parts, *map(markdown, rest.tables()), "\n".join(f"- {line}" for line in others)])


def checks(table: Path) -> Iterator[str]:
    """Would it hold for other users, and without all families on the same features? By family and cluster."""
    with table.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not matches(row["model"], CONSTRUCTED)]
    families, clusters = (list(dict.fromkeys(row[key] for row in rows)) for key in ("family", "cluster"))

    def scores(column: str) -> Floats:
        cells: Cells = {}
        for row in rows:
            cells.setdefault((row["family"], row["cluster"]), []).append(float(row[column]))
        return np.array([[fmean(cells[family, cluster]) for cluster in clusters] for family in families])

    registered = [not matches(family, LATER) for family in families]
    all_bench, all_downstream = scores(BENCH[0]), scores(DOWNSTREAM[0])
    bench, downstream = all_bench[registered], all_downstream[registered]
    random = np.random.default_rng(0)
    halves = [np.array_split(random.permutation(len(clusters)), 2) for _ in range(HALVINGS)]

    def between(x: Floats, y: Floats) -> str:
        """The mean ρ of x on a half of the clusters and y on the other."""
        rhos = [spearman(x[:, a].mean(axis=1), y[:, b].mean(axis=1))[0] for a, b in halves]
        low, high = np.quantile(rhos, (0.025, 0.975))
        return f"ρ {number(fmean(rhos), 2)} on average, 95 % in [{number(low, 2)}, {number(high, 2)}]"

    about = f"({HALVINGS:,} random halves of the {len(clusters)} clusters)"
    yield f"`mirror` on half of the users against policy accuracy on the others {about}: {between(bench, downstream)}."
    yield f"How far the halves agree: `mirror` with itself, {between(bench, bench)}."
    yield f"Policy accuracy with itself, {between(downstream, downstream)}."
    parts = {f"Without the families on {name}": [not f.endswith(f" on {name}") for f in families] for name in FEATURES}
    parts["Only families that no earlier study scored"] = [family not in EARLIER for family in families]
    parts = {what: np.logical_and(kept, registered).tolist() for what, kept in parts.items()}
    added = [f"`{family}`" for family in families if matches(family, LATER)]
    parts |= {f"With {', '.join(added)}, added later": [True] * len(families)} if added else {}
    for what, kept in parts.items():
        x, y = all_bench[kept].mean(axis=1), all_downstream[kept].mean(axis=1)
        rho, p = spearman(x, y)[0], permutation_p("spearman", x, y).p
        yield f"{what}: ρ {number(rho, 2)} ({p_equals(p)}, {len(x)} families)."


def family_table(result: Correlation) -> Table:
    """The scores of every family, best on the benchmark first."""
    summary = result.typed
    columns = [*summary.bench, *summary.downstream]
    assert isinstance(summary.members, dict)
    order = np.argsort([-value for value in columns[0].values], kind="stable")
    rows = [
        (
            summary.models[n] + (" (constructed)" if summary.models[n] in summary.constructed else ""),
            str(len(summary.members[summary.models[n]])),
            *(f"{100 * c.values[n]:.1f} ± {100 * c.errors[n]:.1f}" if c.errors else "" for c in columns),
        )
        for n in order
    ]
    note = "Percent, ± one standard error over clusters of users. `constructed`: its place is so by construction."
    return Table("Scores of the families", ("family", "RMs", *(c.name for c in columns)), tuple(rows), (note,))


def write_scores(path: Path, columns: Sequence[Cells]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["model", "family", "cluster", *BENCH, *DOWNSTREAM])
        for model, cluster in columns[0]:
            means = [round(fmean(cells[model, cluster]), 6) for cells in columns]
            table.writerow([model, family_of(model), cluster, *means])


def read_scores(path: Path) -> list[Cells]:
    """What `write_scores` wrote, a mean per cell."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{(row["model"], row["cluster"]): [float(row[name])] for row in rows} for name in (*BENCH, *DOWNSTREAM)]


def matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def family_of(model: str) -> str:
    """Method and features of a head; of other models their name without settings."""
    head = re.match(r"(\S+ on \w+)(, |$)", model)
    return head[1] if head else re.split(r"[?,]| (?=sd=|nearest=)", model)[0]


# --- benchmarks and best-of-N, by cluster ---
def run(args: Args, models: dict[str, Scorer], name: str, dataset: str, progress: Progress) -> Cells:
    out, limit = args.out / name, args.limit
    config = EvaluateConfig(model=tuple(models), condition=("profile",), dataset=dataset, k=K, limit=limit, out=out)
    outcomes = read_outcomes(evaluate(config, models=models, progress=progress).folder)
    clusters = user_clusters()
    cells: Cells = {}
    for model in models:
        for user, credit in zip(outcomes.users, outcomes.of[model, "profile"].credit.tolist(), strict=True):
            cells.setdefault((model, clusters[user]), []).append(credit)
    return cells


def user_clusters() -> dict[str, str]:
    """By user the couple, also for rows that are not twins."""
    index = load("mirror").index
    return dict(zip(index.users, index.clusters, strict=True))


def picks(args: Args, models: dict[str, Scorer], name: str, progress: Progress) -> list[Cells]:
    """Of the answers that each model picks from the pool: policy accuracy, and the grade."""
    out, limit = args.out / name, args.limit
    config = BonConfig(candidates="mirror", model=tuple(models), grader="recorded", n=N, limit=limit, k=K, out=out)
    folder = best_of_n(config, models=models, progress=progress).folder
    texts = {(line.pair, line.n): line.text for line in read_stage(folder / SAMPLES, Sample)}
    scores = {(line.model, line.pair, line.n): line.score for line in read_stage(folder / SCORES, Score)}
    index = load("mirror").index
    cluster_of = dict(zip(index.ids, index.clusters, strict=True))
    accuracy: Cells = {}
    grade: Cells = {}
    for pair, (right, graded) in pool_grades().items():
        answers = [texts.get((pair, n)) for n in range(N)]
        if None in answers:
            continue
        for model in models:
            scored = np.array([scores[model, pair, n] for n in range(N)], dtype=np.float64)
            for cells, values in ((accuracy, right), (grade, graded)):
                best = curves(scored[None], np.array([[values[str(answer)] for answer in answers]]), [N])
                cells.setdefault((model, cluster_of[pair]), []).append(float(best[0, 0]))
    return [accuracy, grade]


def pool_grades() -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """By row: whether an answer is graded higher for this user than for the twin (half if equal), and its grade."""
    grades: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for line in (files("prb.data") / "mirror" / "pool.jsonl").read_bytes().splitlines():
        row = orjson.loads(line)
        shares = {pair: np.array([fmean(g) / 2 for g in given]) for pair, given in row["grades"].items()}
        (one, first), (other, second) = shares.items()
        for pair, own, twin in ((one, first, second), (other, second, first)):
            right = (1 + np.sign(own - twin)) / 2
            of_right, of_own = (dict(zip(row["answers"], v.tolist(), strict=True)) for v in (right, own))
            grades[pair] = of_right, of_own
    return grades


def general_rows() -> Iterator[dict[str, object]]:
    """Both answers of every row against a damaged copy: a sentence replaced by one from an answer to another question,
    or by a repetition. Users and posts are mirror's; the label depends on neither."""
    pairs = [pair for pair in load("mirror") if isinstance(pair, Pair)]
    for n, pair in enumerate(pairs):
        elsewhere = pairs[(n + len(pairs) // 2) % len(pairs)]
        posts = [{"id": post.id, "category": post.category, "text": post.text} for post in pair.profile]
        for which, answer in enumerate(sorted(pair.answers)):
            row = {"id": f"{pair.id}-{which}", "user": pair.user, "question": pair.question, "profile": posts}
            yield {**row, "chosen": answer, "rejected": damaged(answer, sorted(elsewhere.answers)[which])}


def damaged(answer: str, foreign: str) -> str:
    parts, other = sentences(answer), sentences(foreign)
    n = draw(f"sentence\0{answer}", bits=32) % (len(parts) - 1)
    repeated = draw(f"damage\0{answer}", bits=32) % 2
    new = parts[n] if repeated else other[draw(f"foreign\0{answer}", bits=32) % len(other)]
    return answer.replace(parts[n + 1], new, 1)


# --- reward models ---
class Remembered:
    """Features in memory for all models: here an answer is encoded like any other text, without question or posts."""

    def __init__(self, inner: Features) -> None:
        self.fingerprint, self._inner = inner.fingerprint, inner
        self._memo: Memo[Vector] = Memo(capacity=100_000)

    def texts(self, texts: Sequence[str]) -> Matrix:
        return np.stack(encoded_texts(self._memo.map(self._inner.texts, texts))) if texts else self._inner.texts(texts)

    encode = texts

    def answers(self, asks: Sequence[Ask]) -> list[Vector | Failure]:
        return list(self.texts([ask.answer for ask in asks]))


class OtherQueries:
    """A scorer with other queries than those of the run, question by question."""

    def __init__(self, inner: Scorer, what: str, queries: dict[tuple[str | None, str], Query]) -> None:
        self.fingerprint = f"{inner.fingerprint} shown {what}"
        self._inner, self._queries = inner, queries

    def score(self, asks: Sequence[Ask]) -> Sequence[float | Failure]:
        return self._inner.score([Ask(self._replace(ask.query), ask.answer) for ask in asks])

    def _replace(self, query: Query) -> Query:
        return self._queries.get((query.user, query.question), query)


def embedding(encoder: Encoder, nearest: int) -> Scorer:
    return ScriptedScorer(partial(history_affinity, encoder, nearest), f"embedding-{encoder.fingerprint}-{nearest}")


def reward_models(args: Args, progress: Progress) -> Iterator[tuple[str, dict[str, Scorer]]]:
    """Those without trained heads, then all that see an answer through the same features."""
    dataset = load("mirror", donors=True)
    asked = {what: queries(dataset, what) for what in ("oracle", "plan", "shuffled")}
    wrong = dict(wrong_rubrics(dataset))
    features = {name: Remembered(make_features(FEATURES[name])) for name in args.features}
    reads = {n: ScriptedScorer(partial(plan_affinity, features[n]), f"aspect-match-{n}") for n in ("static", "minilm")}
    models: dict[str, Scorer] = {}
    for n, sd in enumerate(NOISE):
        models[f"noisy oracle sd={sd:g}"] = OtherQueries(Noisy(reads["minilm"], sd, n), "oracle", asked["oracle"])
    for sd in (0.0, 0.1):
        models[f"wrong rubric sd={sd:g}"] = OtherQueries(Noisy(reads["minilm"], sd, 50), "wrong rubric", wrong)
    models["wrong posts"] = OtherQueries(embedding(features["minilm"], 3), "shuffled", asked["shuffled"])
    models |= {name: scorer(name) for name in ("random", "random?seed=1", "length", "constant", "lexical")}
    models["shortest"] = ScriptedScorer(lambda ask: -float(len(ask.answer)), "shortest")
    models |= {f"aspect-match on {name}": OtherQueries(r, "plan", asked["plan"]) for name, r in reads.items()}
    yield "untrained", models
    for name, encoder in features.items():
        models = {f"embedding on {name}, nearest={n}": embedding(encoder, n) for n in (1, 3, 10)}
        for method in METHODS:
            for axes in AXES[name]:
                folder = trained(args, method, FEATURES[name], axes, f"{method}-{name}-{axes}", progress)
                models[f"{method} on {name}, {axes} axes"] = Personal(read(folder)[0], encoder, fingerprint(folder))
        yield name, models
    yield from later_models()


def later_models() -> Iterator[tuple[str, dict[str, Scorer]]]:
    yield "later", {"matcher on Qwen": scorer("personal?lm=qwen2.5-1.5b")}


def trained(args: Args, method: str, features: str, axes: int, name: str, progress: Progress) -> Path:
    """A head; `axes` is taught by the labeled axes, the others by the rows of 600 composed users."""
    users, held = (2, 0.0) if method == "axes" else (600, 0.2)
    dataset, out = f"mirror?split=train&users={users}&axes={axes}", args.out / "heads" / name
    train(
        TrainConfig(method=method, features=features, dataset=dataset, k=K, validation=held, out=out), progress=progress
    )
    return out


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


if __name__ == "__main__":
    main(tyro.cli(Args))
