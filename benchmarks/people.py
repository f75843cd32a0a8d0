"""What real people's votes show: does a model know whose votes it sees? Into docs/tables/people.md and docs/people.csv.

python benchmarks/people.py --path FOLDER      the conversations of Polis (`prb data pull polis` fetches them)

Heads are trained on the users of split `train`, settings of `collaborative` are chosen on `dev`, and `test` is looked
at once per model; the curves look at it again with fewer votes shown.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path

import numpy as np
import tyro
from record import ROOT, write_between

import prb
from prb.data.load import load
from prb.data.pull import pulled
from prb.hashing import text_digest
from prb.models.personal.collaborative import Collaborative, CollaborativeScorer, fit, ratings_of, votes_by_user
from prb.models.personal.features import make_features
from prb.reporting.figures import drawing, series
from prb.types import Ask, Pair, Query

PAGE, TABLE = ROOT / "docs" / "tables" / "people.md", ROOT / "docs" / "people.csv"
FIGURE = ROOT / "docs" / "people.svg"
RANKS, PRIORS = (1, 2, 4, 8), (0.3, 1.0, 3.0)
HEADS = ("light", "lore", "pal", "vpl")
TEXT_VOTES, TEXT_ROWS, TEXT_EPOCHS = 20, 8_000, 30
"""On static vectors of the statements: what of the collaborative signal can be read from text."""
BLIND = ("random", "length")
TEST_ROWS = 600
"""Per conversation; twins stay together."""
UNTRAINED = ("lexical", "embedding")
SHOWN = (1, 2, 5, 10, 20, 100)
ALL_VOTES = 100
CURVES = ("collaborative", "light")


@dataclass(frozen=True)
class Args:
    path: Path | None = None
    """A folder of conversations. Default: what `prb data pull polis` fetched."""
    out: Path | None = None
    """Where heads and runs are kept, so that an interrupted measurement goes on. Default: a temporary folder."""


@dataclass(frozen=True)
class Result:
    conversation: str
    model: str
    condition: str
    votes: int
    """Past votes shown, at most."""
    twins: int
    person_effect: float
    low: float | None
    high: float | None
    p: float | None


def main(args: Args) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        work, path = args.out or Path(temporary), args.path or pulled("polis")
        names = sorted(folder.parent.name for folder in path.glob("*/comments.csv"))
        everything = spec(path, "*")
        chosen = choose(path, work / "chosen.txt")
        heads = {"collaborative": train(chosen, everything, work / "collaborative")}
        heads |= {name: train(name, everything, work / name) for name in HEADS}
        found = list(measure(path, names, heads, work))
        transferred = list(transfer(path, names, chosen, work))
        write(found, transferred, chosen, names)


def spec(path: Path, conversation: str) -> str:
    return f"polis?path={path}&conversation={conversation}&mirror=true"


def train(method: str, dataset: str, out: Path) -> str:
    """Heads on text see fewer votes and rows, so that the whole measurement takes an hour of two cores."""
    text = {} if method.startswith("collaborative") else {"k": TEXT_VOTES, "limit": TEXT_ROWS, "epochs": TEXT_EPOCHS}
    if not (out / "card.json").exists():
        prb.train(method=method, dataset=dataset, out=out, quiet=True, **text)
        print("trained", method, flush=True)
    return f"personal?path={out}"


def choose(path: Path, kept: Path) -> str:
    """The setting of `collaborative` with the largest person effect on users of `dev`, on all conversations."""
    if kept.exists():
        return kept.read_text("utf-8")
    train_rows, dev_rows = (
        [pair for pair in load(spec(path, "*"), split=split) if isinstance(pair, Pair)] for split in ("train", "dev")
    )
    ratings, features = ratings_of(votes_by_user(train_rows).values()), make_features("static")
    texts = [text_digest(text) for text in ratings.items]
    place = {pair.id: n for n, pair in enumerate(dev_rows)}
    twins = np.array([(n, place[p.mirror]) for n, p in enumerate(dev_rows) if p.mirror in place and p.id < p.mirror])
    queries = [Query(question=p.question, posts=tuple(p.profile), choices=tuple(p.choices)) for p in dev_rows]
    asks = [Ask(query, text) for query, pair in zip(queries, dev_rows, strict=True) for text in pair.contrast]
    effects = {}
    for rank, prior in product(RANKS, PRIORS):
        factors = fit(ratings, Collaborative(rank, prior), features)
        scores = np.array(CollaborativeScorer(factors, texts, features, prior, "").score(asks))
        sums = (scores[::2] - scores[1::2])[twins].sum(axis=1)
        effects[f"collaborative?rank={rank}&prior={prior:g}"] = float((np.sign(sums) + 1).mean() / 2)
    for method, effect in effects.items():
        print(method, f"{100 * effect:.1f}", flush=True)
    best = max(effects, key=effects.__getitem__)
    kept.write_text(best, "utf-8")
    return best


def evaluate(
    path: Path,
    conversation: str,
    models: dict[str, str],
    out: Path,
    *,
    split: str = "test",
    votes: int = ALL_VOTES,
    conditions: Sequence[str] = ("profile",),
) -> list[Result]:
    """Statements are shared between users, so what a head was trained on is said by its users, not by its rows."""
    result = prb.evaluate(
        model=[f"{name}:={model}" for name, model in models.items()],
        dataset=spec(path, conversation),
        split=split,
        limit=TEST_ROWS,
        condition=tuple(conditions),
        k=votes,
        history=f"both?choices={votes // 2}&ranker=recency",
        trained="count",
        out=out,
        quiet=True,
    )
    return [
        Result(conversation, entry["model"], entry["condition"], votes, effect["n"], *values)
        for entry in result.summary["results"]
        if (effect := entry["person_effect"]) and (values := [effect[key] for key in ("value", "low", "high", "p")])
    ]


def measure(path: Path, names: Sequence[str], heads: dict[str, str], work: Path) -> Iterator[Result]:
    models = {**{name: name for name in (*BLIND, *UNTRAINED)}, **heads}
    for name in names:
        for result in evaluate(path, name, models, work / f"test-{name}", conditions=("none", "profile", "shuffled")):
            print(result, flush=True)
            yield result
        for votes in SHOWN[:-1]:
            few = {model: heads[model] for model in CURVES}
            yield from evaluate(path, name, few, work / f"curve-{name}-{votes}", votes=votes)


def transfer(path: Path, names: Sequence[str], chosen: str, work: Path) -> Iterator[Result]:
    """A conversation that training never saw: all its statements are known by their words alone."""
    for name in names:
        head = train(chosen, spec(path, f"!{name}"), work / f"without-{name}")
        yield from evaluate(path, name, {"collaborative, held out": head}, work / f"transfer-{name}")


def write(found: list[Result], transferred: list[Result], chosen: str, names: Sequence[str]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([field.name for field in fields(Result)])
        rows.writerows([getattr(r, field.name) for field in fields(Result)] for r in (*found, *transferred))
    at = {(r.conversation, r.model, r.condition, r.votes): r for r in found}
    at |= {(r.conversation, r.model, r.condition, r.votes): r for r in transferred}
    columns = (*BLIND[:1], *UNTRAINED, *HEADS, "collaborative", "collaborative, held out")

    def cell(name: str, model: str) -> str:
        result = at[name, model, "profile", ALL_VOTES]
        stars = "" if result.p is None or result.p >= 0.05 else "***" if result.p < 0.001 else "*"
        return f"{100 * result.person_effect:.1f}{stars}"

    lines = [f"conversation | twins | {' | '.join(columns)}", "--- | ---: " + "| ---: " * len(columns)]
    for name in names:
        twins = at[name, "collaborative", "profile", ALL_VOTES].twins
        lines.append(f"{name} | {twins} | {' | '.join(cell(name, model) for model in columns)}")
    table = "\n".join(f"| {line} |" for line in lines)
    sure = sum((at[name, "collaborative", "profile", ALL_VOTES].p or 1) < 0.001 for name in names)
    blind = {round(at[n, m, "profile", ALL_VOTES].person_effect, 9) for n in names for m in BLIND}
    user_blind = ", ".join(f"{100 * value:g}" for value in sorted(blind))
    text = f"""
Person effect on users of `test`, in %: the share of twins that a model orders by the user; * p < 0.05, *** p < 0.001,
not corrected. User-blind models: {user_blind}. Settings, chosen on `dev`: `{chosen}`. `collaborative` has
p < 0.001 in {sure} of {len(names)} conversations.

{table}
"""
    write_between("people", text, PAGE)
    draw(at, names)


def draw(at: dict[tuple[str, str, str, int], Result], names: Sequence[str]) -> None:
    """A line per conversation and their mean, by the number of votes shown."""
    alt = "Person effect against the number of past votes shown, for collaborative filtering and a head on text"
    with drawing(FIGURE, width=8, height=3.4, alt=alt) as figure:
        plots = figure.subplots(1, len(CURVES), sharey=True)
        for plot, model in zip(plots, CURVES, strict=True):
            curves = [[100 * at[name, model, "profile", k].person_effect for k in SHOWN] for name in names]
            for curve in curves:
                plot.plot(range(len(SHOWN)), curve, color="0.6", linewidth=0.8)
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            plot.plot(range(len(SHOWN)), mean, **series(0), linewidth=2.5)
            plot.axhline(50, color="0.5", linewidth=1, linestyle=":")
            plot.set_xticks(range(len(SHOWN)), [*map(str, SHOWN[:-1]), "all"])
            plot.set_title(model)
            plot.set_xlabel("past votes shown")
        plots[0].set_ylabel("person effect, %")
        plots[0].text(0.02, 0.03, "dotted: user-blind", transform=plots[0].transAxes, fontsize=8, color="0.5")


if __name__ == "__main__":
    main(tyro.cli(Args))
