"""What real people's votes show: does a model know whose votes it sees? Into docs/tables/people.md and docs/people.csv.

python benchmarks/people.py --path FOLDER      the conversations of Polis (`prb data pull polis` fetches them)
python benchmarks/people.py --only readers     only what a 1.5B LLM and the embedded heads read in the votes

Models are trained on the users of split `train`. Each gets six settings, and the one with the largest person effect on
users of `dev`, over all conversations, is looked at on `test`: once for the table; of two models again with fewer votes
for the curves. Readers that are not trained on votes are looked at once, on some twins. Needs the pulled encoders
`minilm` and `mpnet`, and for the readers `smollm2` and `qwen2.5-1.5b`.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from record import ROOT, write_between

import prb
from prb.data.load import load
from prb.data.pull import pulled_polis
from prb.hashing import text_digest
from prb.models import MODELS
from prb.models.personal.collaborative import (
    Collaborative,
    CollaborativeScorer,
    Factors,
    Ratings,
    factorize,
    ratings_of,
    save_factors,
    votes_by_user,
    with_words,
)
from prb.models.personal.features import make_features
from prb.models.personal.head import Head, Personal, save
from prb.models.personal.methods import METHODS
from prb.models.scripted import ScriptedScorer
from prb.reporting.figures import drawing, series
from prb.reporting.format import number, p_value
from prb.runs import read_json, write_json
from prb.training.learning import Examples, Learning, learn, prepare
from prb.types import Ask, Pair, Query, Scorer, TrainedOn

PAGE, TABLE = ROOT / "docs" / "tables" / "people.md", ROOT / "docs" / "people.csv"
FIGURE = ROOT / "docs" / "people.svg"
ENCODERS = ("static", "minilm", "mpnet")
TRIED = {
    "light": [f"light?c={c}" for c in ("1e-5", "1e-4", "1e-3")],
    "lore": [f"lore?rank={n}" for n in (4, 16)],
    "pal": [f"pal?prototypes={n}" for n in (4, 16)],
    "vpl": [f"vpl?latent={n}" for n in (4, 16)],
}
"""Heads on text, with each encoder: what of the collaborative signal can be read from the statements."""
NEAREST = (5, 20)
"""The same for `embedding?votes=true`, which is not trained."""
RANKS, PRIORS = (4, 8), (0.3, 1.0, 3.0)
PAIRS_PER_USER, EPOCHS = 12, 20
"""Of the heads that know a user by labeled pairs: as many as a row shows past choices, on average."""
LIGHT_ROWS, LIGHT_ENCODERS = 4_000, ENCODERS[:2]
"""`light` knows a user by the posts, of which it is shown all in training too; each is encoded with its sign."""
BLIND = ("random", "length")
UNTRAINED = ("lexical", "embedding")
SIMILAR = "similar votes"
TEXT = (*UNTRAINED, SIMILAR, *TRIED)
HELD_OUT = "collaborative, held out"
DEV_ROWS, TEST_ROWS = 400, 600
"""Per conversation, at most; twins stay together."""
SHOWN = (1, 2, 5, 10, 20, 100)
ALL_VOTES = 100
READERS = {
    "judge, Qwen 1.5B": "judge?llm=(transformers/qwen2.5-1.5b?dtype=bf16)&style=pairwise-direct&logprobs=true",
    "matcher, Qwen 1.5B": "personal?lm=qwen2.5-1.5b",
    "axes, SmolLM2": "personal?lm=smollm2",
    SIMILAR: "embedding?votes=true&encoder=mpnet&nearest=20",
    "embedding": "embedding",
}
"""What reads the posts: an LLM, the heads that ship, and for comparison what `choose` found, which is not trained."""
READER_ROWS, READER_VOTES = 240, 8
BATCH = 128


@dataclass(frozen=True)
class Args:
    path: Path | None = None
    """A folder of conversations. Default: what `prb data pull polis` fetched."""
    out: Path | None = None
    """Where heads and runs are kept, so that an interrupted measurement goes on. Default: a temporary folder."""
    only: Literal["votes", "readers"] | None = None
    """Models that are trained on votes, or readers that are not (half an hour); default both."""
    split: Literal["test", "dev"] = "test"
    """`dev` tries the whole measurement without a look at `test`, and writes nothing into docs/."""


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


@dataclass(frozen=True)
class Chosen:
    """A setting, and its person effect on users of `dev`."""

    method: str
    features: str
    effect: float


def main(args: Args) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        work, path = args.out or Path(temporary), args.path or pulled_polis()
        work.mkdir(parents=True, exist_ok=True)
        if args.only != "readers":
            learn_from_votes(path, args.split, work)
        if args.only != "votes":
            readers(path, args.split, work)


def learn_from_votes(path: Path, split: str, work: Path) -> None:
    names = sorted(folder.parent.name for folder in path.glob("*/comments.csv"))
    chosen = choose(path, names, work)
    models = {name: name for name in (*BLIND, *UNTRAINED)}
    models[SIMILAR] = chosen[SIMILAR].method
    models |= {name: f"personal?path={work / name}" for name in TRIED}
    models["collaborative"] = train(chosen["collaborative"], spec(path, "*"), work / "collaborative")
    reader = max((SIMILAR, *TRIED), key=lambda name: chosen[name].effect)
    found = list(measure(path, names, models, ("collaborative", reader), split, work))
    found += transfer(path, names, chosen[HELD_OUT].features, split, work)
    if split == "test":
        write(found, chosen, names, reader)


def spec(path: Path, conversation: str) -> str:
    return f"polis?path={path}&conversation={conversation}&mirror=true"


def train(chosen: Chosen, dataset: str, out: Path) -> str:
    if not (out / "card.json").exists():
        prb.train(method=chosen.method, features=chosen.features, dataset=dataset, out=out, quiet=True)
        print("trained", chosen.method, "on", dataset, flush=True)
    return f"personal?path={out}"


class Twins:
    """Rows of `dev` with all that a query shows of them, and the person effect of models there."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        rows = (load(spec(path, name), split="dev", limit=DEV_ROWS) for name in names)
        self.pairs = [pair for part in rows for pair in part if isinstance(pair, Pair)]

    @cached_property
    def asks(self) -> list[Ask]:
        queries = [Query(question=p.question, posts=tuple(p.profile), choices=tuple(p.choices)) for p in self.pairs]
        return [Ask(query, text) for query, pair in zip(queries, self.pairs, strict=True) for text in pair.contrast]

    def ordered(self, model: Scorer, conversation: str | None = None) -> list[float]:
        """Of each twin: 1 if the model orders it by the user, ½ if not at all, 0 if the other way around."""
        rows = [n for n, pair in enumerate(self.pairs) if conversation in (None, pair.category)]
        asks = [self.asks[2 * n + side] for n in rows for side in (0, 1)]
        scores = np.array([s for n in range(0, len(asks), BATCH) for s in model.score(asks[n : n + BATCH])])
        margins = dict(zip((self.pairs[n].id for n in rows), scores[::2] - scores[1::2], strict=True))
        twins = [(pair.id, pair.mirror) for n in rows if (pair := self.pairs[n]).mirror in margins]
        return [float(np.sign(margins[a] + margins[b]) + 1) / 2 for a, b in twins if a < b]


def choose(path: Path, names: Sequence[str], work: Path) -> dict[str, Chosen]:
    """Of every model the best of its settings; heads on text are saved on the way."""
    kept = work / "chosen.json"
    if kept.exists():
        return {name: Chosen(**chosen) for name, chosen in read_json(kept).items()}
    dev = Twins(path, names)
    chosen = {SIMILAR: choose_similar(dev)}
    chosen |= choose_collaborative(path, names, dev, work)
    for name in TRIED:
        chosen[name] = choose_head(path, name, dev, work / name)
    write_json(kept, chosen)
    return chosen


def better(best: Chosen | None, method: str, features: str, ordered: Sequence[float]) -> Chosen:
    """The better of the two."""
    tried = Chosen(method, features, float(np.mean(ordered)))
    print(f"dev: {method} on {features}: {100 * tried.effect:.1f}", flush=True)
    return best if best and best.effect >= tried.effect else tried


def choose_similar(dev: Twins) -> Chosen:
    best = None
    for encoder, nearest in product(ENCODERS, NEAREST):
        method = f"embedding?votes=true&encoder={encoder}&nearest={nearest}"
        model = MODELS.make(method)
        assert isinstance(model, ScriptedScorer)
        best = better(best, method, encoder, dev.ordered(model))
    assert best
    return best


def choose_head(path: Path, name: str, dev: Twins, out: Path) -> Chosen:
    by_posts = METHODS.make(name).uses_posts
    data = f"polis?path={path}&per_user={PAIRS_PER_USER}&per_pair=50"
    dataset = load(data, split="train", limit=LIGHT_ROWS if by_posts else None)
    best = None
    for encoder in LIGHT_ENCODERS if by_posts else ENCODERS:
        features = make_features(encoder)
        examples = prepare(dataset, features, joint=False, k=ALL_VOTES if by_posts else 0)
        for method in TRIED[name]:
            head = fitted(method, examples)
            before, best = best, better(best, method, encoder, dev.ordered(Personal(head, features, method)))
            if best is not before:
                about = {"features": encoder, "features_fingerprint": features.fingerprint}
                save(head, out, {**about, "trained_on": TrainedOn.of(dataset).as_card(), "data": {"name": data}})
    assert best
    return best


def fitted(method: str, examples: Examples) -> Head:
    """No user is held out for early stopping: users who share statements are one cluster, so that whole conversations
    would be."""
    rows = examples.readable
    return learn(method, examples, rows, rows[:0], Learning(epochs=EPOCHS)).head


def choose_collaborative(path: Path, names: Sequence[str], dev: Twins, work: Path) -> dict[str, Chosen]:
    """Its rank and prior; and for a conversation that training never saw, the encoder that places its statements."""
    rows = [pair for pair in load(spec(path, "*"), split="train") if isinstance(pair, Pair)]
    features = {encoder: make_features(encoder) for encoder in ENCODERS}

    def scorer(factors: Factors, ratings: Ratings, prior: float, encoder: str) -> CollaborativeScorer:
        return CollaborativeScorer(factors, [text_digest(t) for t in ratings.items], features[encoder], prior, "")

    ratings, best, setting = ratings_of(votes_by_user(rows).values()), None, Collaborative()
    for rank, prior in product(RANKS, PRIORS):
        tried, method = Collaborative(rank, prior), f"collaborative?rank={rank}&prior={prior:g}"
        factors = with_words(*factorize(ratings, rank, prior), ratings.items, features["static"])
        before, best = best, better(best, method, "static", dev.ordered(scorer(factors, ratings, prior, "static")))
        setting = setting if best is before else tried
    assert best
    ordered: dict[str, list[float]] = {encoder: [] for encoder in ENCODERS}
    for name in names:
        others = [pair for pair in rows if pair.category != name]
        ratings = ratings_of(votes_by_user(others).values())
        items = factorize(ratings, setting.rank, setting.prior)
        users = TrainedOn.of(others).as_card()["users"]
        for encoder in ENCODERS:
            factors = with_words(*items, ratings.items, features[encoder])
            ordered[encoder] += dev.ordered(scorer(factors, ratings, setting.prior, encoder), name)
            about = {"features": encoder, "features_fingerprint": features[encoder].fingerprint}
            card = {"method": best.method, **about, "trained_on": {"rows": [], "users": users}}
            save_factors(factors, ratings.items, work / f"without-{name}" / encoder, card)
    held_out = None
    for encoder in ENCODERS:
        held_out = better(held_out, best.method, encoder, ordered[encoder])
    assert held_out
    return {"collaborative": best, HELD_OUT: held_out}


def evaluate(
    dataset: str,
    models: dict[str, str],
    out: Path,
    *,
    split: str,
    conversation: str,
    votes: int = ALL_VOTES,
    choices: int | None = None,
    limit: int = TEST_ROWS,
    conditions: Sequence[str] = ("profile",),
) -> list[Result]:
    """Statements are shared between users, so what a head was trained on is said by its users, not by its rows."""
    result = prb.evaluate(
        model=[f"{name}:={model}" for name, model in models.items()],
        dataset=dataset,
        split=split,
        limit=limit,
        condition=tuple(conditions),
        k=votes,
        history=f"both?choices={votes // 2 if choices is None else choices}&ranker=recency",
        trained="count",
        out=out,
        quiet=True,
    )
    results = [
        Result(conversation, entry["model"], entry["condition"], votes, effect["n"], *values)
        for entry in result.summary["results"]
        if (effect := entry["person_effect"]) and (values := [effect[key] for key in ("value", "low", "high", "p")])
    ]
    for found in results:
        print(found, flush=True)
    return results


def measure(
    path: Path, names: Sequence[str], models: dict[str, str], curves: Sequence[str], split: str, work: Path
) -> Iterator[Result]:
    few = {model: models[model] for model in curves}
    conditions = ("none", "profile", "shuffled")
    for name in names:
        data, out = spec(path, name), work / f"{split}-{name}"
        yield from evaluate(data, models, out, split=split, conversation=name, conditions=conditions)
        for votes in SHOWN[:-1]:
            out = work / f"{split}-{name}-{votes}"
            yield from evaluate(data, few, out, split=split, conversation=name, votes=votes)


def transfer(path: Path, names: Sequence[str], encoder: str, split: str, work: Path) -> Iterator[Result]:
    """A conversation that training never saw: all its statements are known by their words alone."""
    for name in names:
        models = {HELD_OUT: f"personal?path={work / f'without-{name}' / encoder}"}
        out = work / f"{split}-{name}-transfer"
        yield from evaluate(spec(path, name), models, out, split=split, conversation=name)


def readers(path: Path, split: str, work: Path) -> None:
    """On twins of all conversations, shown the last few votes as posts."""
    found = evaluate(
        spec(path, "*"),
        READERS,
        work / f"{split}-readers",
        split=split,
        conversation="all",
        votes=READER_VOTES,
        choices=0,
        limit=READER_ROWS,
        conditions=("profile", "shuffled"),
    )
    by_condition = {(r.model, r.condition): r for r in found}
    lines = ["reader | person effect, % | p | with another user's votes", "--- | ---: | ---: | ---:"]
    for model in READERS:
        own, other = (by_condition[model, condition] for condition in ("profile", "shuffled"))
        lines.append(f"{model} | {effect(own)} | {p_value(own.p)} | {effect(other)}")
    table = "\n".join(f"| {line} |" for line in lines)
    text = f"""
{found[0].twins} twins of all conversations, the last {READER_VOTES} votes shown as posts; p is not corrected.

{table}
"""
    print(text)
    if split == "test":
        write_between("readers", text, PAGE)


def effect(result: Result) -> str:
    values = (result.person_effect, result.low, result.high)
    value, low, high = (number(value, scale=100) for value in values)
    return f"{value} [{low}, {high}]"


def write(found: list[Result], chosen: dict[str, Chosen], names: Sequence[str], reader: str) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([field.name for field in fields(Result)])
        rows.writerows([getattr(result, field.name) for field in fields(Result)] for result in found)
    at = {(r.conversation, r.model, r.condition, r.votes): r for r in found}
    columns = (*BLIND[:1], *TEXT, "collaborative", HELD_OUT)
    shown = {model: [at[name, model, "profile", ALL_VOTES] for name in names] for model in (*BLIND, *columns)}

    def cell(result: Result) -> str:
        stars = "" if result.p is None or result.p >= 0.05 else "***" if result.p < 0.001 else "*"
        return f"{100 * result.person_effect:.1f}{stars}"

    def sure(model: str, p: float) -> int:
        """In how many conversations the model is above 50 %."""
        return sum(r.p is not None and r.p < p and r.person_effect > 0.5 for r in shown[model])

    lines = [f"conversation | twins | {' | '.join(columns)}", "--- | ---: " + "| ---: " * len(columns)]
    for n, name in enumerate(names):
        cells = " | ".join(cell(shown[model][n]) for model in columns)
        lines.append(f"{name} | {shown['collaborative'][n].twins} | {cells}")
    means = (f"{100 * np.mean([r.person_effect for r in shown[model]]):.1f}" for model in columns)
    lines.append(f"mean | | {' | '.join(means)}")
    for p in (0.05, 0.001):
        lines.append(f"above 50, p < {p} | | {' | '.join(str(sure(model, p)) for model in columns)}")
    table = "\n".join(f"| {line} |" for line in lines)
    user_blind = ", ".join(f"{100 * v:g}" for v in sorted({round(r.person_effect, 9) for m in BLIND for r in shown[m]}))
    settings = [f"| {name} | `{c.method}` | {c.features} | {100 * c.effect:.1f} |" for name, c in chosen.items()]
    text = f"""
Person effect on users of `test`, in %: the share of twins that a model orders by the user; * p < 0.05, *** p < 0.001,
not corrected. User-blind models: {user_blind}. `{reader}` is the reader of text that was best on `dev`.

{table}

Settings, the best of six on users of `dev` (of 3 encoders for `{HELD_OUT}`), and their person effect there:

| model | setting | vectors | person effect, % |
| --- | --- | --- | ---: |
{chr(10).join(settings)}
"""
    write_between("people", text, PAGE)

    def summed(model: str, of: str = "") -> str:
        effects = [100 * r.person_effect for r in shown[model]]
        about = f"mean {np.mean(effects):.1f}; p < 0.001 in {sure(model, 0.001)} of {len(names)} conversations"
        return f"{min(effects):.1f} to {max(effects):.1f} %{of} ({about})"

    others = [at[name, "collaborative", "shuffled", ALL_VOTES].person_effect for name in names]
    prose = f"""
From a user's other votes, `collaborative` orders {summed("collaborative", " of the twins by the person")};
where the conversation was held out of training, {summed(HELD_OUT)}. With another user's votes
its mean is {100 * np.mean(others):.1f} %. Of the readers of text, `{reader}` was best on `dev`; it orders
{summed(reader)}.
"""
    write_between("people", prose, ROOT / "docs" / "people.md")
    draw(at, names, ("collaborative", reader))


def draw(at: dict[tuple[str, str, str, int], Result], names: Sequence[str], models: Sequence[str]) -> None:
    """A line per conversation and their mean, by the number of votes shown."""
    alt = "Person effect against the number of past votes shown, for collaborative filtering and a reader of text"
    with drawing(FIGURE, width=8, height=3.4, alt=alt) as figure:
        plots = figure.subplots(1, len(models), sharey=True)
        for plot, model in zip(plots, models, strict=True):
            curves = [[100 * at[name, model, "profile", k].person_effect for k in SHOWN] for name in names]
            for curve in curves:
                plot.plot(range(len(SHOWN)), curve, color="0.6", linewidth=0.8)
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            plot.plot(range(len(SHOWN)), mean, **series(0), linewidth=2.5)
            plot.axhline(50, color="0.5", linewidth=1, linestyle=":")
            plot.set_xticks(range(len(SHOWN)), [*map(str, SHOWN[:-1]), "all"])
            plot.set_title(model if model == models[0] else f"{model}, the best reader of text")
            plot.set_xlabel("past votes shown")
        plots[0].set_ylabel("person effect, %")
        plots[0].text(0.02, 0.03, "dotted: user-blind", transform=plots[0].transAxes, fontsize=8, color="0.5")


if __name__ == "__main__":
    main(tyro.cli(Args))
