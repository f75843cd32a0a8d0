"""How much of a "personalized" benchmark needs the person? Floors, a user-blind learner, a reader of the rubric.

A pair needs the person only as far as somebody who knows what this person wants does better than a learner that never
sees anybody. Both are lower bounds: a better learner may find more, a better reader may read more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from prb import __version__
from prb.config import DataConfig, Donors, MaskingConfig, Name, OutputConfig, PositionalOrFlag, Seed, Size, config
from prb.data.index import Users
from prb.data.load import Dataset, load
from prb.evaluation.conditions import pick_donor
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.outcomes import Column, read_outcomes
from prb.evaluation.run import evaluate
from prb.evaluation.summary import IMPOSSIBLE
from prb.failures import FailureConfig, refuse_failures, share_problem
from prb.models import MODELS
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, write_sealed
from prb.stats.blind import blind_margins, credits_of, fold_groups, giveaways
from prb.stats.estimate import Floats, Ints, cancels, codes, share
from prb.stats.paired import difference
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.text.words import LEAK_WORDS, SharedWording, hidden_texts, is_list, near_duplicates, sentences, words
from prb.types import Pair, Post, RewardModel

VOCABULARY, SEEN = 1000, 5
"""The learner knows at most so many words, each in at least so many answers."""
MARKS: dict[str, Callable[[str], bool]] = {
    "(a list)": is_list,
    "(several paragraphs)": lambda text: "\n\n" in text.strip(),
    "(bold)": lambda text: "**" in text,
    "(an exclamation mark)": lambda text: "!" in text,
    "(a question mark)": lambda text: "?" in text,
    "(a digit)": lambda text: any(c.isdigit() for c in text),
}
"""Things about an answer's look, tested beside its words."""


def marks(answer: str) -> frozenset[str]:
    """Words and marks of style that stand in an answer."""
    return frozenset(words(answer)) | {name for name, has in MARKS.items() if has(answer)}


class Features:
    """Of answers, alone or beside their question: static vectors, marks of style, and the set's frequent words."""

    def __init__(self, pairs: Sequence[Pair], encoder: Encoder) -> None:
        self._encoder = encoder
        self.questions = encoder.encode([pair.question for pair in pairs])
        seen = Counter(mark for pair in pairs for answer in pair.answers for mark in marks(answer))
        frequent = [mark for mark, n in sorted(seen.items(), key=lambda kv: (-kv[1], kv[0])) if n >= SEEN]
        self._place = {mark: n for n, mark in enumerate(frequent[:VOCABULARY])}
        self._chosen, self._rejected = (self._alone([pair.contrast[side] for pair in pairs]) for side in (0, 1))

    def alone(self) -> tuple[Matrix, Matrix]:
        """Chosen and rejected, a row a pair."""
        return self._chosen, self._rejected

    def beside_question(self) -> tuple[Matrix, Matrix]:
        """With what question and answer have in common, by dimension and in all: a question alone would cancel."""
        return self._beside(self._chosen), self._beside(self._rejected)

    def _beside(self, side: Matrix) -> Matrix:
        shared = side[:, : self.questions.shape[1]] * self.questions
        return np.hstack([side, shared, shared.sum(axis=1, keepdims=True)])

    def _alone(self, answers: Sequence[str]) -> Matrix:
        known = np.zeros((len(answers), len(self._place)), dtype=np.float32)
        for n, answer in enumerate(answers):
            known[n, [self._place[mark] for mark in marks(answer) if mark in self._place]] = 1
        style = np.array([_style(answer) for answer in answers], dtype=np.float32)
        return np.hstack([self._encoder.encode(answers), style, known])


def _style(text: str) -> list[float]:
    found = words(text)
    count = max(len(found), 1)
    letters = sum(map(len, found)) / count
    return [
        len(text),
        len(text) ** 0.5,
        len(sentences(text)) / count,
        text.count(",") / count,
        len(set(found)) / count,
        letters,
    ]


def length_balance(pairs: Sequence[Pair]) -> dict[str, float]:
    ratios = [len(pair.chosen) / len(pair.rejected) for pair in pairs]
    alike_long = [max(ratio, 1 / ratio) <= 1.1 for ratio in ratios]
    return {"median_ratio": median(ratios), "within_a_tenth": sum(alike_long) / len(pairs)}


def repeats(pairs: Sequence[Pair]) -> dict[str, int]:
    """Answers that stand under several questions, questions that several users ask, and rows that are there twice."""
    users: dict[str, set[str]] = defaultdict(set)
    questions: dict[str, set[str]] = defaultdict(set)
    sides: dict[str, set[int]] = defaultdict(set)
    rows = set()
    for pair in pairs:
        # a row without a user is its own user, which would tell every copy from its original
        rows.add((pair.user if pair.user != pair.id else None, pair.question, *pair.answers))
        users[pair.question].add(pair.user)
        for side, answer in enumerate(pair.contrast):
            questions[answer].add(pair.question)
            sides[answer].add(side)
    shared = {answer for answer, asked in questions.items() if len(asked) > 1}
    return {
        "answers": len(questions),
        "under_several_questions": len(shared),
        "of_these_always_on_one_side": sum(len(sides[answer]) == 1 for answer in shared),
        "rows_with_such_an_answer": sum(bool(shared & set(pair.answers)) for pair in pairs),
        "rows_with_a_question_of_several_users": sum(len(users[pair.question]) > 1 for pair in pairs),
        "rows_twice": len(pairs) - len(rows),
    }


def leaks(pairs: Sequence[Pair]) -> dict[str, int]:
    """Rows in which a model can read what is hidden: a run of words of rubric or narrative, and where it stands."""
    counted = Counter(place for pair in pairs for place in _leaking(pair))
    return {"words": LEAK_WORDS, **{place: counted[place] for place in ("question", "posts", "chosen", "rejected")}}


def _leaking(pair: Pair) -> list[str]:
    hidden = SharedWording(hidden_texts(pair.narrative, pair.rubric))
    seen: dict[str, Sequence[str]] = {
        "question": [pair.question],
        "posts": [post.text for post in pair.profile],
        "chosen": [pair.chosen],
        "rejected": [pair.rejected],
    }
    return [place for place, texts in seen.items() if any(map(hidden.first_in, texts))]


def between_splits(here: Sequence[Pair], there: Sequence[Pair], encoder: Encoder) -> dict[str, Any]:
    """What this split has in common with the others."""
    asked = list(dict.fromkeys(pair.question for pair in here))
    known = [question for question in dict.fromkeys(pair.question for pair in there) if question not in asked]
    rows = encoder.encode([*known, *asked])
    near = {asked[i - len(known)] for i, j in near_duplicates(rows) if i >= len(known) > j}
    same = set(asked) & {pair.question for pair in there}
    answers = {answer for pair in there for answer in pair.answers}
    return {
        "rows_elsewhere": len(there),
        "questions": len(asked),
        "questions_elsewhere_too": len(same),
        "questions_nearly_elsewhere": len(near - same),
        "answers_elsewhere_too": len({answer for pair in here for answer in pair.answers} & answers),
        "people_elsewhere_too": len({pair.user for pair in here} & {pair.user for pair in there}),
    }


FLOORS = ("length", "lexical", "embedding")
STRENGTH = 1e-3
"""Of the learner's fit: its features are many and its pairs few."""
SHOWN = 20
LEVEL = 0.05
MUCH = 0.6
AUDIT = "audit.json"


@config
class AuditConfig(OutputConfig, FailureConfig, MaskingConfig, DataConfig):
    """How much of a benchmark needs the user: for any set of chosen/rejected pairs."""

    verb: ClassVar[str] = "audit"
    presentation: ClassVar[frozenset[str]] = OutputConfig.presentation | FailureConfig.presentation

    dataset: PositionalOrFlag[Name] = "mirror"
    """A name, a .jsonl or .parquet file, a folder, or hub:owner/name."""
    ceiling: Name = "aspect-match"
    """The model that reads the rubric (condition oracle): `aspect-match?encoder=minilm`, or an LLM judge."""
    encoder: Name = "static"
    """Encoder of the user-blind learner."""
    k: Size = 10
    """How many posts the floors are shown."""
    folds: Annotated[int, Field(ge=2)] = 5
    """Parts of the learner's cross-validation."""
    seed: Seed = 0
    """Fixes folds and resampling."""


def audit(
    config: AuditConfig, *, models: Mapping[str, RewardModel] | None = None, progress: Progress = SILENT
) -> Finished:
    """Run or resume; `models` may hold a reader of your own under the name `config.ceiling`."""
    if config.ceiling not in (models or {}):
        MODELS.check(Spec.parse(config.ceiling))
    encoder = ENCODERS.make(config.encoder)
    folder = config.out or _default_folder(config)
    progress.begin(f"checking {config.dataset}")
    dataset = load(config.dataset, split=config.split, limit=config.limit, skip_bad=config.skip_bad, donors=True)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    rows = RowGroups(codes(dataset.index.clusters), np.array(dataset.index.twins, dtype=np.int64))
    floors = _columns(config, folder / "floors", FLOORS, "profile", models, progress)
    readable = any(pair.rubric for pair in pairs)
    ceiling = None
    if readable:
        readers = _columns(config, folder / "ceiling", (config.ceiling,), "oracle", models, progress)
        ceiling = readers[config.ceiling]
    progress.begin("learning without the person", total=2)
    blind = _blind(pairs, dataset.index.clusters, encoder, config, progress)
    reading = headroom = None
    if ceiling is not None:
        accuracy = rows.share(ceiling.credit, ceiling.margin)
        reading = {"model": config.ceiling, "accuracy": accuracy, "failures": dict(sorted(ceiling.failures.items()))}
        if blind is not None:
            headroom = difference(ceiling.credit, blind.beside_question, rows.clusters, seed=config.seed).as_dict()
    scores = {name: rows.share(column.credit, column.margin) for name, column in floors.items()}
    result = {
        "prb": __version__,
        "dataset": _about(dataset),
        "floors": [{"model": name, "accuracy": accuracy} for name, accuracy in scores.items()],
        "blind": blind and _learned(blind, rows),
        "ceiling": reading,
        "headroom": headroom,
        "length": {"chosen_longer": scores["length"], **length_balance(pairs)},
        "giveaways": _giveaways(pairs, dataset.index.clusters),
        "repeats": repeats(pairs),
        "leaks": leaks(pairs),
        "topics": _topics(pairs, dataset.users, encoder, rows.clusters, config),
        "splits": _splits(dataset, pairs, encoder),
    }
    result["verdict"] = verdict(result)
    write_sealed(folder / AUDIT, result)
    return Finished(folder, result)


def check_failures(result: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if the reader of the rubric failed on more than this share of the rows that have one."""
    reading = result["ceiling"]
    if reading:
        reasons = {reason: n for reason, n in reading["failures"].items() if reason not in IMPOSSIBLE}
        failed = sum(reasons.values())
        problem = share_problem(reading["model"], failed, reading["accuracy"]["n"] + failed, reasons, max_failed)
        refuse_failures([problem], max_failed)


def _evaluation(config: AuditConfig, models: Sequence[str], condition: Literal["profile", "oracle"]) -> EvaluateConfig:
    names = ("dataset", "split", "limit", "k", "seed", "skip_bad", "mask_pii", "max_fatal", "retry_failed")
    same = {name: getattr(config, name) for name in names}
    return EvaluateConfig(model=tuple(models), condition=(condition,), **same)


def _default_folder(config: AuditConfig) -> Path:
    folder = _evaluation(config, (*FLOORS, config.ceiling), "profile").folder(Path(config.dataset).name)
    return folder.with_name(f"audit-{folder.name}")


def _columns(
    config: AuditConfig,
    folder: Path,
    specs: Sequence[str],
    condition: Literal["profile", "oracle"],
    models: Mapping[str, RewardModel] | None,
    progress: Progress,
) -> dict[str, Column]:
    """The outcomes of each model in dataset order: an ordinary run, in a folder of its own."""
    evaluate(replace(_evaluation(config, specs, condition), out=folder), models=models, progress=progress)
    outcomes = read_outcomes(folder)
    return {spec: outcomes.of[spec, condition] for spec in specs}


class RowGroups(NamedTuple):
    """Which rows belong together."""

    clusters: Ints
    twins: Ints

    def share(self, credits: Floats, margins: Floats) -> dict[str, Any]:
        known = ~np.isnan(credits)
        exact = cancels(margins, self.twins)
        return share(credits[known], self.clusters[known], failed=int((~known).sum()), exact=exact).as_dict()


@dataclass(frozen=True)
class Blind:
    """Credits of the two learners, and how their folds were cut."""

    beside_question: Floats
    alone: Floats
    groups: int
    grouped_by: str
    features: str


def _blind(
    pairs: Sequence[Pair], clusters: Sequence[str], encoder: Encoder, config: AuditConfig, progress: Progress
) -> Blind | None:
    features = Features(pairs, encoder)
    asked = {pair.question: n for n, pair in enumerate(pairs)}
    names = list(asked)
    near = [(names[i], names[j]) for i, j in near_duplicates(features.questions[list(asked.values())])]
    cut = fold_groups(clusters, [pair.question for pair in pairs], near, least=2 * config.folds)
    if cut is None:
        return None
    groups, grouped_by = cut

    def learned(chosen: Matrix, rejected: Matrix) -> Floats:
        margins = blind_margins(chosen, rejected, groups, folds=config.folds, strength=STRENGTH, seed=config.seed)
        assert margins is not None
        progress.advance()
        return np.array(credits_of(margins))

    return Blind(
        beside_question=learned(*features.beside_question()),
        alone=learned(*features.alone()),
        groups=len(set(groups)),
        grouped_by=grouped_by,
        features=f"{encoder.fingerprint}, words, style",
    )


def _learned(blind: Blind, rows: RowGroups) -> dict[str, Any]:
    # credits stand in for margins, whose last digits depend on the order of a matrix product: the learner knows nobody
    return {
        "question_and_answer": rows.share(blind.beside_question, blind.beside_question - 0.5),
        "answer": rows.share(blind.alone, blind.alone - 0.5),
        "groups": blind.groups,
        "grouped_by": blind.grouped_by,
        "features": blind.features,
    }


def _about(dataset: Dataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "split": dataset.split,
        "rows": len(dataset),
        "users": len(set(dataset.index.users)),
        "clusters": len(set(dataset.index.clusters)),
        "clustered_by": dataset.index.clustered_by,
        "mirror_rows": sum(twin >= 0 for twin in dataset.index.twins),
        "fingerprint": dataset.fingerprint,
        "left_out": dataset.left_out,
    }


def _giveaways(pairs: Sequence[Pair], clusters: Sequence[str]) -> dict[str, Any]:
    found, looked_at = giveaways(((marks(pair.chosen), marks(pair.rejected)) for pair in pairs), clusters)
    real = [word for word in found if word.p < LEVEL]
    return {"looked_at": looked_at, "more_than_chance": len(real), "words": [asdict(word) for word in real[:SHOWN]]}


def _topics(
    pairs: Sequence[Pair], users: Users, encoder: Encoder, clusters: Ints, config: AuditConfig
) -> dict[str, Any] | None:
    """How close the k closest posts are to the question, as a mean cosine: the user's own, minus a donor's.

    As far as a donor's posts are further from the question, `profile` beats `shuffled` by topic and not by person.
    """
    if config.k == 0:
        return None

    def closeness(pair: Pair, posts: Sequence[Post]) -> float:
        if not posts:
            return np.nan
        vectors = encoder.encode([pair.question, *(post.text for post in posts)])
        return float(np.sort(vectors[1:] @ vectors[0])[-config.k :].mean())

    own = np.array([closeness(pair, pair.profile) for pair in pairs])
    topics: dict[str, Any] = {"k": config.k}
    for kind in get_args(Donors):
        donors = [pick_donor(pair, users, config.seed, kind) for pair in pairs]
        lent = np.array([closeness(p, users.history(d).posts if d else ()) for p, d in zip(pairs, donors, strict=True)])
        both = ~np.isnan(own + lent)
        means = {"own": float(own[both].mean()), "donor": float(lent[both].mean())} if both.any() else {}
        topics[kind] = {"own": None, "donor": None, **means}
        topics[kind]["difference"] = difference(own, lent, clusters, seed=config.seed).as_dict()
    return topics


def _splits(dataset: Dataset, pairs: Sequence[Pair], encoder: Encoder) -> dict[str, Any] | None:
    """`None` where there is only one split."""
    rows = (row.data for row in dataset.source.rows() if isinstance(row.data, dict))
    others = sorted({str(row["split"]) for row in rows if row.get("split")} - {dataset.split})
    if dataset.split is None or not others:
        return None
    sets = [load(dataset.source, split=name, skip_bad=True) for name in others]
    return between_splits(pairs, [item for other in sets for item in other if isinstance(item, Pair)], encoder)


def verdict(result: Mapping[str, Any]) -> str:
    """In plain words."""
    blind, headroom, name = result["blind"], result["headroom"], result["dataset"]["name"]
    if blind is None:
        return f"{name}: too few independent questions to tell how far one gets without the person."
    learner = blind["question_and_answer"]
    said = f"{name}: a learner that never sees the person gets {_percent(learner)}"
    if learner["low"] > 0.5:
        said += f", so {'much' if learner['low'] > MUCH else 'some'} of it can be had without the person"
    if headroom is None:
        return f"{said}. Nobody can say what the person adds: there is no rubric to read."
    if not headroom["n"]:
        return f"{said}. What the person adds cannot be told: {result['ceiling']['model']} could read no rubric."
    if headroom["low"] is None:
        return f"{said}. What the person adds cannot be told: {headroom['n']} pairs of one person were read."
    points = f"{100 * headroom['value']:+.1f} points [{100 * headroom['low']:+.1f}, {100 * headroom['high']:+.1f}]"
    reader = f"Reading the rubric ({result['ceiling']['model']}) gets {_percent(result['ceiling']['accuracy'])}"
    return f"{said}. {reader}: {points}, {_meaning(headroom)}."


def _percent(estimate: Mapping[str, Any]) -> str:
    return f"{100 * estimate['value']:.1f} % [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def _meaning(headroom: Mapping[str, Any]) -> str:
    if headroom["low"] > 0:
        return "which only the person decides"
    if headroom["high"] < 0:
        return "so this reader of the rubric knows less than a learner that knows nobody"
    return "so nothing that only the person decides could be shown"
