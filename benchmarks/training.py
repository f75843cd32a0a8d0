"""All methods on simulate, mirror and prefeval: one table in docs/training.md, and the curves beside it.

python benchmarks/training.py            (`make training`; finished cells are kept in runs/training)
python benchmarks/training.py --million  a million simulated pairs through the loop, and the memory it took
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tyro
from record import ROOT, write_between

from prb.data.load import Dataset, load
from prb.data.named.simulate import bayes_accuracy
from prb.models.personal.features import make_features
from prb.models.personal.head import Head
from prb.models.personal.method import METHODS
from prb.progress import Progress, watch
from prb.reporting.figures import learning_curve
from prb.reporting.format import Table, interval, markdown, p_value, percent, show
from prb.reporting.style import CONDITIONS, SOFT, drawing, whiskers
from prb.runs import read_json, write_json
from prb.stats.estimate import share
from prb.stats.paired import difference
from prb.training.card import credits_of, results
from prb.training.examples import Examples, Ints, open_training, prepare
from prb.training.folds import fold_of, split_off
from prb.training.judge import margins
from prb.training.loop import Learned, Learning, learn
from prb.training.protocols import curve, seen_margins
from prb.training.sweep import sweep

PAGE = ROOT / "docs" / "training.md"
PREFEVAL = ROOT.parent / "shared" / "data" / "prefeval" / "pairs.jsonl"
FEATURES = "static"
HIDDEN = "hidden?lm=smollm2&layer=22&pool=mean"
"""States of SmolLM2-135M at layer 22 of 30, over the answer's tokens."""
READERS = ("bt", "bt-profile")
"""What hidden states are tried with: the same head on answers read without the posts, and after them."""
PENALTIES = (0.01, 0.03, 0.1, 0.3)
PASSES = 150
SIMULATE = "simulate?persons=8000&pairs=16&seed=3"
"""A world of its own: methods and defaults were chosen while looking at the test persons of seeds 0 to 2."""
SEEN = "simulate?persons=400&pairs=32&split=seen"
SETTINGS = {
    "light": "light?sharp=5",
    "bt": "bt",
    "bt-profile": "bt-profile",
    "profile-mlp": "profile-mlp?hidden=16",
    "bilinear": "bilinear?rank=4&sharp=5",
    "attention": "attention?rank=4",
    "lore": "lore?rank=4",
    "pal": "pal?prototypes=4",
    "vpl": "vpl?beta=0.1",
}
"""What is not fixed here is swept on mirror; elsewhere it is the default. `bt-profile` is meant for hidden states; with
word vectors it is tried on mirror only."""
BLIND = "bt"
PREFEVALS = {
    "prefeval": "word vectors",
    "prefeval-hidden": "hidden states",
    "prefeval-shift": "shifted hidden states",
}


@dataclass(frozen=True)
class Args:
    only: tuple[str, ...] = ()
    """Some of simulate, seen, mirror, prefeval, speed; the table is written from all cells that are there."""
    million: bool = False
    out: Path = ROOT / "runs" / "training"


def rows_of(spec: str, part: str, features: str, progress: Progress, method: str = "") -> Examples:
    """`part`: train, or the test rows."""
    dataset = open_training(spec, None) if part == "train" else load(spec, split=part)
    return read(dataset, features, progress, method)


def read(dataset: Dataset, features: str, progress: Progress, method: str = "") -> Examples:
    """As this method wants it read; word vectors are so cheap that all methods but the joint one share one folder."""
    known = METHODS.make(SETTINGS[method]) if method else None
    joint = bool(known and known.joint)
    posts = joint or features == FEATURES or bool(known and known.looks_at_posts)
    return prepare(
        dataset, make_features(features), joint=joint, k=10 if posts else 0, rank="embedding", progress=progress
    )


def fitted(method: str, examples: Examples) -> Learned:
    """With the l2 that did better on held-out training persons."""
    fit, held = split_off(examples.cluster, 0.2, 0)
    tried = [learn(METHODS_AT[method], examples, fit, held, Learning(l2=l2)) for l2 in (0.003, 0.01)]
    return max(tried, key=lambda one: one.curve[one.best - 1]["held_accuracy"] if one.curve else 0.0)


METHODS_AT = {**SETTINGS, "light": "light"}


def simulate(method: str, progress: Progress) -> dict[str, Any]:
    """Strangers, with their posts and 0 to 8 labelled pairs; eight more of their rows are judged."""
    train, test = (rows_of(SIMULATE, part, FEATURES, progress) for part in ("train", "test"))
    head = fitted(method, train).head
    points = curve(head, test, test.readable, (0, 1, 2, 4, 8), 8)
    return {"points": points, "best": bayes_accuracy(SIMULATE, "test")}


def seen(method: str, progress: Progress) -> dict[str, Any]:
    """The same persons, new questions on new topics."""
    train, test = (rows_of(SEEN, part, FEATURES, progress) for part in ("train", "test"))
    # nobody can be held out here: all passes are made, as many as were best for strangers
    learned = learn(METHODS_AT[method], train, train.readable, train.readable[:0], Learning(epochs=20))
    rows = test.readable
    return results(seen_margins(learned.head, test, rows), test, rows)


def mirror(method: str, progress: Progress) -> dict[str, Any]:
    """Settings by cross-validation over the train couples, one look at the test couples."""
    train, test = (rows_of("mirror", part, FEATURES, progress, method) for part in ("train", "test"))
    learning = Learning(epochs=30)
    tried = sweep([SETTINGS[method]], train, train.readable, learning, 5, progress=progress)
    best = tried[0]
    chosen = Learning(l2=best["l2"], epochs=max(1, best["epochs"]))
    head = learn(best["method"], train, train.readable, train.readable[:0], chosen).head
    rows = test.readable
    zero = results(margins(head, test, rows), test, rows)
    return {"cv": best, "zero": zero, "points": curve(head, test, rows, (0, 1, 2, 4), 2)}


def prefeval(method: str, progress: Progress) -> dict[str, Any] | None:
    if METHODS.make(SETTINGS[method]).needs_pairs:
        return None  # a person is one question here: there is no other labelled pair to learn from
    return by_topic(method, FEATURES, (0.03,), progress)


def prefeval_hidden(method: str, progress: Progress) -> dict[str, Any]:
    return by_topic(method, HIDDEN, PENALTIES, progress)


def prefeval_shift(method: str, progress: Progress) -> dict[str, Any]:
    """What everybody likes and what the posts change, side by side."""
    return by_topic(method, f"{HIDDEN}&shift=true", PENALTIES, progress)


def by_topic(method: str, features: str, penalties: Sequence[float], progress: Progress) -> dict[str, Any]:
    """Five folds by topic, each row three times, once a rejected answer; l2 is chosen inside the training folds."""
    dataset = load(str(unfolded()))
    examples = read(dataset, features, progress, method)
    topics = np.unique(dataset.index.categories, return_inverse=True)[1]
    fold = fold_of(topics, 5, 0)
    found = np.zeros(len(examples))
    inner = []
    for number in range(5):
        fit, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        head, inside = chosen_inside(method, examples, fit, fold, penalties)
        found[held] = margins(head, examples, held)
        inner.append(inside)
    credit = credits_of(found)
    return {
        "accuracy": share(credit, topics).as_dict(),
        "credit": credit.tolist(),
        "fold": fold.tolist(),
        "topic": topics.tolist(),
        "inner": inner,
    }


def chosen_inside(
    method: str, examples: Examples, fit: Ints, fold: Ints, penalties: Sequence[float]
) -> tuple[Head, float]:
    """A head with the l2 and the passes that did best by cross-validation over the training folds, and how well."""
    tried = [inside(method, examples, fit, fold, l2) for l2 in penalties]
    (credit, epochs), l2 = max(zip(tried, penalties, strict=True), key=lambda one: one[0][0])
    learning = Learning(l2=l2, epochs=max(1, epochs))
    return learn(METHODS_AT[method], examples, fit, fit[:0], learning).head, credit


def inside(method: str, examples: Examples, fit: Ints, fold: Ints, l2: float) -> tuple[float, int]:
    """Share right on the training folds, each judged by a head of the others, and the median of the best passes."""
    right, best = [], []
    for number in np.unique(fold[fit]):
        rest, stop = fit[fold[fit] != number], fit[fold[fit] == number]
        made = learn(METHODS_AT[method], examples, rest, stop, Learning(l2=l2, epochs=PASSES))
        right.append(credits_of(margins(made.head, examples, stop)))
        best.append(made.best)
    return float(np.concatenate(right).mean()), int(np.median(best))


def unfolded() -> Path:
    """PrefEval rows in our schema, one for each of the three rejected answers; never shipped."""
    path = ROOT / "runs" / "training" / "prefeval.jsonl"
    if not path.exists():
        lines = []
        for row in map(orjson.loads, PREFEVAL.read_bytes().splitlines()):
            three = enumerate(row.pop("rejected_all"))
            lines += [{**row, "id": f"{row['id']}-{n}", "user": row["id"], "rejected": text} for n, text in three]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    return path


def speed(method: str, progress: Progress) -> dict[str, Any]:
    """Seconds of CPU to train on 10,000 cached pairs."""
    examples = rows_of(SIMULATE, "train", FEATURES, progress)
    rows = np.arange(10_000)
    fit, held = split_off(examples.cluster[rows], 0.2, 0)
    start = time.process_time()
    learned = learn(METHODS_AT[method], examples, fit, held, Learning())
    return {"seconds": time.process_time() - start, "epochs": len(learned.curve)}


PARTS: dict[str, Callable[[str, Progress], dict[str, Any] | None]] = {
    "mirror": mirror,
    "prefeval": prefeval,
    "prefeval-hidden": prefeval_hidden,
    "prefeval-shift": prefeval_shift,
    "simulate": simulate,
    "speed": speed,
    "seen": seen,
}


def cells(args: Args, progress: Progress) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    args.out.mkdir(parents=True, exist_ok=True)
    for part, work in PARTS.items():
        if part.startswith("prefeval") and not PREFEVAL.exists():
            progress.note(f"{part} is left out: {PREFEVAL.name} is not there")
            continue
        for method in SETTINGS:
            path = args.out / f"{part}-{method}.json"
            if not path.exists() and (not args.only or part in args.only):
                progress.note(f"{part}: {method}")
                write_json(path, work(method, progress) if applies(part, method) else None)
            if path.exists():
                found[part][method] = read_json(path)
    return found


def applies(part: str, method: str) -> bool:
    """Whether a method is tried there at all."""
    if part == "prefeval-shift":
        return method == "bt-profile"
    return method in READERS if part == "prefeval-hidden" else method != "bt-profile" or part == "mirror"


def table(found: dict[str, dict[str, Any]]) -> Table:
    def at(part: str, method: str, *keys: Any) -> Any:
        value = found[part].get(method)
        for key in keys:
            value = value[key] if value is not None else None
        return value

    rows = []
    for method in SETTINGS:
        effect = at("mirror", method, "zero", "person_effect")
        rows.append((
            method,
            interval(at("simulate", method, "points", 0, "accuracy")),
            interval(at("simulate", method, "points", -1, "accuracy")),
            interval(at("seen", method, "accuracy")),
            interval(at("mirror", method, "zero", "accuracy")),
            interval(effect) + (f", p {p_value(effect['p'])}" if effect else ""),
            interval(at("mirror", method, "points", -1, "accuracy")),
            interval(at("mirror", method, "cv", "accuracy")),
            interval(at("prefeval", method, "accuracy")),
            interval(at("prefeval-hidden", method, "accuracy")),
            interval(at("prefeval-shift", method, "accuracy")),
            seconds(at("speed", method)),
        ))  # fmt: skip
    columns = (
        "method", "simulate", "+ 8 pairs", "seen", "mirror", "person effect", "+ 4 pairs", "mirror CV", "prefeval",
        "prefeval, hidden", "prefeval, shift", "s",
    )  # fmt: skip
    return Table(
        "Accuracy in %, 95 % intervals clustered by person (prefeval: topic)", columns, tuple(rows), notes(found)
    )


def seconds(cell: dict[str, Any] | None) -> str:
    return f"{cell['seconds']:.0f}" if cell else "–"


def notes(found: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    said = [
        "simulate: strangers, posts only, then with 8 labelled pairs; seen: new questions of the training persons; "
        "mirror: strangers of the test split, posts only, person effect, then with 4 labelled pairs on two fixed rows; "
        "mirror CV: train couples, by which the settings were chosen; hidden: states of SmolLM2-135M instead of word "
        "vectors; shift: these without the posts, and what the posts change; s: seconds of CPU to train on 10,000 "
        f"pairs ({platform.machine()})."
    ]
    best = next((cell["best"] for cell in found["simulate"].values() if cell), None)
    if best:
        said.append(f"Nobody can expect more than {percent(best)} % on simulate.")
    said += [text for text in (picked_on_mirror(found["mirror"], by) for by in ("posts", "pairs")) if text]
    heads = {(part, m): c for part in PREFEVALS for m, c in found[part].items() if c}
    if heads:
        said.append(prefeval_contrast(heads))
    return tuple(said)


def picked_on_mirror(found: dict[str, Any], by: str) -> str:
    """The method chosen over train couples, and what it did on the test couples: by posts alone, or by pairs."""
    needs = {m: METHODS.make(SETTINGS[m]).needs_pairs for m in found if m != BLIND}
    among = {m: found[m]["cv"]["accuracy"]["value"] for m in needs if needs[m] == (by == "pairs")}
    if not among:
        return ""
    best = max(among, key=lambda m: among[m])
    tested = found[best]["zero"] if by == "posts" else found[best]["points"][-1]
    effect = tested["person_effect"]
    told = "posts alone" if by == "posts" else "4 labelled pairs"
    return (
        f"mirror, picked by cross-validation over train couples among methods that know a person by {told}: {best}; "
        f"test person effect {interval(effect)} %, p {p_value(effect['p'])}."
    )


def prefeval_contrast(found: dict[tuple[str, str], Any]) -> str:
    """In each fold the head that did best inside the training folds, against the best user-blind one of all."""
    personal = [head for head in found if head[1] != BLIND]
    blind = max((head for head in found if head[1] == BLIND), key=lambda head: found[head]["accuracy"]["value"])
    fold = np.array(found[blind]["fold"])
    picked = [max(personal, key=lambda head: found[head]["inner"][n]) for n in range(5)]
    credit = np.array([found[picked[f]]["credit"][n] for n, f in enumerate(fold)])
    other = np.array(found[blind]["credit"])
    gap = difference(credit, other, np.array(found[blind]["topic"]))
    names = ", ".join(sorted({said_of(head) for head in picked}))
    ours, theirs = (percent(float(c.mean())) for c in (credit, other))
    return (
        f"prefeval, picked inside the training folds ({names}): {ours} %; the best user-blind head, {said_of(blind)}: "
        f"{theirs} %; difference {100 * (gap.value or 0):+.1f} points, p {p_value(gap.p)} over topics."
    )


def said_of(head: tuple[str, str]) -> str:
    part, method = head
    return f"{method} on {PREFEVALS[part]}"


def curves(found: dict[str, dict[str, Any]], names: Sequence[str] = ("bt", "bilinear", "lore", "pal", "vpl")) -> None:
    for part in ("simulate", "mirror"):
        lines = {name: found[part][name]["points"] for name in names if found[part].get(name)}
        if lines:
            learning_curve(lines, ROOT / "docs" / f"training-{part}.svg", title=f"{part}: unseen persons")


def who_is_needed(found: dict[str, dict[str, Any]]) -> None:
    """The same linear head on answers read without the person and after the posts: two benchmarks."""
    rows = [
        ("PrefEval, hidden states: nobody known", accuracy_of(found["prefeval-hidden"].get("bt")), "none"),
        ("PrefEval, hidden states: posts read", accuracy_of(found["prefeval-hidden"].get("bt-profile")), "profile"),
        ("PrefEval, shifted: posts read", accuracy_of(found["prefeval-shift"].get("bt-profile")), "profile"),
        ("mirror, word vectors: nobody known", accuracy_of(found["mirror"].get("bt")), "none"),
        ("mirror, word vectors: posts read", accuracy_of(found["mirror"].get("bt-profile")), "profile"),
    ]
    shown = [row for row in rows if row[1]]
    alt = "; ".join(f"{name}: {interval(estimate)} %" for name, estimate, _ in shown)
    with drawing(ROOT / "docs" / "training-person.svg", width=6.5, height=2.4, alt=alt) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=SOFT, lw=0.8, ls=":")
        for place, (_, estimate, colour) in enumerate(shown):
            value, at = 100 * estimate["value"], -place
            axes.errorbar([value], [at], xerr=whiskers([estimate]), fmt="o", color=CONDITIONS[colour], capsize=2)
            axes.annotate(
                f"{value:.1f}", (value, at), xytext=(0, 5), textcoords="offset points", fontsize=7, ha="center"
            )
        axes.set_yticks([-n for n in range(len(shown))], [name for name, _, _ in shown])
        axes.set(xlim=(35, 100), ylim=(0.6 - len(shown), 0.6), xlabel="accuracy in %, 95 % interval; dotted: a coin")


def accuracy_of(cell: dict[str, Any] | None) -> Any:
    return cell and (cell.get("zero") or cell)["accuracy"]


def million() -> None:
    """Peak memory of the process, maps of files included, after features and one pass over a million pairs."""
    with watch() as progress:
        spec = "simulate?persons=90000&pairs=16&posts=0"  # seven tenths are train; the head does not look at posts
        start = time.perf_counter()
        examples = rows_of(spec, "train", "static", progress)
        read = time.perf_counter() - start
        learn("bt", examples, examples.readable, examples.readable[:0], Learning(epochs=1), progress=progress)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = examples.vectors.nbytes / 1e9
    took = time.perf_counter() - start
    print(
        f"{len(examples):,} pairs: features {read:.0f} s, {size:.1f} GB on disk; all {took:.0f} s; peak {peak:.2f} GB"
    )


def main() -> None:
    args = tyro.cli(Args)
    if args.million:
        million()
        return
    with watch() as progress:
        found = cells(args, progress)
    curves(found)
    who_is_needed(found)
    made = table(found)
    write_between("training", markdown(made), PAGE)
    show(made)


if __name__ == "__main__":
    main()
