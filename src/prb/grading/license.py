"""May this judge stand in for people? A license, from what people and the judge said of the same items.

    prb grade --license runs/judge --human export/judgements.jsonl

The judge's side is a finished run of `prb evaluate` (its verdicts with the user's history are about `preference`, those
without are about `quality`) or of `prb grade --answers` (`grades`), or a table with `item` and `judgment`. The human
side is the export of a study, human grades as `prb grade --human` reads them, or a table with `item`, `annotator` and
`judgment`. Nothing is asked: a license is a function of these files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
from prb.stats.agreement import (
    EPSILON,
    AlternativeTest,
    AttentionCheck,
    Powered,
    Scale,
    alternative_test,
    inattentive,
    labels_for,
    prediction_powered,
)
from prb.stats.estimate import Floats, average, codes
from prb.types import Estimate

LICENSE = "license.json"
PREFERENCE, QUALITY, GRADES = "preference", "quality", "grades"
WORDS = {"chosen": 1.0, "rejected": 0.0, "neither": 0.5}
"""What a judgment may be called instead of a number."""
UNBOUNDED = (-math.inf, math.inf)
HALF_WIDTH = 0.05
"""The precision that `labels_needed` is about: five points of a share."""


@config
class LicenseConfig(OutputConfig):
    """May a judge stand in for people? What it said, against what people said of the same items."""

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


@dataclass(frozen=True, kw_only=True)
class Label:
    """An item that people and the judge judged; evaluations correct their labels by it."""

    item: str
    human: float
    """Mean over annotators."""


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
    powered: Powered
    """The mean that people would give over all items that the judge judged."""
    labels_needed: int | None
    """Human labels in all for an interval of ± 5 points."""
    labels: tuple[Label, ...]


@dataclass(frozen=True, kw_only=True)
class License:
    judge: str
    human: str
    epsilon: float
    questions: tuple[Question, ...]
    version: int = 1

    def sentence(self) -> str:
        yes, no, untested = list[str](), list[str](), list[str]()
        for q in self.questions:
            beaten = f"{q.name} (as good as {sum(r.beaten for r in q.test.rivals)} of {len(q.test.rivals)} people)"
            if q.test.winning_rate is None:
                untested.append(q.name)
            else:
                (yes if q.test.passes else no).append(beaten)
        parts = [f"{self.judge} may stand in for people on {' and '.join(yes)}"] if yes else []
        if no and yes:
            parts.append(f"on {' and '.join(no)} it is not shown")
        elif no:
            parts.append(f"It is not shown that {self.judge} may stand in for people on {' and '.join(no)}")
        if untested:
            parts.append(f"{' and '.join(untested)}: cannot be tested, since no item was judged by two people")
        return "; ".join(parts) + "."

    def question(self, name: str) -> Question:
        by_name = {question.name: question for question in self.questions}
        if name not in by_name:
            known = ", ".join(by_name)
            raise BadInput(f"the license is about {known}, not about {name}; make one from judgments of that kind")
        return by_name[name]


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
    people, judge = defaultdict[str, list[Judgment]](list), defaultdict[str, list[Judgment]](list)
    for by_question, judgments in ((people, read_people(config.human)), (judge, read_judge(config.license))):
        for judgment in judgments:
            by_question[judgment.question].append(judgment)
    questions = tuple(compare(name, people[name], judge[name], config.epsilon) for name in people if name in judge)
    if not questions:
        asked, answered = (", ".join(sorted(side)) for side in (people, judge))
        raise BadInput(f"people judged {asked}, the judge {answered}: nothing to compare")
    license = License(judge=config.license, human=config.human.name, epsilon=config.epsilon, questions=questions)
    out = config.folder(f"license-{Path(config.license).name}")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / LICENSE, msgspec.to_builtins(license))
    return Finished(out, msgspec.to_builtins(license))


def compare(name: str, people: Sequence[Judgment], judge: Sequence[Judgment], epsilon: float) -> Question:
    verdicts = {judgment.item: judgment.value for judgment in judge}
    annotators = sorted({judgment.annotator for judgment in people})
    by_item: dict[str, dict[str, float]] = defaultdict(dict)
    for judgment in people:
        by_item[judgment.item][judgment.annotator] = judgment.value  # of two by one person, the later
    items = [item for item in by_item if item in verdicts]
    if not items:
        raise BadInput(f"{name}: no item was judged by people and by the judge; their names must be the same")
    rest = [item for item in verdicts if item not in by_item]
    cluster_of = {judgment.item: judgment.cluster or judgment.item for judgment in (*judge, *people)}
    clusters = codes([cluster_of[item] for item in (*items, *rest)])
    shared, others = clusters[: len(items)], clusters[len(items) :]
    votes = np.array([[by_item[item].get(person, np.nan) for person in annotators] for item in items])
    judged, more = (np.array([verdicts[item] for item in part]) for part in (items, rest))
    human = np.nanmean(votes, axis=1)
    values = {*votes[~np.isnan(votes)], *verdicts.values()}
    lowest, highest = min(values), max(values)
    scale: Scale = "nominal" if values <= {0.0, 0.5, 1.0} else "numeric"

    def agreement(a: Floats, b: Floats) -> Floats:
        """NaN where one of the two is."""
        distance = np.abs(a - b) / (highest - lowest or 1)
        return 1 - (np.where(distance > 0, 1.0, distance) if scale == "nominal" else distance)

    by_person = [agreement(votes[:, [n]], np.delete(votes, n, axis=1)) for n in range(len(annotators))]
    of_people = np.concatenate(by_person, axis=1)
    compared = (~np.isnan(of_people)).sum(axis=1)
    powered = prediction_powered(human, judged, more, shared, others, unit=lowest >= 0 and highest <= 1)
    return Question(
        name=name,
        scale=scale,
        items=len(items),
        annotators=len(annotators),
        test=alternative_test(votes, judged, annotators, scale=scale, epsilon=epsilon),
        agreement=average(np.nanmean(agreement(votes, judged[:, None]), axis=1), shared),
        agreement_of_people=average(np.nansum(of_people, axis=1) / np.where(compared, compared, np.nan), shared),
        inflation=average(judged - human, shared, UNBOUNDED),
        powered=powered,
        labels_needed=labels_for(powered, HALF_WIDTH) if scale == "nominal" else None,
        labels=tuple(Label(item=item, human=float(mean)) for item, mean in zip(items, human, strict=True)),
    )


# --- reading both sides ---
def read_people(path: Path) -> list[Judgment]:
    """Without annotators who failed their attention checks, as in `prb study agree`."""
    path = path / "judgements.jsonl" if path.is_dir() else path
    lines = read_items(path, _of_person)
    left_out = inattentive(line for line in lines if isinstance(line, AttentionCheck))
    said = [judgment for line in lines if isinstance(line, list) for judgment in line]
    judgments = [judgment for judgment in said if judgment.annotator not in left_out]
    if not judgments:
        raise BadInput(f"{path} holds no judgments but practice, checks and skipped items")
    return judgments


def _of_person(line: Mapping[str, Any]) -> list[Judgment] | AttentionCheck:
    """Of a study's export: the preference, and which answer was rated higher without regard to the user."""
    annotator = str(line.get("annotator") or "")
    if not annotator:
        raise ValueError("`annotator` is missing")
    if "ratings" not in line or "item" not in line:
        return [_judgment(line, annotator)]
    ratings, before = line["ratings"], line.get("before")
    if line.get("skipped") or (line.get("check") and not before):
        return []
    if line.get("check"):
        return AttentionCheck(annotator, str(before), float(ratings.get("rejected", {}).get("relevance", 0)))
    judgments = []
    if prefer := line.get("after") or before:
        judgments.append(_judgment({**line, "question": PREFERENCE, "judgment": prefer}, annotator))
    if ratings.get("chosen") and ratings.get("rejected"):
        chosen, rejected = (np.mean([*map(float, ratings[side].values())]) for side in ("chosen", "rejected"))
        higher = (float(np.sign(chosen - rejected)) + 1) / 2
        judgments.append(_judgment({**line, "question": QUALITY, "judgment": higher}, annotator))
    return judgments


def _judgment(line: Mapping[str, Any], annotator: str) -> Judgment:
    if "grades" in line:  # as `prb grade --human` reads them
        pair, answer, grades = line.get("pair"), line.get("answer"), line["grades"]
        if not isinstance(grades, list) or not grades or not all(isinstance(g, int | float) for g in grades):
            raise ValueError("`grades` must be a list of numbers")
        if not isinstance(answer, str) or not pair:
            raise ValueError("`pair` or `answer` is missing")
        return Judgment(GRADES, graded_item(pair, answer), annotator, sum(grades) / (TOP * len(grades)))
    if line.get("item") in (None, "") or line.get("judgment") in (None, ""):
        raise ValueError("`item` or `judgment` is missing")
    judgment = line["judgment"]
    try:
        value = WORDS.get(str(judgment).strip().lower())
        value = float(judgment) if value is None else value
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"`judgment` is {judgment!r}; a finite number, or one of {', '.join(WORDS)}")
    question, cluster = (str(line.get(name) or "") for name in ("question", "cluster"))
    return Judgment(question or PREFERENCE, str(line["item"]), annotator, value, cluster)


def graded_item(pair: str, answer: str) -> str:
    """The name of a graded answer: its row and its text."""
    return f"{pair} {short_digest(answer)}"


def read_judge(spec: str) -> list[Judgment]:
    """From a run folder, or from a table of judgments."""
    parsed = Spec.parse(spec)
    path, model = Path(parsed.name), parsed.options.get("model")
    if not path.is_dir():
        return read_items(path, lambda line: _judgment(line, ""))
    if (path / "grades.jsonl").is_file():
        return [
            Judgment(GRADES, graded_item(line["pair"], line["answer"]), "", float(line["score"]), str(line["cluster"]))
            for line in read_items(path / "grades.jsonl", dict)
            if line.get("score") is not None
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
