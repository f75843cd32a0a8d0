"""All methods on simulate, mirror and prefeval: the table in docs/tables/training.md and its figures.

python benchmarks/training.py            (`make training`; finished cells stay in runs/training)
python benchmarks/training.py --million  a million simulated pairs through the loop, and the memory it takes
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from prb.models.personal.methods import METHODS
from prb.progress import Progress, watch
from prb.reporting.figures import SOFT, drawing, series, whiskers
from prb.reporting.format import Table, interval, markdown, p_value, percent, show
from prb.runs import read_json, write_json
from prb.stats.estimate import share
from prb.stats.paired import difference
from prb.summary import CONDITIONS
from prb.training.learning import (
    VALIDATION_ROWS,
    Examples,
    Ints,
    Learned,
    Learning,
    credits_of,
    first_rows,
    fitted_codes,
    fold_of,
    held_out_margins,
    learn,
    margins,
    open_training,
    prepare,
    results,
    split_off,
)
from prb.training.run import sweep

PAGE = ROOT / "docs" / "tables" / "training.md"
PREFEVAL = ROOT.parent / "shared" / "data" / "prefeval" / "pairs.jsonl"
FEATURES = "static"
HIDDEN = "hidden?lm=smollm2&layer=22&pool=mean"
"""States of SmolLM2-135M at layer 22 of 30, averaged over the answer's tokens."""
READERS = ("bt", "bt-profile")
"""Heads tried on hidden states: the same one on answers encoded without the posts, and after them."""
PENALTIES = (0.01, 0.03, 0.1, 0.3)
EPOCHS = 150
SIMULATE = "simulate?persons=8000&pairs=16&seed=3"
"""A seed of its own: methods and defaults were chosen while looking at the test users of seeds 0 to 2."""
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
"""Settings that are not fixed here are swept on mirror and have their default elsewhere. `bt-profile` is for hidden
states; with word vectors it is tried on mirror only."""
BLIND = "bt"
PREFEVALS = {
    "prefeval": "word vectors",
    "prefeval-hidden": "hidden states",
    "prefeval-shift": "shifted hidden states",
}


@dataclass(frozen=True)
class Args:
    only: tuple[str, ...] = ()
    """Parts to compute, e.g. simulate, seen, mirror, prefeval, speed; the table is written from all finished cells."""
    million: bool = False
    out: Path = ROOT / "runs" / "training"


def rows_of(spec: str, part: str, features: str, progress: Progress, method: str = "") -> Examples:
    """`part`: train or test."""
    dataset = open_training(spec, None) if part == "train" else load(spec, split=part)
    return read(dataset, features, progress, method)


def read(dataset: Dataset, features: str, progress: Progress, method: str = "") -> Examples:
    """Encoded as this method needs it; word vectors are cheap, so all methods but the joint one share a folder."""
    known = METHODS.make(SETTINGS[method]) if method else None
    joint = bool(known and known.joint)
    posts = joint or features == FEATURES or bool(known and known.uses_posts)
    return prepare(dataset, make_features(features), joint=joint, k=10 if posts else 0, progress=progress)


def fitted(method: str, examples: Examples) -> Learned:
    """With the l2 that is better on held-out training users."""
    fit, held = split_off(examples.cluster, 0.2, 0)
    tried = [learn(METHODS_AT[method], examples, fit, held, Learning(l2=l2)) for l2 in (0.003, 0.01)]
    return max(
        tried, key=lambda one: credits_of(held_out_margins(one.head, examples, held[:VALIDATION_ROWS])[0]).mean()
    )


METHODS_AT = {**SETTINGS, "light": "light"}


def curve(head: Head, examples: Examples, rows: Ints, ms: tuple[int, ...], held: int) -> list[dict[str, Any]]:
    """Accuracy and person effect by number of labeled pairs; a user with fewer pairs gives all of them.

    The scored rows are the same for every m: of each user the last `held` ones; the labeled pairs come from the rows
    before them. So the points of a curve differ in m alone.
    """
    order = np.argsort(examples.user[rows], kind="stable")
    count = np.unique(examples.user[rows], return_counts=True)[1]
    before_last = np.arange(len(rows)) < np.repeat(np.cumsum(count) - held, count)
    candidates, scored = rows[np.sort(order[before_last])], rows[np.sort(order[~before_last])]
    points = []
    for m in ms:
        support = candidates[first_rows(examples.user[candidates], m)[0]]
        codes = fitted_codes(head, examples, support) if head.method.code_size else None
        points.append({"m": m, **asdict(results(margins(head, examples, scored, codes), examples, scored))})
    return points


def simulate(method: str, progress: Progress) -> dict[str, Any]:
    """New users, with their posts and 0 to 8 labeled pairs; eight more of their rows are scored."""
    train, test = (rows_of(SIMULATE, part, FEATURES, progress) for part in ("train", "test"))
    head = fitted(method, train).head
    points = curve(head, test, test.readable, (0, 1, 2, 4, 8), 8)
    return {"points": points, "best": bayes_accuracy(SIMULATE, "test")}


def seen(method: str, progress: Progress) -> dict[str, Any]:
    """The same users, new questions on new topics."""
    train, test = (rows_of(SEEN, part, FEATURES, progress) for part in ("train", "test"))
    # no user can be held out here, so the number of epochs is the one that was best for new users
    learned = learn(METHODS_AT[method], train, train.readable, train.readable[:0], Learning(epochs=20))
    rows, codes = test.readable, learned.head.codes
    known = {n: codes[user] for n, user in enumerate(test.users) if user in codes}
    return asdict(results(margins(learned.head, test, rows, known), test, rows))


def mirror(method: str, progress: Progress) -> dict[str, Any]:
    """Settings by cross-validation over the train couples, one look at the test couples."""
    train, test = (rows_of("mirror", part, FEATURES, progress, method) for part in ("train", "test"))
    learning = Learning(epochs=30)
    tried = sweep(SETTINGS[method], train, train.readable, learning, progress=progress)
    best = tried[0]
    chosen = Learning(l2=best.l2, epochs=max(1, best.epochs))
    head = learn(best.method, train, train.readable, train.readable[:0], chosen).head
    rows = test.readable
    zero = asdict(results(margins(head, test, rows), test, rows))
    return {"cv": asdict(best), "zero": zero, "points": curve(head, test, rows, (0, 1, 2, 4), 2)}


def prefeval(method: str, progress: Progress) -> dict[str, Any] | None:
    if METHODS.make(SETTINGS[method]).needs_pairs:
        return None  # a user has one question here, so there is no other labeled pair to learn from
    return by_topic(method, FEATURES, (0.03,), progress)


def prefeval_hidden(method: str, progress: Progress) -> dict[str, Any]:
    return by_topic(method, HIDDEN, PENALTIES, progress)


def prefeval_shift(method: str, progress: Progress) -> dict[str, Any]:
    """States without the posts and what the posts change, side by side."""
    return by_topic(method, f"{HIDDEN}&shift=true", PENALTIES, progress)


def by_topic(method: str, features: str, penalties: Sequence[float], progress: Progress) -> dict[str, Any]:
    """Five folds by topic, each row three times, once per rejected answer; l2 is chosen inside the training folds."""
    dataset = load(str(unfolded()))
    examples = read(dataset, features, progress, method)
    topics = np.unique(dataset.index.categories, return_inverse=True)[1]
    fold = fold_of(topics, 5, 0)
    all_margins = np.zeros(len(examples))
    inner = []
    for number in range(5):
        fit, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        head, inside = chosen_inside(method, examples, fit, fold, penalties)
        all_margins[held] = margins(head, examples, held)
        inner.append(inside)
    credit = credits_of(all_margins)
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
    """A head with the best l2 and number of epochs by cross-validation over the training folds, and its accuracy."""
    tried = [inside(method, examples, fit, fold, l2) for l2 in penalties]
    (credit, epochs), l2 = max(zip(tried, penalties, strict=True), key=lambda one: one[0][0])
    learning = Learning(l2=l2, epochs=max(1, epochs))
    return learn(METHODS_AT[method], examples, fit, fit[:0], learning).head, credit


def inside(method: str, examples: Examples, fit: Ints, fold: Ints, l2: float) -> tuple[float, int]:
    """Accuracy on the training folds, each scored by a head of the others, and the median of the best epochs."""
    right, best = [], []
    for number in np.unique(fold[fit]):
        rest, stop = fit[fold[fit] != number], fit[fold[fit] == number]
        made = learn(METHODS_AT[method], examples, rest, stop, Learning(l2=l2, epochs=EPOCHS))
        right.append(credits_of(margins(made.head, examples, stop)))
        best.append(made.best)
    return float(np.concatenate(right).mean()), int(np.median(best))


def unfolded() -> Path:
    """PrefEval rows in our schema, one per rejected answer; never shipped."""
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
    """CPU seconds to train on 10,000 cached pairs."""
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


def compute_cells(args: Args, progress: Progress) -> dict[str, dict[str, Any]]:
    cells: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    args.out.mkdir(parents=True, exist_ok=True)
    for part, work in PARTS.items():
        if part.startswith("prefeval") and not PREFEVAL.exists():
            progress.note(f"{part} is skipped: {PREFEVAL.name} does not exist")
            continue
        for method in SETTINGS:
            path = args.out / f"{part}-{method}.json"
            if not path.exists() and (not args.only or part in args.only):
                progress.note(f"{part}: {method}")
                write_json(path, work(method, progress) if applies(part, method) else None)
            if path.exists():
                cells[part][method] = read_json(path)
    return cells


def applies(part: str, method: str) -> bool:
    """Whether a method is tried on a part."""
    if part == "prefeval-shift":
        return method == "bt-profile"
    return method in READERS if part == "prefeval-hidden" else method != "bt-profile" or part == "mirror"


def table(cells: dict[str, dict[str, Any]]) -> Table:
    def at(part: str, method: str, *keys: Any) -> Any:
        value = cells[part].get(method)
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
        "Accuracy in %, 95 % intervals clustered by user (prefeval: topic)", columns, tuple(rows), notes(cells)
    )


def seconds(cell: dict[str, Any] | None) -> str:
    return f"{cell['seconds']:.0f}" if cell else "–"


def notes(cells: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    lines = [
        "simulate: new users, posts only, then with 8 labeled pairs; seen: new questions of the training users; "
        "mirror: new users of the test split, posts only, person effect, then with 4 labeled pairs on two fixed rows; "
        "mirror CV: train couples, on which the settings were chosen; hidden: states of SmolLM2-135M instead of word "
        "vectors; shift: states without the posts, and what the posts change; s: CPU seconds to train on 10,000 "
        f"pairs ({platform.machine()})."
    ]
    best = next((cell["best"] for cell in cells["simulate"].values() if cell), None)
    if best:
        lines.append(f"The highest possible expected accuracy on simulate is {percent(best)} %.")
    lines += [text for text in (picked_on_mirror(cells["mirror"], by) for by in ("posts", "pairs")) if text]
    heads = {(part, m): c for part in PREFEVALS for m, c in cells[part].items() if c}
    if heads:
        lines.append(prefeval_contrast(heads))
    return tuple(lines)


def picked_on_mirror(cells: dict[str, Any], by: str) -> str:
    """The method selected on the train couples, and its result on the test couples: from posts alone, or from pairs."""
    needs = {m: METHODS.make(SETTINGS[m]).needs_pairs for m in cells if m != BLIND}
    among = {m: cells[m]["cv"]["accuracy"]["value"] for m in needs if needs[m] == (by == "pairs")}
    if not among:
        return ""
    best = max(among, key=lambda m: among[m])
    tested = cells[best]["zero"] if by == "posts" else cells[best]["points"][-1]
    effect = tested["person_effect"]
    source = "posts alone" if by == "posts" else "4 labeled pairs"
    return (
        f"mirror, selected by cross-validation over train couples among methods that know a user from {source}: "
        f"{best}; test person effect {interval(effect)} %, p {p_value(effect['p'])}."
    )


def prefeval_contrast(cells: dict[tuple[str, str], Any]) -> str:
    """In each fold the head that was best inside the training folds, against the best user-blind head."""
    personal = [head for head in cells if head[1] != BLIND]
    blind = max((head for head in cells if head[1] == BLIND), key=lambda head: cells[head]["accuracy"]["value"])
    fold = np.array(cells[blind]["fold"])
    picked = [max(personal, key=lambda head: cells[head]["inner"][n]) for n in range(5)]
    credit = np.array([cells[picked[f]]["credit"][n] for n, f in enumerate(fold)])
    other = np.array(cells[blind]["credit"])
    gap = difference(credit, other, np.array(cells[blind]["topic"]))
    names = ", ".join(sorted({label(head) for head in picked}))
    ours, theirs = (percent(float(c.mean())) for c in (credit, other))
    return (
        f"prefeval, selected inside the training folds ({names}): {ours} %; the best user-blind head, {label(blind)}: "
        f"{theirs} %; difference {100 * (gap.value or 0):+.1f} points, p {p_value(gap.p)} over topics."
    )


def label(head: tuple[str, str]) -> str:
    part, method = head
    return f"{method} on {PREFEVALS[part]}"


def learning_curve(curves: Mapping[str, Sequence[dict[str, Any]]], path: Path, title: str) -> None:
    """Accuracy against the number of labeled pairs of a user, one line per method."""
    with drawing(path, width=6, height=4, alt=f"Accuracy against labeled pairs of the user. {title}") as figure:
        axes = figure.add_subplot()
        for n, (name, points) in enumerate(curves.items()):
            estimates = [point["accuracy"] for point in points]
            places = [place + 0.06 * (n - (len(curves) - 1) / 2) for place in range(len(points))]
            values = [100 * estimate["value"] for estimate in estimates]
            axes.errorbar(places, values, yerr=whiskers(estimates), label=name, elinewidth=0.8, **series(n))
        axes.axhline(50, color=SOFT, linewidth=0.8, linestyle=":")
        first = next(iter(curves.values()))
        axes.set_xticks(range(len(first)), [str(point["m"]) for point in first])
        axes.set(xlabel="labeled pairs of the user", ylabel="accuracy, %", title=title)
        figure.legend(loc="outside right upper")


def curves(cells: dict[str, dict[str, Any]], names: Sequence[str] = ("bt", "bilinear", "lore", "pal", "vpl")) -> None:
    for part in ("simulate", "mirror"):
        lines = {name: cells[part][name]["points"] for name in names if cells[part].get(name)}
        if lines:
            learning_curve(lines, ROOT / "docs" / f"training-{part}.svg", title=f"{part}: unseen users")


def what_posts_add(cells: dict[str, dict[str, Any]]) -> None:
    """The same linear head on answers encoded without and after the posts: two benchmarks."""
    rows = [
        ("PrefEval, hidden states: no user", accuracy_of(cells["prefeval-hidden"].get("bt")), "none"),
        ("PrefEval, hidden states: posts shown", accuracy_of(cells["prefeval-hidden"].get("bt-profile")), "profile"),
        ("PrefEval, shifted: posts shown", accuracy_of(cells["prefeval-shift"].get("bt-profile")), "profile"),
        ("mirror, word vectors: no user", accuracy_of(cells["mirror"].get("bt")), "none"),
        ("mirror, word vectors: posts shown", accuracy_of(cells["mirror"].get("bt-profile")), "profile"),
    ]
    shown = [row for row in rows if row[1]]
    alt = "; ".join(f"{name}: {interval(estimate)} %" for name, estimate, _ in shown)
    with drawing(ROOT / "docs" / "training-person.svg", width=6.5, height=2.4, alt=alt) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=SOFT, lw=0.8, ls=":")
        for place, (_, estimate, condition) in enumerate(shown):
            value, at = 100 * estimate["value"], -place
            color = CONDITIONS[condition].color
            axes.errorbar([value], [at], xerr=whiskers([estimate]), fmt="o", color=color, capsize=2)
            axes.annotate(
                f"{value:.1f}", (value, at), xytext=(0, 5), textcoords="offset points", fontsize=7, ha="center"
            )
        axes.set_yticks([-n for n in range(len(shown))], [name for name, _, _ in shown])
        axes.set(xlim=(35, 100), ylim=(0.6 - len(shown), 0.6), xlabel="accuracy in %, 95 % interval; dotted: chance")


def accuracy_of(cell: dict[str, Any] | None) -> Any:
    return cell and (cell.get("zero") or cell)["accuracy"]


def million() -> None:
    """Peak memory of the process, memory-mapped files included, after features and one epoch over a million pairs."""
    with watch() as progress:
        spec = "simulate?persons=90000&pairs=16&posts=0"  # 70 % are train; the head uses no posts
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
        cells = compute_cells(args, progress)
    curves(cells)
    what_posts_add(cells)
    made = table(cells)
    write_between("training", markdown(made), PAGE)
    show(made)


if __name__ == "__main__":
    main()
