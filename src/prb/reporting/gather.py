"""What was given to `prb report`: each folder or file by its kind, evaluations of the same rows side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prb.data.load import Dataset, load
from prb.downstream.ppo.checkpoints import CURVES, read_curves
from prb.errors import BadInput, PrbError
from prb.evaluation.config import CONDITIONS
from prb.progress import SILENT, Progress
from prb.runs import CONFIG, SUMMARY, read_json, read_outcomes
from prb.stats.estimate import Floats, Ints, codes

FLOORS = frozenset({"random", "length", "constant", "lexical", "embedding"})
"""Models that show what a number is worth; `random`, `length` and `constant` cannot know the person at all."""
BLIND = frozenset({"random", "length", "constant"})
FILES = {"correlation": "correlation.json", "audit": "audit.json"}
KEYS = {
    "correlation": {"sets", "bench", "downstream"},
    "audit": {"floors", "giveaways", "verdict"},
    "agreement": {"agreement", "preference", "planning"},
}
"""By what is in it a JSON file is recognised."""


class Said(NamedTuple):
    """What one model said of one pair under one condition, beyond credit and margin."""

    scores: tuple[float | None, ...]
    verdicts: tuple[str | None, ...]
    failure: str | None
    posts: tuple[str, ...]
    plan: tuple[str, ...]
    text: tuple[str, ...]


@dataclass(slots=True)
class Lines:
    """The outcomes of a model under a condition, one entry a pair, in the order of the rows."""

    pairs: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    credit: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    cost: float = 0.0
    cut: int = 0

    @property
    def credits(self) -> Floats:
        return np.array(self.credit, dtype=np.float64)

    @property
    def margins(self) -> Floats:
        return np.array(self.margin, dtype=np.float64)


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluate run as it stands on disk."""

    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.config["evaluate"]
        return found

    @property
    def rows(self) -> tuple[Any, ...]:
        """Runs with the same value saw the very same rows."""
        about = self.summary["dataset"]
        return about["fingerprint"], about["split"], about["rows"], about["left_out"]


@dataclass(frozen=True)
class Entry:
    """A model of a run, by the name it has on the site."""

    name: str
    spec: str
    run: Evaluation

    @property
    def kind(self) -> str:
        return self.spec.partition("?")[0]

    def result(self, condition: str) -> Mapping[str, Any] | None:
        rows = self.run.summary["results"]
        return next((r for r in rows if (r["model"], r["condition"]) == (self.spec, condition)), None)


@dataclass(frozen=True)
class Group:
    """Evaluations of the same rows: their models share tables, tests and pairs."""

    id: str
    entries: tuple[Entry, ...]
    conditions: tuple[str, ...]
    pairs: tuple[str, ...]
    users: tuple[str, ...]
    clusters: Ints
    lines: Mapping[tuple[str, str], Lines]
    """By name of entry and condition."""
    dataset: Dataset | None
    missing: str
    """Why the dataset's texts are not there, if they are not."""
    history: tuple[int, ...] | None
    """How many posts the person of each pair has in all."""

    @property
    def about(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.entries[0].run.summary["dataset"]
        return found

    @property
    def label(self) -> str:
        about, split = self.about, self.about["split"]
        return f"{Path(about['name']).name}{f' · {split}' if split else ''} · {about['rows']:,} pairs"

    @property
    def shown(self) -> str:
        """The condition people would use."""
        return "profile" if "profile" in self.conditions else self.conditions[0]


@dataclass(frozen=True)
class Given:
    groups: tuple[Group, ...]
    ratings: tuple[Evaluation, ...]
    others: Mapping[str, tuple[Path, ...]]
    """Folders and files by kind: bon, ppo (folders), correlation, audit, agreement (JSON files)."""
    texts: bool
    """Whether texts of the dataset may stand on the site."""

    @property
    def evaluations(self) -> list[Evaluation]:
        runs = [entry.run for group in self.groups for entry in group.entries]
        return list({run.folder: run for run in [*runs, *self.ratings]}.values())


def gather(places: Sequence[Path], *, texts: bool = True, progress: Progress = SILENT) -> Given:
    if not places:
        raise BadInput("name at least one run folder")
    kinds = [(kind_of(place), place) for place in dict.fromkeys(places)]
    runs = [read_run(place) for kind, place in kinds if kind == "evaluate"]
    pairs = [run for run in runs if run.summary["task"] == "pairs"]
    others: dict[str, tuple[Path, ...]] = {}
    for kind, place in kinds:
        if kind != "evaluate":
            others[kind] = (*others.get(kind, ()), place / FILES[kind] if place.is_dir() and kind in FILES else place)
    together: dict[tuple[Any, ...], list[Evaluation]] = {}
    for run in pairs:
        together.setdefault(run.rows, []).append(run)
    groups = tuple(_group(f"d{n}", same, progress) for n, same in enumerate(together.values()))
    return Given(groups, tuple(run for run in runs if run not in pairs), others, texts)


def kind_of(place: Path) -> str:
    """evaluate, bon, ppo, correlation, audit or agreement; anything else, or unfinished, is refused."""
    if place.is_file():
        return _kind_of_file(place)
    if not place.is_dir():
        raise BadInput(f"{place} does not exist")
    if (place / CONFIG).exists():
        config = read_json(place / CONFIG)
        kind = next((k for k in ("evaluate", "bon", "ppo") if isinstance(config, dict) and k in config), None)
        if kind and not (place / SUMMARY).exists():
            raise BadInput(f"{place} is not finished; run the same `prb {kind}` again")
        if kind:
            return kind
    found = next((kind for kind, name in FILES.items() if (place / name).exists()), None)
    if found is None:
        raise BadInput(f"{place} is not a run")
    return found


def _kind_of_file(place: Path) -> str:
    value = read_json(place)
    found = next((kind for kind, keys in KEYS.items() if isinstance(value, dict) and keys <= set(value)), None)
    if found is None:
        raise BadInput(f"{place} is no result that prb wrote: it wants {', '.join(KEYS)} JSON, or a run folder")
    return found


def read_run(folder: Path) -> Evaluation:
    config, summary = read_json(folder / CONFIG), read_json(folder / SUMMARY)
    if not isinstance(summary, dict) or not {"task", "dataset", "results", "contrasts"} <= set(summary):
        raise BadInput(f"{folder / SUMMARY} is no summary of `prb evaluate`")
    return Evaluation(folder, config, summary)


def summary_of(folder: Path) -> dict[str, Any]:
    """Of a finished evaluate run, for tables on standard output."""
    if kind_of(folder) != "evaluate":
        raise BadInput(f"{folder} is no run of `prb evaluate`; only those have a table")
    return dict(read_run(folder).summary)


def _group(name: str, runs: Sequence[Evaluation], progress: Progress) -> Group:
    entries = _entries(runs)
    present = {row["condition"] for run in runs for row in run.summary["results"]}
    lines: dict[tuple[str, str], Lines] = {}
    for run in runs:
        progress.begin(f"reading {run.folder}")
        names = {entry.spec: entry.name for entry in entries if entry.run is run}
        lines |= {(names[model], c): found for (model, c), found in _lines(run).items()}
    first = next(iter(lines.values()))
    _check(runs[0], first, lines)
    dataset, missing = _dataset(runs, first.pairs, progress)
    return Group(
        id=name,
        entries=entries,
        conditions=tuple(c for c in CONDITIONS if c in present),
        pairs=tuple(first.pairs),
        users=tuple(first.users),
        clusters=codes(first.clusters),
        lines=lines,
        dataset=dataset,
        missing=missing,
        history=tuple(len(item.profile) for item in dataset) if dataset else None,
    )


def _entries(runs: Sequence[Evaluation]) -> tuple[Entry, ...]:
    """A model that is in several runs carries the run's name."""
    specs = [(str(spec), run) for run in runs for spec in run.settings["model"]]
    named = [spec for spec, _ in specs]
    once = [Entry(spec if named.count(spec) == 1 else f"{spec} ({run.folder.name})", spec, run) for spec, run in specs]
    seen: dict[str, int] = {}
    entries = []
    for entry in once:
        seen[entry.name] = n = seen.get(entry.name, 0) + 1
        entries.append(entry if n == 1 else replace(entry, name=f"{entry.name} {n}"))
    return tuple(entries)


def _lines(run: Evaluation) -> dict[tuple[str, str], Lines]:
    found: dict[tuple[str, str], Lines] = {}
    share: dict[Any, Any] = {}  # models of a run are shown the same posts and plan: one tuple for all of them
    try:
        for line in read_outcomes(run.folder):
            _add(found.setdefault((line["model"], line["condition"]), Lines()), line, share)
    except (KeyError, TypeError) as error:
        raise BadInput(f"{run.folder}: an outcome is not as `prb evaluate` writes it ({error!r})") from None
    wanted = {(row["model"], row["condition"]) for row in run.summary["results"]}
    if set(found) != wanted:
        raise BadInput(f"{run.folder}: outcomes and summary are not of the same models and conditions")
    return found


def _check(run: Evaluation, first: Lines, lines: Mapping[tuple[str, str], Lines]) -> None:
    for (model, condition), column in lines.items():
        if column.pairs != first.pairs or len(column.pairs) != run.summary["dataset"]["rows"]:
            raise BadInput(f"{run.folder}: the outcomes of {model!r} under {condition} are not one for each pair")


def _add(column: Lines, line: Mapping[str, Any], share: dict[Any, Any]) -> None:
    posts, plan = tuple(line["post_ids"]), tuple(line["plan"])
    for names, key in ((column.pairs, "pair"), (column.users, "user"), (column.clusters, "cluster")):
        names.append(share.setdefault(line[key], line[key]))
    column.credit.append(np.nan if line["credit"] is None else line["credit"])
    column.margin.append(np.nan if line["margin"] is None else line["margin"])
    column.said.append(
        Said(
            scores=tuple(line["scores"] or ()),
            verdicts=tuple(line["verdicts"] or ()),
            failure=line["failure"],
            posts=share.setdefault(posts, posts),
            plan=share.setdefault(plan, plan),
            text=tuple(line["text"]),
        )
    )
    column.seconds += line["seconds"]
    column.tokens += line["tokens"]
    column.cost += line["cost"]
    column.cut += line["cut"]


def _dataset(runs: Sequence[Evaluation], pairs: Sequence[str], progress: Progress) -> tuple[Dataset | None, str]:
    """The rows themselves, if they are still where the run found them and still the same."""
    settings, about = runs[0].settings, runs[0].summary["dataset"]
    progress.begin(f"reading {settings['dataset']}")
    try:
        dataset = load(
            settings["dataset"],
            split=settings["split"],
            limit=settings["limit"],
            skip_bad=settings["skip_bad"],
            donors=any("shuffled" in run.settings["condition"] for run in runs),
        )
    except (PrbError, OSError) as error:
        return None, f"The dataset cannot be read again: {str(error).splitlines()[0]}"
    if dataset.fingerprint != about["fingerprint"] or tuple(dataset.index.ids) != tuple(pairs):
        return None, f"{settings['dataset']} is not the file any more that these runs used."
    return dataset, ""


def columns(group: Group, condition: str) -> Iterator[tuple[Entry, Lines]]:
    """The models that were asked under a condition."""
    for entry in group.entries:
        if (entry.name, condition) in group.lines:
            yield entry, group.lines[entry.name, condition]


def called(place: Path) -> str:
    """A result by its own name, or by its folder's where all files of its kind are named alike."""
    return place.parent.name if place.name in FILES.values() else place.stem if place.is_file() else place.name


def result_of(place: Path) -> dict[str, Any]:
    """A file as it is; of a run its summary, and of PPO the curves with it."""
    if place.is_file():
        return dict(read_json(place))
    summary = dict(read_json(place / SUMMARY))
    if "train" not in summary:
        return summary
    return {**summary, "curves": read_curves(place / CURVES, up_to=summary["train"]["steps"])}
