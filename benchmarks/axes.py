"""Every method on composed users: does a head generalize to unseen axes, or only to those it has seen?

python benchmarks/axes.py              (`make axes`; finished cells stay in runs/axes)
python benchmarks/axes.py --no-hidden  without SmolLM2-135M, whose states and tuning take most of the time
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from record import ROOT, write_between

from prb.data.load import Dataset, load
from prb.models.personal.features import Features, features_of
from prb.models.personal.methods import METHODS, Matcher
from prb.progress import Progress, watch
from prb.reporting.figures import SOFT, drawing, series, whiskers
from prb.reporting.format import Table, interval, markdown, p_value, show
from prb.runs import read_json, write_json
from prb.stats.estimate import codes
from prb.stats.paired import Twins, person_effect
from prb.training.learning import (
    Examples,
    Learning,
    encode_lessons,
    learn,
    margins,
    open_training,
    prepare,
    split_off,
)
from prb.training.tuning import ADAPTER, tune, tuned_head

PAGE = ROOT / "docs" / "tables" / "training.md"
FILES = ("training-axes.csv", "training-axes-size.csv")
HIDDEN = "hidden?lm=smollm2&layer=22&alone=true&dtype=fp32"
K = 40
"""Posts of a user: all of them."""
FEATURES = {"static": "static", "MiniLM": "minilm", "SmolLM2": HIDDEN}
SIZES = ((5, 600), (15, 600), (30, 600), (60, 600), (92, 600), (92, 2000))
"""Axes and users of the training data."""
WHOLE = (92, 600)
"""At which all methods are compared."""
CURVES = (("light", "static"), ("bilinear", "static"), ("axes", "static"), ("axes", "SmolLM2"))
COMPARED = ("light", "profile-mlp", "bilinear", "attention", "axes")
"""Methods that know a user from posts alone: the others have exactly 50 % here."""
TRAIN = "mirror?split=train&users={users}&axes={axes}&half=1"
TESTS = {
    "train": TRAIN,
    "seen": "mirror?split=train&users=480&seed=1&axes={axes}&half=2",
    "unseen": "mirror?split=validation&users=480&seed=1",
    "dev": "mirror",
}

Cell = tuple[str, str, int, int]
"""Method, features, axes, users."""


@dataclass(frozen=True)
class Args:
    hidden: bool = True
    """Also methods on SmolLM2-135M."""
    out: Path = ROOT / "runs" / "axes"


def encoded(dataset: Dataset, features: Features, progress: Progress) -> Examples:
    return prepare(dataset, features, joint=False, k=K, progress=progress)


def effect(head: Any, dataset: Dataset, features: Features, progress: Progress) -> dict[str, Any]:
    """Person effect. Questions recur across composed couples, so their clusters are the axes."""
    examples = encoded(dataset, features, progress)
    composed = [row.data["axis"] for row in dataset.source.rows() if "axis" in row.data]
    clusters = codes(composed) if composed else examples.cluster
    twins = Twins.find(examples.twins, clusters, np.ones(len(examples), dtype=bool))
    found = person_effect(margins(head, examples, np.arange(len(examples))), twins)
    return found.as_dict() if found else {}


def measured(cell: Cell, folder: Path, progress: Progress) -> dict[str, Any]:
    """Trained on one half of each axis's texts; seen axes are tested on the other half, unseen ones on other axes."""
    name, shown, axes, users = cell
    dataset = open_training(TRAIN.format(axes=axes, users=users), None)
    method = METHODS.make(name)
    about = {"features": FEATURES[shown]}
    if isinstance(method, Matcher):
        folder.mkdir(exist_ok=True)
        tune(name, dataset.source, about["features"], folder, 0, progress)
        features = features_of({**about, "adapter": ADAPTER}, folder)
        head = tuned_head(name, dataset.source, features)
    else:
        features = features_of(about, folder)
        examples = encoded(dataset, features, progress)
        fit, held = split_off(examples.cluster, 0.2, 0)
        lessons = encode_lessons(dataset.source, features) if method.taught else ()
        head = learn(name, examples, fit, held, Learning(), lessons=lessons, progress=progress).head
    tests = {
        test: load(spec.format(axes=axes, users=users), split="dev" if test == "dev" else None)
        for test, spec in TESTS.items()
    }
    return {test: effect(head, data, features, progress) for test, data in tests.items()}


def compute(args: Args, progress: Progress) -> dict[Cell, dict[str, Any]]:
    todo: list[Cell] = [(method, shown, *WHOLE) for shown in FEATURES for method in COMPARED]
    todo += [("matcher", "SmolLM2", *WHOLE)]
    todo += [(method, shown, *size) for method, shown in CURVES for size in SIZES]
    args.out.mkdir(parents=True, exist_ok=True)
    cells = {}
    for cell in dict.fromkeys(todo):
        path = args.out / f"{'-'.join(map(str, cell))}.json"
        if not path.exists() and (args.hidden or cell[1] != "SmolLM2"):
            progress.note(", ".join(map(str, cell)))
            write_json(path, measured(cell, path.with_suffix(""), progress))
        if path.exists():
            cells[cell] = read_json(path)
    return cells


def curves(cells: dict[Cell, dict[str, Any]]) -> dict[tuple[str, str], dict[Cell, dict[str, Any]]]:
    return {
        kind: {cell: cells[cell] for size in SIZES if (cell := (*kind, *size)) in cells}
        for kind in CURVES
        if (*kind, *WHOLE) in cells
    }


def tables(cells: dict[Cell, dict[str, Any]]) -> list[Table]:
    def shown(estimate: dict[str, Any]) -> str:
        return f"{interval(estimate)}, p {p_value(estimate['p'])}"

    names = ("seen", "unseen", "dev")
    compared = [
        (cell[0], cell[1], *(shown(one[name]) for name in names)) for cell, one in cells.items() if cell[2:] == WHOLE
    ]
    by_size = [
        (f"{method}, {features}", str(axes), str(users), *(shown(one[name]) for name in ("train", *names[:2])))
        for curve in curves(cells).values()
        for (method, features, axes, users), one in curve.items()
    ]
    return [
        Table(
            f"Person effect in %, {WHOLE[0]} axes and {WHOLE[1]} users, 95 % intervals clustered by axis (dev: couple)",
            ("method", "features", "seen axes, new texts", "unseen axes", "dev"),
            tuple(compared),
            (
                "trained on half of each axis's posts and questions; seen axes: new users of the same axes with the "
                "other half; unseen axes: the 12 axes of split validation; dev: its 12 written couples. Settings are "
                "the defaults.",
            ),
        ),
        Table(
            "The same by the number of axes and users",
            ("method, features", "axes", "users", "trained on", "seen axes, new texts", "unseen axes"),
            tuple(by_size),
            ("trained on: the training users themselves.",),
        ),
    ]


def figure(cells: dict[Cell, dict[str, Any]], names: Sequence[str] = ("seen", "unseen")) -> None:
    numbers = [axes for axes, users in SIZES if users == WHOLE[1]]
    alt = "Person effect against the number of training axes, on seen and on unseen axes."
    with drawing(ROOT / "docs" / "training-axes.svg", width=7, height=3, alt=alt) as drawn:
        panels = drawn.subplots(1, len(names), sharey=True)
        for panel, name in zip(panels, names, strict=True):
            panel.axhline(50, color=SOFT, linewidth=0.8, linestyle=":")
            for n, ((method, features), curve) in enumerate(curves(cells).items()):
                points = [one[name] for (*_, users), one in curve.items() if users == WHOLE[1]]
                places = [place + 0.06 * n for place in range(len(points))]
                values = [100 * point["value"] for point in points]
                label = f"{method}, {features}"
                panel.errorbar(places, values, yerr=whiskers(points), label=label, elinewidth=0.8, **series(n))
            panel.set_xticks(range(len(numbers)), [str(number) for number in numbers])
            panel.set(title=f"{name} axes", xlabel="training axes")
        panels[0].set(ylabel="person effect, %")
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")


def main() -> None:
    args = tyro.cli(Args)
    with watch() as progress:
        cells = compute(args, progress)
    figure(cells)
    made = tables(cells)
    for name, table in zip(FILES, made, strict=True):
        with (ROOT / "docs" / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([table.columns, *table.rows])
    static = ("light", "axes")  # the best on static vectors
    shown = tuple(row for row in made[0].rows if row[1] == "SmolLM2" or (row[1] == "static" and row[0] in static))
    write_between("axes", markdown(made[0]._replace(rows=shown)), PAGE)
    for table in made:
        show(table)


if __name__ == "__main__":
    main()
