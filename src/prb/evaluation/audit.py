"""How much of a "personalized" benchmark needs the person? Floors, a user-blind learner, a reader of the rubric.

A pair needs the person only as far as somebody who knows what this person wants does better than a learner that never
sees anybody. Both are lower bounds: a better learner may find more, a better reader may read more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from prb import __version__
from prb.config import (
    DataConfig,
    EngineConfig,
    MaskingConfig,
    Name,
    OutputConfig,
    PositionalOrFlag,
    Rare,
    Seed,
    Size,
    config,
)
from prb.data.load import Dataset, Users, load
from prb.data.schema import Task
from prb.data.source import Source
from prb.data.votes import PollSource, VoteSource
from prb.evaluation.conditions import pick_donor
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.metrics import describe_dataset
from prb.evaluation.outcomes import Column, read_outcomes
from prb.evaluation.run import evaluate
from prb.models import MODELS
from prb.progress import SILENT, Progress
from prb.registry import Spec
from prb.runs import Finished, write_json
from prb.stats.bias import FOLDS, Giveaway, blind_margins, credits_of, fold_groups, giveaways, room_above, widened
from prb.stats.estimate import Floats, Ints, cancels, codes, share
from prb.stats.paired import LEVEL, difference
from prb.stats.ratings import Ratings, Share, Shares, variance_components, variance_shares
from prb.summary import DatasetSummary, short_name
from prb.text.encoders import ENCODERS, Encoder, Matrix
from prb.text.words import is_list, near_duplicates, style_rates, words
from prb.types import Difference, Estimate, Pair, Post, Rating, RewardModel, is_restraint
from prb.work import FailureConfig, refuse_failures

AUDIT = "audit.json"
FLOORS = ("length", "lexical", "embedding")
ENCODER, STRENGTH = "static", 1e-3
"""Of the learner, and of its fit: features are many and pairs few."""
VOCABULARY, SEEN = 1000, 5
"""The learner knows at most this many words, each found in at least this many answers."""
MUCH = 0.6
"""An accuracy of the learner from which on much of a benchmark does not need the user."""
SHOWN = 20
"""How many giveaways are listed."""
MARKS: dict[str, Callable[[str], bool]] = {
    "(a list)": is_list,
    "(several paragraphs)": lambda text: "\n\n" in text.strip(),
    "(bold)": lambda text: "**" in text,
    "(an exclamation mark)": lambda text: "!" in text,
    "(a question mark)": lambda text: "?" in text,
    "(a digit)": lambda text: any(c.isdigit() for c in text),
}


def marks(answer: str) -> frozenset[str]:
    """Words and marks of style in an answer."""
    return frozenset(words(answer)) | {name for name, has in MARKS.items() if has(answer)}


def answer_features(pairs: Sequence[Pair], encoder: Encoder) -> list[Matrix]:
    """Of the chosen and of the rejected answers, one row per pair: vectors, marks of style, and the frequent words of
    the set."""
    seen = Counter(mark for pair in pairs for answer in pair.answers for mark in marks(answer))
    frequent = [mark for mark, n in sorted(seen.items(), key=lambda kv: (-kv[1], kv[0])) if n >= SEEN]
    place = {mark: n for n, mark in enumerate(frequent[:VOCABULARY])}
    sides = []
    for answers in zip(*(pair.contrast for pair in pairs), strict=True):
        known = np.zeros((len(answers), len(place)), dtype=np.float32)
        style = np.zeros((len(answers), 6), dtype=np.float32)
        for n, answer in enumerate(answers):
            known[n, [place[mark] for mark in marks(answer) if mark in place]] = 1
            style[n] = [len(answer), len(answer) ** 0.5, *style_rates(answer)]
        sides.append(np.hstack([encoder.encode(answers), style, known]))
    return sides


# --- audit.json ---
class ModelAccuracy(msgspec.Struct, kw_only=True):
    model: str
    accuracy: Estimate


class Reader(ModelAccuracy, kw_only=True):
    failures: dict[str, int] = {}


class BlindLearner(msgspec.Struct, kw_only=True):
    answer: Estimate
    question_and_answer: Estimate
    groups: int
    grouped_by: str
    features: str


class LengthBalance(msgspec.Struct, kw_only=True):
    chosen_longer: Estimate
    median_ratio: float
    within_a_tenth: float


class Giveaways(msgspec.Struct, kw_only=True):
    looked_at: int = 0
    more_than_chance: int = 0
    words: list[Giveaway] = []


class Topics(msgspec.Struct, kw_only=True):
    """Cosine of question and posts: the user's own, a donor's, and the one minus the other."""

    k: int
    own: float | None
    donor: float | None
    difference: Difference


class AuditedDataset(DatasetSummary, kw_only=True, omit_defaults=True):
    mirror_rows: int
    restraint_rows: int


@dataclass(frozen=True, kw_only=True)
class VoteShares(Shares):
    """Parts of the variance of one table of votes or ratings."""

    name: str
    attribute: str | None
    """What the group of a user is."""
    attributes: int
    """How many there were to choose from."""


class AuditSummary(msgspec.Struct, kw_only=True):
    prb: str = __version__
    dataset: AuditedDataset
    floors: list[ModelAccuracy] = []
    blind: BlindLearner | None = None
    ceiling: Reader | None = None
    headroom: Difference | None = None
    giveaways: Giveaways = msgspec.field(default_factory=Giveaways)
    verdict: str
    length: LengthBalance | None = None
    """This, and what follows, is not measured for ratings."""
    votes: list[VoteShares] = []
    topics: Topics | None = None

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Accuracies from knowing nothing to knowing the rubric."""
        found = {f"floor: {floor.model}": floor.accuracy for floor in self.floors}
        if self.blind:
            found["user-blind learner: answer alone"] = self.blind.answer
            found["user-blind learner: question and answer"] = self.blind.question_and_answer
        if self.ceiling:
            found[f"reading the rubric: {self.ceiling.model}"] = self.ceiling.accuracy
        return found


@config
class AuditConfig(OutputConfig, EngineConfig, FailureConfig, MaskingConfig, DataConfig):
    """How much of a benchmark needs the user: for any set of chosen/rejected pairs."""

    dataset: PositionalOrFlag[Name] = "mirror"
    """A name, a file, a folder, or hub:owner/name."""
    task: Task = "pairs"
    """What the rows are. Of ratings, only the parts of their variance are measured."""
    ceiling: Name = "aspect-match"
    """The model that reads the rubric (condition oracle): `aspect-match?encoder=minilm`, or an LLM judge."""
    k: Rare[Size] = 10
    """How many posts the floors are shown."""
    seed: Rare[Seed] = 0
    """Fixes folds and resampling."""


def audit(
    config: AuditConfig, *, models: Mapping[str, RewardModel] | None = None, progress: Progress = SILENT
) -> Finished:
    """Run or resume; `models` may hold a reader of your own under the name `config.ceiling`."""
    of_pairs = config.task == "pairs"
    if of_pairs and config.ceiling not in (models or {}):
        MODELS.check(Spec.parse(config.ceiling))
    progress.begin(f"checking {config.dataset}")
    same = {name: getattr(config, name) for name in ("task", "split", "limit", "skip_bad")}
    dataset = load(config.dataset, **same, donors=of_pairs)
    folder = config.folder(f"audit-{Path(config.dataset).name}", dataset.fingerprint)
    about = AuditedDataset(
        **msgspec.structs.asdict(describe_dataset(dataset)),
        mirror_rows=sum(twin >= 0 for twin in dataset.index.twins),
        restraint_rows=sum(map(is_restraint, dataset.index.tiers)),
    )
    if of_pairs:
        summary = _audit_pairs(config, dataset, about, folder, models, progress)
    else:
        progress.begin("whose ratings they are")
        name, ratings = short_name(dataset.name), [item for item in dataset if isinstance(item, Rating)]
        users, groups = codes([item.user for item in ratings]), [item.groups for item in ratings]
        items, values = codes([f"{r.question}\0{r.answer}" for r in ratings]), np.array([r.rating for r in ratings])
        votes = vote_shares([VoteTable(name, users, items, values, groups)], config.seed)
        too_few = f"{name}: too few users, items, or items that several users rated, or all are equal."
        summary = AuditSummary(dataset=about, votes=votes, verdict=" ".join(_vote_sentences(votes)) or too_few)
    content = msgspec.to_builtins(summary)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDIT, content)
    return Finished(folder, content)


def _audit_pairs(
    config: AuditConfig,
    dataset: Dataset,
    about: AuditedDataset,
    folder: Path,
    models: Mapping[str, RewardModel] | None,
    progress: Progress,
) -> AuditSummary:
    encoder = ENCODERS.make(ENCODER)
    pairs = [item for item in dataset if isinstance(item, Pair)]
    rows = RowGroups(codes(dataset.index.clusters), np.array(dataset.index.twins, dtype=np.int64))
    floors = _columns(config, folder / "floors", FLOORS, "profile", models, progress)
    reader = None
    if any(pair.rubric for pair in pairs):
        reader = _columns(config, folder / "ceiling", (config.ceiling,), "oracle", models, progress)[config.ceiling]
    progress.begin("user-blind learner", total=2)
    blind, blind_credits = _learn_blind(pairs, dataset.index.clusters, rows, encoder, config, progress)
    ceiling = headroom = None
    if reader is not None:
        failures = dict(sorted(reader.failures.items()))
        accuracy = rows.share(reader.credit, reader.margin, failures)
        ceiling = Reader(model=config.ceiling, accuracy=accuracy, failures=failures)
        if blind:
            gap = difference(reader.credit, blind_credits, rows.clusters, seed=config.seed)
            headroom = room_above(gap, rows.share(blind_credits, blind_credits - 0.5))
    scores = {name: rows.share(c.credit, c.margin, c.failures) for name, c in floors.items()}
    ratios = [len(pair.chosen) / len(pair.rejected) for pair in pairs]
    sides = ((marks(pair.chosen), marks(pair.rejected)) for pair in pairs)
    tested, looked_at = giveaways(sides, dataset.index.clusters)
    real = [word for word in tested if word.p < LEVEL]
    tables = vote_tables(dataset.source)
    if tables:
        progress.begin("whose votes they are")
    votes = vote_shares(tables, config.seed)
    return AuditSummary(
        dataset=about,
        floors=[ModelAccuracy(model=name, accuracy=accuracy) for name, accuracy in scores.items()],
        blind=blind,
        ceiling=ceiling,
        headroom=headroom,
        length=LengthBalance(
            chosen_longer=scores["length"],
            median_ratio=median(ratios),
            within_a_tenth=sum(max(ratio, 1 / ratio) <= 1.1 for ratio in ratios) / len(pairs),
        ),
        giveaways=Giveaways(looked_at=looked_at, more_than_chance=len(real), words=real[:SHOWN]),
        topics=None if votes else _topics(pairs, dataset.users, encoder, rows.clusters, config),
        votes=votes,
        verdict=" ".join([*_vote_sentences(votes), verdict(short_name(dataset.name), blind, ceiling, headroom)]),
    )


class VoteTable(NamedTuple):
    name: str
    users: Ints
    items: Ints
    values: Floats
    groups: Sequence[Mapping[str, str]]
    """Of the user of each entry."""


def vote_tables(source: Source) -> list[VoteTable]:
    """All votes of a source: on items, or on two answers as 1 and −1. Lists of more answers are left out."""
    if isinstance(source, PollSource):
        tables = []
        for poll in source.polls:
            users, items = np.nonzero(~np.isnan(poll.values))
            groups = [poll.users[poll.names[user]].groups for user in users.tolist()]
            values = poll.values[users, items].astype(np.float64)
            tables.append(VoteTable(poll.name, users, items, values, groups))
        return tables
    if not isinstance(source, VoteSource):
        return []
    index, rows = source.index, []
    for item, numbers in enumerate(index.groups.values()):
        tops = sorted({index.tops[n] for n in numbers} - {0})
        if len(tops) <= 2:
            value = {0: 0.0, **dict(zip(tops, (1.0, -1.0), strict=False))}
            rows += [(n, item, value[index.tops[n]]) for n in numbers]
    users = codes([index.users[n] for n, _, _ in rows])
    items, values = np.array([item for _, item, _ in rows]), np.array([value for *_, value in rows])
    return [VoteTable(source.name, users, items, values, [{}] * len(rows))]


def vote_shares(tables: Sequence[VoteTable], seed: int) -> list[VoteShares]:
    """Parts of the variance, by table. Of several attributes of users, the one that explains most is the group."""
    results = []
    for table in tables:
        grouped: dict[str, tuple[float, Ratings]] = {}
        plain = Ratings(table.users, table.items, table.values)
        for attribute in sorted({key for row in table.groups for key in row}):
            labels = codes([row.get(attribute, "") for row in table.groups])
            known = np.array([attribute in row for row in table.groups])
            ratings = Ratings(table.users, table.items, table.values, np.where(known, labels, -1))
            explained = variance_components(ratings)["group"]
            if np.isfinite(explained):
                grouped[attribute] = explained, ratings
        best = max(grouped, key=lambda name: grouped[name][0], default=None)
        shares = variance_shares(grouped[best][1] if best else plain, seed)
        if shares:
            results.append(VoteShares(name=table.name, attribute=best, attributes=len(grouped), **vars(shares)))
    return results


def check_failures(result: Mapping[str, Any], max_failed: float) -> None:
    """Raise `TooManyFailures` if the reader of the rubric failed on more than this share of the rows that have one."""
    if reading := result["ceiling"]:
        failed, n = reading["accuracy"]["failed"], reading["accuracy"]["n"]
        refuse_failures([(reading["model"], failed, n + failed, reading["failures"])], max_failed)


def _columns(
    config: AuditConfig,
    folder: Path,
    specs: Sequence[str],
    condition: Literal["profile", "oracle"],
    models: Mapping[str, RewardModel] | None,
    progress: Progress,
) -> dict[str, Column]:
    """The outcomes of each model in dataset order: an ordinary run, in a folder of its own."""
    shared = ("dataset", "split", "limit", "k", "seed", "skip_bad", "mask_pii", "cache", "fresh", "engine")
    same = {name: getattr(config, name) for name in shared}
    run = EvaluateConfig(model=tuple(specs), condition=(condition,), out=folder, **same)
    evaluate(run, models=models, progress=progress)
    outcomes = read_outcomes(folder)
    return {spec: outcomes.of[spec, condition] for spec in specs}


class RowGroups(NamedTuple):
    """Which rows belong together."""

    clusters: Ints
    twins: Ints

    def share(self, credits: Floats, margins: Floats, failures: Mapping[str, int] | None = None) -> Estimate:
        known, failed = ~np.isnan(credits), sum((failures or {}).values())
        return share(credits[known], self.clusters[known], failed=failed, exact=cancels(margins, self.twins))


def _learn_blind(
    pairs: Sequence[Pair],
    clusters: Sequence[str],
    rows: RowGroups,
    encoder: Encoder,
    config: AuditConfig,
    progress: Progress,
) -> tuple[BlindLearner | None, Floats]:
    """How well one can predict who is chosen without the user, and the credits with question and answer.

    `None` if there are too few independent questions to learn from.
    """
    questions = encoder.encode([pair.question for pair in pairs])
    asked = {pair.question: n for n, pair in enumerate(pairs)}
    names = list(asked)
    near = [(names[i], names[j]) for i, j in near_duplicates(questions[list(asked.values())])]
    folds = fold_groups(clusters, [pair.question for pair in pairs], near, least=2 * FOLDS)
    if folds is None:
        return None, np.array([])
    groups, grouped_by = folds
    answers = answer_features(pairs, encoder)
    with_question = []
    for of_side in answers:  # what answer and question have in common: the question alone would cancel
        shared = of_side[:, : questions.shape[1]] * questions
        with_question.append(np.hstack([of_side, shared, shared.sum(axis=1, keepdims=True)]))
    credits, estimates = [], []
    for chosen, rejected in (with_question, answers):
        margins = blind_margins(chosen, rejected, groups, strength=STRENGTH, seed=config.seed)
        assert margins is not None
        values = credits_of(margins)
        # credits stand in for margins, whose last digits depend on the order of a matrix product
        estimates.append(widened(rows.share(values, values - 0.5)))
        credits.append(values)
        progress.advance()
    learner = BlindLearner(
        answer=estimates[1],
        question_and_answer=estimates[0],
        groups=len(set(groups)),
        grouped_by=grouped_by,
        features=f"{encoder.fingerprint}, words, style",
    )
    return learner, credits[0]


def _topics(
    pairs: Sequence[Pair], users: Users, encoder: Encoder, clusters: Ints, config: AuditConfig
) -> Topics | None:
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

    users_own = np.array([closeness(pair, pair.profile) for pair in pairs])
    donors = [pick_donor(pair, users, config.seed) for pair in pairs]
    donated = [closeness(p, users.history(d).posts if d else ()) for p, d in zip(pairs, donors, strict=True)]
    donors_own = np.array(donated)
    both = ~np.isnan(users_own + donors_own)
    own, donor = [float(values[both].mean()) if both.any() else None for values in (users_own, donors_own)]
    estimate = difference(users_own, donors_own, clusters, seed=config.seed)
    return Topics(k=config.k, own=own, donor=donor, difference=estimate)


def _vote_sentences(votes: Sequence[VoteShares]) -> Iterator[str]:
    """What the largest table of votes shows, and which others show individual taste."""
    if not votes:
        return
    largest = max(votes, key=lambda table: table.votes)
    parts = f"{_percent(largest.shared)} is shared taste, {_percent(largest.leaning)} a user's general leaning"
    if largest.group:
        parts += f", {_percent(largest.group)} their {largest.attribute}"
    bound = ("", "") if largest.repeated else ("at least ", "at most ")
    yield (
        f"{largest.name}: of the variance of {largest.votes:,} votes by {largest.users:,} users on "
        f"{largest.items:,} items, {parts}, {bound[0]}{_percent(largest.individual)} individual, and "
        f"{bound[1]}{_percent(largest.noise)} noise."
    )
    smallest = 100 * largest.individual.detectable
    yield f"With {largest.users:,} users, an individual share below {smallest:.1f} % cannot be shown reliably."
    if len(votes) > 1:
        shown = sum(table.individual.low > 0 for table in votes)
        yield f"Individual taste is shown in {shown} of {len(votes)} tables."


def verdict(name: str, blind: BlindLearner | None, ceiling: Reader | None, headroom: Difference | None) -> str:
    """Whether pairs need the user, in plain words."""
    if blind is None:
        return f"{name}: too few independent questions to fit a user-blind learner."
    learner = blind.question_and_answer
    blind_part = f"{name}: a user-blind learner reaches {_percent(learner)}"
    if learner.low is not None and learner.low > 0.5:
        blind_part += f", so {'much' if learner.low > MUCH else 'some'} of it does not need the user"
    if headroom is None or ceiling is None:
        return f"{blind_part}. The user's contribution cannot be estimated: there is no rubric to read."
    if headroom.value is None:
        return f"{blind_part}. What the user adds is unknown: {ceiling.model} could read no rubric."
    if headroom.low is None or headroom.high is None:
        return f"{blind_part}. What the user adds is unknown: {headroom.n} pairs of one user were read."
    value, low, high = (f"{100 * part:+.1f}" for part in (headroom.value, headroom.low, headroom.high))
    points = f"{'at most ' if headroom.value > 0 else ''}{value} points [{low}, {high}]"
    reader = f"Reading the rubric ({ceiling.model}) gets {_percent(ceiling.accuracy)}"
    meaning = "so it is not shown that anything depends on the user"
    if headroom.low > 0:
        meaning = "which depend on the user unless a better learner finds them without"
    elif headroom.high < 0:
        meaning = "so this reader of the rubric is worse than a user-blind learner"
    return f"{blind_part}. {reader}: {points}, {meaning}."


def _percent(estimate: Estimate | Share) -> str:
    value, low, high = (100 * (number or 0) for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"
