"""May this judge stand in for people? A license, from what people and the judge said of the same items.

    prb grade --license runs/judge --human export/judgements.jsonl

The judge's side is a finished run of `prb evaluate` (its verdicts with the user's history are about `preference`, those
without are about `quality`) or of `prb grade --answers` (`grades`), or a table with `item` and `judgment`. The human
side is the export of a study, human grades as `prb grade --human` reads them, or a table with `item`, `annotator` and
`judgment`. Nothing is asked: a license is a function of these files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from pydantic import Field

from prb.config import Name, OutputConfig, Place, config
from prb.data.schema import read_items
from prb.errors import BadInput
from prb.grading import TOP
from prb.hashing import short_digest
from prb.registry import Spec
from prb.runs import Finished, write_json
from prb.stats.estimate import Floats, average, codes
from prb.stats.stand_in import (
    EPSILON,
    AlternativeTest,
    Powered,
    Scale,
    alternative_test,
    labels_for,
    prediction_powered,
)
from prb.types import Estimate

LICENSE = "license.json"
PREFERENCE, QUALITY, GRADES = "preference", "quality", "grades"
WORDS = {"chosen": 1.0, "yes": 1.0, "true": 1.0, "rejected": 0.0, "no": 0.0, "false": 0.0}
WORDS |= dict.fromkeys(("neither", "tie", "both", "equal"), 0.5)
"""What a judgment may be called instead of a number."""
HALF_WIDTH = 0.05
"""The precision that `labels_needed` is about: five points of a share."""
FEW = 30
"""Items per annotator below which the authors of the test advise against it."""


@config
class LicenseConfig(OutputConfig):
    """May a judge stand in for people? What it said, against what people said of the same items."""

    verb: ClassVar[str] = "license"

    license: Name
    """The judge: a run folder of `prb evaluate` or `prb grade --answers`, or a table with item and judgment. Of a run
    with several models: `runs/x?model=NAME`."""
    human: Place
    """Judgments of people: the judgements.jsonl of a study, human grades, or a table with item, annotator, judgment."""
    epsilon: Annotated[float, Field(ge=0, lt=1)] = EPSILON
    """What the judge may lack, since people cost more: 0.2 where annotators are experts, 0.1 for crowd workers."""


class Judgment(NamedTuple):
    """One judgment of one item; an `annotator` of "" is the judge."""

    question: str
    item: str
    annotator: str
    value: float
    cluster: str = ""
    group: str = ""
    mirror: str = ""


@dataclass(frozen=True, kw_only=True)
class Label:
    """An item that people and the judge judged."""

    item: str
    cluster: str
    human: float
    """Mean over annotators."""
    judge: float


@dataclass(frozen=True, kw_only=True)
class Question:
    """Whether the judge may stand in for people on one kind of judgment."""

    name: str
    scale: Scale
    items: int
    annotators: int
    test: AlternativeTest
    agreement: Estimate
    """Of the judge with a person: share of equal judgments; of numbers, 1 minus their mean distance over the range."""
    agreement_of_people: Estimate
    """The same of two people."""
    inflation: Estimate
    """The judge's mean minus that of people, on the same items."""
    inflation_by_group: dict[str, Estimate]
    powered: Powered
    """The mean that people would give over all items that the judge judged."""
    person_effect: Powered | None
    """Share of twins on which people's preferences follow the user."""
    labels_needed: int | None
    """Human labels in all for an interval of ± 5 points."""
    labels: tuple[Label, ...]

    @property
    def allowed(self) -> bool:
        return self.test.passes


@dataclass(frozen=True, kw_only=True)
class License:
    """What a judge may be used for in place of people."""

    judge: str
    human: str
    epsilon: float
    questions: tuple[Question, ...]
    version: int = 1

    def sentence(self) -> str:
        def names(chosen: Iterable[Question]) -> str:
            return " and ".join(
                f"{q.name} (as good as {sum(r.beaten for r in q.test.rivals)} of {len(q.test.rivals)} people)"
                for q in chosen
            )

        tested = [q for q in self.questions if q.test.winning_rate is not None]
        untested = [q.name for q in self.questions if q.test.winning_rate is None]
        yes, no = names(q for q in tested if q.allowed), names(q for q in tested if not q.allowed)
        parts = [f"{self.judge} may stand in for people on {yes}"] if yes else []
        if no:
            parts.append(
                f"on {no} it is not shown"
                if yes
                else f"it is not shown that {self.judge} may stand in for people on {no}"
            )
        if untested:
            parts.append(f"{' and '.join(untested)}: cannot be tested, since no item was judged by two people")
        return "; ".join(parts).replace("it is not shown that", "It is not shown that") + "."

    def question(self, name: str) -> Question:
        for question in self.questions:
            if question.name == name:
                return question
        known = ", ".join(question.name for question in self.questions)
        raise BadInput(f"the license is about {known}, not about {name}; make one from judgments of that kind")

    def correct(self, question: str, items: Sequence[str], values: Floats, clusters: Sequence[str]) -> Powered:
        """What people would say on average of these items, from the judge's values and the labels of the license."""
        labels = self.question(question).labels
        labeled = {label.item for label in labels}
        rest = [n for n, item in enumerate(items) if item not in labeled and not np.isnan(values[n])]
        both = codes([*(label.cluster for label in labels), *(clusters[n] for n in rest)])
        human, judge = np.array([label.human for label in labels]), np.array([label.judge for label in labels])
        return prediction_powered(human, judge, values[rest], both[: len(labels)], both[len(labels) :])


def read_license(path: Path) -> License:
    """The license in a file or in the folder that `prb grade --license` wrote."""
    file = path / LICENSE if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=License)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; `prb grade --license JUDGE --human FILE` makes a license") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput(f"{path} is not a license ({error})") from None


def make_license(config: LicenseConfig | None = None, **settings: Any) -> Finished:
    """Compare, and write the license to a folder of its own."""
    config = LicenseConfig.of(config, settings)
    people = read_people(config.human)
    judge = read_judge(config.license)
    shared = [name for name in dict.fromkeys(j.question for j in people) if any(j.question == name for j in judge)]
    if not shared:
        asked, answered = ({j.question for j in side} for side in (people, judge))
        raise BadInput(
            f"people judged {', '.join(sorted(asked))}, the judge {', '.join(sorted(answered))}: nothing to compare"
        )
    questions = [
        compare(
            name, [j for j in people if j.question == name], [j for j in judge if j.question == name], config.epsilon
        )
        for name in shared
    ]
    license_ = License(
        judge=config.license, human=config.human.name, epsilon=config.epsilon, questions=tuple(questions)
    )
    out = config.folder(f"license-{Path(config.license).name}")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / LICENSE, msgspec.to_builtins(license_))
    return Finished(out, msgspec.to_builtins(license_))


def compare(name: str, people: Sequence[Judgment], judge: Sequence[Judgment], epsilon: float) -> Question:
    said = {judgment.item: judgment.value for judgment in judge}
    annotators = sorted({judgment.annotator for judgment in people})
    by_item: dict[str, dict[str, float]] = defaultdict(dict)
    for judgment in people:
        by_item[judgment.item][judgment.annotator] = judgment.value  # of two by one person, the later
    items = [item for item in by_item if item in said]
    if not items:
        raise BadInput(f"{name}: no item was judged by people and by the judge; their names must be the same")
    about = {judgment.item: judgment for judgment in people}
    votes = np.array([[by_item[item].get(person, np.nan) for person in annotators] for item in items])
    judged = np.array([said[item] for item in items])
    values = {*votes[~np.isnan(votes)], *said.values()}
    scale: Scale = "nominal" if values <= {0.0, 0.5, 1.0} else "numeric"
    clusters = [about[item].cluster or item for item in items]
    human = np.nanmean(votes, axis=1)
    labels = tuple(
        Label(item=item, cluster=cluster, human=float(mean), judge=float(value))
        for item, cluster, mean, value in zip(items, clusters, human, judged, strict=True)
    )
    powered = _powered(labels, [j for j in judge if j.item not in by_item], unit=max(values) <= 1 and min(values) >= 0)
    groups = sorted({about[item].group for item in items} - {""})
    near = _closeness(scale, max(values) - min(values))
    numbers = codes(clusters)
    return Question(
        name=name,
        scale=scale,
        items=len(items),
        annotators=len(annotators),
        test=alternative_test(votes, judged, annotators, scale=scale, epsilon=epsilon),
        agreement=average(np.nanmean(near(votes, judged[:, None]), axis=1), numbers),
        agreement_of_people=average(_pairwise(votes, near), numbers),
        inflation=_difference(judged - human, numbers),
        inflation_by_group={
            group: _difference((judged - human)[rows], numbers[rows])
            for group in groups
            if (rows := np.array([about[item].group == group for item in items])).any()
        },
        powered=powered,
        person_effect=_person_effect(labels, judge, about) if name == PREFERENCE else None,
        labels_needed=labels_for(powered, HALF_WIDTH) if scale == "nominal" else None,
        labels=labels,
    )


def _powered(labels: Sequence[Label], more: Sequence[Judgment], *, unit: bool) -> Powered:
    both = codes([*(label.cluster for label in labels), *(judgment.cluster or judgment.item for judgment in more)])
    return prediction_powered(
        np.array([label.human for label in labels]),
        np.array([label.judge for label in labels]),
        np.array([judgment.value for judgment in more]),
        both[: len(labels)],
        both[len(labels) :],
        unit=unit,
    )


def _closeness(scale: Scale, width: float) -> Any:
    if scale == "nominal":
        return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, a == b)
    return lambda a, b: 1 - np.abs(a - b) / (width or 1)


def _pairwise(votes: Floats, near: Any) -> Floats:
    """Per item, the mean agreement of two people; NaN where only one judged it."""
    with np.errstate(invalid="ignore"):
        rivals = [near(votes[:, [n]], np.delete(votes, n, axis=1)) for n in range(votes.shape[1])]
    every = np.concatenate(rivals, axis=1)
    known = ~np.isnan(every)
    counts = known.sum(axis=1)
    return np.where(counts > 0, np.where(known, every, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)


def _difference(values: Floats, clusters: Any) -> Estimate:
    """A mean that may be negative, with a t interval over clusters."""
    from prb.stats.estimate import clustered_stderr, effective_clusters, t95

    mean, error = float(values.mean()), clustered_stderr(values, clusters)
    if error is None:
        return Estimate(value=mean, low=None, high=None, n=len(values))
    half = t95(effective_clusters(clusters) - 1) * error
    return Estimate(value=mean, low=mean - half, high=mean + half, n=len(values))


def _person_effect(labels: Sequence[Label], judge: Sequence[Judgment], about: Mapping[str, Judgment]) -> Powered | None:
    """Twins as items: 1 if the two preferences together lean toward each user's own answer, half if to neither."""
    human = {label.item: label.human for label in labels}
    said, twins = (
        {j.item: j for j in judge},
        {**{j.item: j.mirror for j in judge}, **{i: j.mirror for i, j in about.items()}},
    )

    def lean(values: Mapping[str, float], item: str) -> float:
        return (float(np.sign(values[item] + values[twins[item]] - 1)) + 1) / 2

    values = {item: j.value for item, j in said.items()}
    couples = [item for item in said if (twin := twins.get(item)) and item < twin and twin in said]
    labeled = [item for item in couples if item in human and twins[item] in human]
    if len(labeled) < 2:
        return None
    of_twins = [
        Label(item=item, cluster=about[item].cluster or item, human=lean(human, item), judge=lean(values, item))
        for item in labeled
    ]
    rest = [said[item]._replace(value=lean(values, item)) for item in couples if item not in set(labeled)]
    return _powered(of_twins, rest, unit=True)


# --- reading both sides ---


def read_people(path: Path) -> list[Judgment]:
    path = path / "judgements.jsonl" if path.is_dir() else path
    judgments = [judgment for line in read_items(path, _of_person) for judgment in line]
    if not judgments:
        raise BadInput(f"{path} holds no judgments but practice, checks and skipped items")
    return judgments


def _of_person(line: Mapping[str, Any]) -> list[Judgment]:
    if not line.get("annotator"):
        raise ValueError("`annotator` is missing")
    if "ratings" in line and "item" in line:
        return list(_of_study(line))
    return [_judgment(line, str(line["annotator"]))]


def _of_study(line: Mapping[str, Any]) -> Iterator[Judgment]:
    """A line of a study's export: the preference, and which answer was rated higher without regard to the user."""
    if line.get("check") or line.get("skipped"):
        return
    where = {name: str(line.get(name) or "") for name in ("cluster", "group", "mirror")}
    about = (str(line["item"]), str(line["annotator"]))
    if prefer := line.get("after") or line.get("before"):
        yield Judgment(PREFERENCE, *about, value_of(prefer), **where)
    ratings = line["ratings"]
    if ratings.get("chosen") and ratings.get("rejected"):
        chosen, rejected = (float(np.mean([*map(float, ratings[side].values())])) for side in ("chosen", "rejected"))
        yield Judgment(QUALITY, *about, (float(np.sign(chosen - rejected)) + 1) / 2, **where)


def _judgment(line: Mapping[str, Any], annotator: str) -> Judgment:
    if "grades" in line:  # as `prb grade --human` reads them
        grades = line["grades"]
        if not isinstance(grades, list) or not grades or not all(isinstance(g, int | float) for g in grades):
            raise ValueError("`grades` must be a list of numbers")
        return Judgment(GRADES, graded_item(line), annotator, sum(grades) / (TOP * len(grades)))
    if line.get("item") in (None, "") or line.get("judgment") in (None, ""):
        raise ValueError("`item` or `judgment` is missing")
    rest = {name: str(line.get(name) or "") for name in ("cluster", "group", "mirror")}
    question = str(line.get("question") or PREFERENCE)
    return Judgment(question, str(line["item"]), annotator, value_of(line["judgment"]), **rest)


def graded_item(line: Mapping[str, Any]) -> str:
    """The name of a graded answer: its row and its text."""
    if not isinstance(line.get("answer"), str) or not line.get("pair"):
        raise ValueError("`pair` or `answer` is missing")
    return f"{line['pair']} {short_digest(line['answer'])}"


def value_of(judgment: Any) -> float:
    if isinstance(judgment, str) and judgment.strip().lower() in WORDS:
        return WORDS[judgment.strip().lower()]
    try:
        value = float(judgment)
    except (TypeError, ValueError):
        raise ValueError(f"`judgment` is {judgment!r}; a number, or one of {', '.join(WORDS)}") from None
    if not np.isfinite(value):
        raise ValueError(f"`judgment` is {judgment!r}, not a finite number")
    return value


def read_judge(spec: str) -> list[Judgment]:
    """From a run folder, or from a table of judgments."""
    parsed = Spec.parse(spec)
    path, model = Path(parsed.name), parsed.options.get("model")
    if not path.is_dir():
        return read_items(path, lambda line: _judgment(line, ""))
    if (path / "grades.jsonl").is_file():
        lines = read_items(path / "grades.jsonl", dict)
        return [
            Judgment(GRADES, graded_item(line), "", float(line["score"]), str(line["cluster"]))
            for line in lines
            if line.get("score") is not None and not line.get("round")
        ]
    if not (path / "outcomes.jsonl").is_file():
        raise BadInput(f"{path} is no finished run of `prb evaluate` or `prb grade --answers`")
    lines = [line for line in read_items(path / "outcomes.jsonl", dict) if line.get("credit") is not None]
    models = list(dict.fromkeys(str(line["model"]) for line in lines))
    if model is None and len(models) > 1:
        raise BadInput(f"{path} has {len(models)} models ({', '.join(models[:5])}…); choose one: {path}?model=NAME")
    asked = {"profile": PREFERENCE, "none": QUALITY}
    return [
        Judgment(asked[line["condition"]], str(line["pair"]), "", float(line["credit"]), str(line.get("cluster") or ""))
        for line in lines
        if line["condition"] in asked and line["model"] == (model or models[0])
    ]
