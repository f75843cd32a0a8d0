"""Learning curves on composed users: does a head generalize to unseen axes, or only to those it has seen?

python benchmarks/axes.py               (`make axes`; finished cells stay in runs/axes)
python benchmarks/axes.py --no-hidden   without the states of SmolLM2-135M, which take most of the time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from record import ROOT, write_between

from prb.data.load import Dataset, load
from prb.hashing import digest
from prb.models.personal.features import Features, make_features
from prb.models.personal.method import METHODS
from prb.progress import Progress, watch
from prb.reporting.format import Table, interval, markdown, p_value, show
from prb.reporting.style import SOFT, drawing, series, whiskers
from prb.runs import read_json, write_json
from prb.stats.estimate import codes
from prb.stats.paired import Twins, person_effect
from prb.training.examples import Examples, encode_lessons, open_training, prepare, split_off
from prb.training.loop import Learning, learn, margins

PAGE = ROOT / "docs" / "training.md"
HIDDEN = "hidden?lm=smollm2&layer=22&alone=true&dtype=fp32"
K = 40
"""Posts of a user: all of them."""
SIZES = ((5, 600), (15, 600), (30, 600), (60, 600), (92, 600), (92, 2000))
"""Axes and users of the training data."""
METHODS_HERE = ("light", "bilinear", "axes")
"""Some that know a user from posts alone: those that do not have exactly 50 % here."""
TRAIN = "mirror?split=train&users={users}&axes={axes}&half=1"
SEEN = "mirror?split=train&users=480&seed=1&axes={axes}&half=2"
UNSEEN = "mirror?split=validation&users=480&seed=1"


@dataclass(frozen=True)
class Args:
    hidden: bool = True
    """Beside word vectors, `axes` on states of SmolLM2-135M."""
    out: Path = ROOT / "runs" / "axes"


def encoded(dataset: Dataset, features: Features, progress: Progress) -> Examples:
    return prepare(dataset, features, joint=False, k=K, rank="embedding", progress=progress)


def effect(head: Any, spec: str, features: Features, progress: Progress) -> dict[str, Any]:
    """Person effect on composed users; questions recur across couples, so the clusters are the axes."""
    dataset = load(spec)
    examples = encoded(dataset, features, progress)
    axes = codes([str(row.data["axis"]) for row in dataset.source.rows()])
    twins = Twins.find(examples.twins, axes, np.ones(len(examples), dtype=bool))
    found, p = person_effect(margins(head, examples, np.arange(len(examples))), twins)
    return {**found.as_dict(), "p": p}


def cell(method: str, features: Features, axes: int, users: int, progress: Progress) -> dict[str, Any]:
    """Trained on one half of each axis's texts; seen axes are tested on the other half, unseen ones on other axes."""
    dataset = open_training(TRAIN.format(axes=axes, users=users), None)
    examples = encoded(dataset, features, progress)
    fit, held = split_off(examples.cluster, 0.2, 0)
    lessons = encode_lessons(dataset.source, features) if METHODS.make(method).taught else ()
    head = learn(method, examples, fit, held, Learning(), lessons=lessons, progress=progress).head
    specs = {"train": TRAIN.format(axes=axes, users=users), "seen": SEEN.format(axes=axes), "unseen": UNSEEN}
    return {name: effect(head, spec, features, progress) for name, spec in specs.items()}


def compute(args: Args, progress: Progress) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    todo = [("static", method, *size) for method in METHODS_HERE for size in SIZES]
    todo += [(HIDDEN, "axes", *size) for size in SIZES[:5]]
    args.out.mkdir(parents=True, exist_ok=True)
    cells = {}
    for spec, method, axes, users in todo:
        path = args.out / f"{digest(spec).hex()[:8]}-{method}-{axes}-{users}.json"
        if not path.exists() and (args.hidden or spec == "static"):
            progress.note(f"{method} on {spec}: {axes} axes, {users} users")
            write_json(path, cell(method, make_features(spec), axes, users, progress))
        if path.exists():
            cells[spec, method, axes, users] = read_json(path)
    return cells


def label(spec: str, method: str) -> str:
    return method if spec == "static" else f"{method}, SmolLM2 states"


def table(cells: dict[tuple[str, str, int, int], dict[str, Any]]) -> Table:
    def shown(estimate: dict[str, Any]) -> str:
        return f"{interval(estimate)}, p {p_value(estimate['p'])}"

    rows = [
        (label(spec, method), str(axes), str(users), *(shown(one[name]) for name in ("train", "seen", "unseen")))
        for (spec, method, axes, users), one in cells.items()
    ]
    return Table(
        "Person effect in %, 95 % intervals clustered by axis",
        ("method", "axes", "users", "trained on", "seen axes, new texts", "unseen axes"),
        tuple(rows),
        (
            "trained on: the training users themselves; seen axes: new users of the same axes, whose posts, questions "
            "and answers were not trained on; unseen axes: the 12 axes of split validation. Settings are the defaults.",
        ),
    )


def figure(cells: dict[tuple[str, str, int, int], dict[str, Any]], names: Sequence[str] = ("seen", "unseen")) -> None:
    kinds = list(dict.fromkeys((spec, method) for spec, method, *_ in cells))
    numbers = [axes for axes, users in SIZES if users == 600]
    alt = "Person effect against the number of training axes, on seen and on unseen axes."
    with drawing(ROOT / "docs" / "training-axes.svg", width=7, height=3, alt=alt) as drawn:
        panels = drawn.subplots(1, len(names), sharey=True)
        for panel, name in zip(panels, names, strict=True):
            panel.axhline(50, color=SOFT, linewidth=0.8, linestyle=":")
            for n, (spec, method) in enumerate(kinds):
                whole = [cells.get((spec, method, axes, 600)) for axes in numbers]
                points = [one[name] for one in whole if one]
                places = [place + 0.06 * n for place in range(len(points))]
                values = [100 * point["value"] for point in points]
                panel.errorbar(
                    places, values, yerr=whiskers(points), label=label(spec, method), elinewidth=0.8, **series(n)
                )
            panel.set_xticks(range(len(numbers)), [str(number) for number in numbers])
            panel.set(title=f"{name} axes", xlabel="training axes")
        panels[0].set(ylabel="person effect, %")
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")


def main() -> None:
    args = tyro.cli(Args)
    with watch() as progress:
        cells = compute(args, progress)
    figure(cells)
    made = table(cells)
    write_between("axes", markdown(made), PAGE)
    show(made)


if __name__ == "__main__":
    main()
