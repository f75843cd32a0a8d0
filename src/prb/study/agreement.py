"""Judgments → a summary: agreement, preference, equal quality, reliability, items to drop; and its verdict in plain
sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from prb.errors import BadInput, GateFailed, unknown
from prb.hashing import draw
from prb.runs import read_lines, write_json
from prb.stats.agreement import (
    AttentionCheck,
    Coefficient,
    Parity,
    attention,
    dawid_skene,
    equivalence,
    fleiss_kappa,
    gwet_ac1,
    inattentive,
    krippendorff_alpha,
    mean_size,
    with_interval,
)
from prb.stats.estimate import Floats, Ints, codes, share
from prb.study.config import CRITERIA, AgreeConfig, Judgment
from prb.types import Estimate

REQUIREMENTS = ("preference", "parity", "personal", "agreement")
"""What `--require` can name."""
DIFFERENCES = ("preference", "quality", "unclear")
ANSWERS = ("chosen", "rejected")
PREFERENCES = (*ANSWERS, "neither")
CREDIT = {"chosen": 1.0, "neither": 0.5, "rejected": 0.0}
RATINGS = range(1, 6)
POOR = 2.5
"""An answer with a lower mean rating is poor."""
GOOD_ALPHA = 0.667
"""Below this, Krippendorff (2004, Content Analysis) draws no conclusions at all."""
NAMED_ITEMS = 8


# --- the result ---
class StudyCounts(Struct, frozen=True, kw_only=True):
    items: int
    annotators: int
    judgements: int
    finished: int
    skipped: int
    revised: int
    rubric: bool = True
    """Whether annotators were shown rubrics."""
    left_out: list[str]
    """Annotators who failed their attention checks."""


class QuestionAgreement(Struct, frozen=True, omit_defaults=True):
    """Of ratings there is only Krippendorff's α, for ordinal values."""

    alpha: Coefficient
    fleiss: Coefficient | None = None
    ac1: Coefficient | None = None


class Preference(Struct, frozen=True):
    """How often the labeled answer is preferred, before and after the rubric was shown."""

    before: Estimate
    after: Estimate


class CriterionQuality(Struct, frozen=True, kw_only=True):
    parity: Parity | None
    """Of unmirrored items: chosen minus rejected."""
    mirror_size: Coefficient | None
    """Of mirror twins, where signed differences would cancel."""
    means: dict[str, float | None]


class Quality(Struct, frozen=True, kw_only=True):
    margin: float
    correctness: CriterionQuality
    relevance: CriterionQuality
    helpfulness: CriterionQuality


class PersonalShare(Struct, frozen=True):
    items: Estimate
    """Those whose difference a majority calls personal preference."""
    judgements: dict[str, int]


class AnnotatorSummary(Struct, frozen=True, kw_only=True):
    annotator: str
    judgements: int
    reliability: float
    with_label: float | None
    """How often they prefer the labeled answer."""
    checks: tuple[int, int]


class ItemSummary(Struct, frozen=True, kw_only=True):
    item: str
    n: int
    before: dict[str, int]
    after: dict[str, int]
    difference: dict[str, int]
    means: dict[str, float | None]
    reasons: list[str]
    """To drop the item; empty if annotators confirm it, or if fewer than two finished it."""


class AgreementSummary(Struct, frozen=True, kw_only=True):
    """The content of `agreement.json`."""

    counts: StudyCounts
    agreement: dict[str, QuestionAgreement]
    preference: Preference
    quality: Quality
    personal: PersonalShare
    annotators: list[AnnotatorSummary]
    ratings: dict[str, dict[str, list[int]]]
    """Per criterion and answer, how often each rating from 1 to 5 was given."""
    items: list[ItemSummary]
    verdicts: dict[str, bool]
    """By requirement."""

    @property
    def drop(self) -> list[ItemSummary]:
        return [item for item in self.items if item.reasons]


def agree(config: AgreeConfig) -> AgreementSummary:
    """The summary of a study; raises `GateFailed`, with the summary attached, if a requirement does not hold."""
    required = [name.strip() for name in config.require.split(",") if name.strip()]
    for name in required:
        if name not in REQUIREMENTS:
            raise unknown("requirement", name, REQUIREMENTS)
    summary = summarize(read_judgments(config.study), margin=config.margin)
    if config.out:
        write_json(config.out, msgspec.to_builtins(summary))
    says = claims(summary)
    if failed := [f"{name} does not hold: {says[name]}" for name in required if not summary.verdicts[name]]:
        error = GateFailed("; ".join(failed))
        error.result = summary
        raise error
    return summary


def read_judgments(where: str) -> list[Judgment]:
    """From a study, or from the file that an export wrote."""
    if where.endswith(".jsonl"):
        if not Path(where).is_file():
            raise BadInput(f"{where} does not exist")
        try:
            return msgspec.convert(list(read_lines(Path(where))), list[Judgment])
        except msgspec.ValidationError:
            text = "does not hold judgments; `prb study export` writes them to judgements.jsonl"
            raise BadInput(f"{where} {text}") from None
    from prb.study.database import open_study, study_row
    from prb.study.judgments import judgments

    with closing(open_study(where)) as database, database.read() as connection:
        if study_row(connection).kind != "validate":
            raise BadInput("agreement needs a study of kind validate; `prb study export` writes what this one holds")
        return judgments(connection)


def summarize(rows: Sequence[Judgment], *, margin: float = 0.5, draws: int = 1000) -> AgreementSummary:
    """Everything `prb study agree` reports, as data."""
    checks = attention(attention_checks(rows))
    left_out = inattentive(attention_checks(rows))
    kept = [r for r in rows if not r.check and not r.skipped and r.annotator not in left_out]
    unrevised = [r for r in kept if not r.revised]
    agreement = agreement_by_question(kept, unrevised, draws)
    preference = Preference(labeled_share(unrevised, "before"), labeled_share(kept, "after"))
    quality, alpha = equal_quality(unrevised, margin), agreement["after"].alpha.value
    by_item = defaultdict[str, list[Judgment]](list)
    for row in kept:
        by_item[row.item].append(row)
    personal = personal_share(by_item.values())
    return AgreementSummary(
        counts=StudyCounts(
            items=len(by_item),
            annotators=len({r.annotator for r in kept}),
            judgements=len(kept),
            finished=sum(r.after is not None for r in kept),
            skipped=sum(bool(r.skipped) for r in rows if not r.check),
            revised=len(kept) - len(unrevised),
            rubric=not kept or any(r.rubric for r in kept),
            left_out=left_out,
        ),
        agreement=agreement,
        preference=preference,
        quality=quality,
        personal=personal,
        annotators=annotator_summaries(kept, checks),
        ratings={
            criterion: {
                answer: [sum(r.ratings[answer][criterion] == n for r in unrevised if r.ratings) for n in RATINGS]
                for answer in ANSWERS
            }
            for criterion in CRITERIA
        },
        items=[item_summary(item, votes) for item, votes in by_item.items()],
        verdicts={
            "parity": parity_claim(quality)[0],
            "preference": (preference.after.low or 0) > 0.5,
            "personal": (personal.items.low or 0) > 0.5,
            "agreement": alpha is not None and alpha >= GOOD_ALPHA,
        },
    )


def attention_checks(rows: Iterable[Judgment]) -> Iterator[AttentionCheck]:
    for row in rows:
        if row.check and row.before and not row.skipped:
            yield AttentionCheck(row.annotator, row.before, row.ratings["rejected"]["relevance"])


Vote = tuple[Judgment, str, int]
"""A judgment, what it is about, and the number of what it says."""


def votes_matrix(votes: Sequence[Vote]) -> tuple[Ints, Ints, list[str]]:
    """Units × annotators, −1 where there is no vote; the group of each unit; the annotators."""
    group = {unit: row.group for row, unit, _ in votes}
    annotators = sorted({row.annotator for row, *_ in votes})
    matrix: Ints = np.full((len(group), len(annotators)), -1, dtype=np.int64)
    line, column = {unit: n for n, unit in enumerate(group)}, {name: n for n, name in enumerate(annotators)}
    for row, unit, value in votes:
        matrix[line[unit], column[row.annotator]] = value
    return matrix, codes(list(group.values())), annotators


def preference_votes(rows: Sequence[Judgment], when: str) -> list[Vote]:
    """0, 1 or 2 (neither). A hash of the item decides which answer is 0: if it were always the labeled one,
    everybody choosing the labeled answer would count as agreement by chance."""
    votes = []
    for row in rows:
        if preferred := getattr(row, when):
            code = (draw(0, "label", row.item) + (preferred == "rejected")) % 2
            votes.append((row, row.item, 2 if preferred == "neither" else code))
    return votes


def agreement_by_question(
    kept: Sequence[Judgment], unrevised: Sequence[Judgment], draws: int
) -> dict[str, QuestionAgreement]:
    agreement = {}
    for name, votes in (
        ("before", preference_votes(unrevised, "before")),
        ("after", preference_votes(kept, "after")),
        ("difference", [(r, r.item, DIFFERENCES.index(r.difference)) for r in kept if r.difference]),
    ):
        matrix, groups, _ = votes_matrix(votes)
        alpha, fleiss, ac1 = (
            with_interval(partial(coefficient, values=3), matrix, groups, draws=draws)
            for coefficient in (krippendorff_alpha, fleiss_kappa, gwet_ac1)
        )
        agreement[name] = QuestionAgreement(alpha, fleiss, ac1)
    ordinal = partial(krippendorff_alpha, values=len(RATINGS), ordinal=True)
    for criterion in CRITERIA:
        rated = [(r, f"{r.item} {a}", given[criterion] - 1) for r in unrevised for a, given in r.ratings.items()]
        matrix, groups, _ = votes_matrix(rated)
        agreement[criterion] = QuestionAgreement(with_interval(ordinal, matrix, groups, draws=draws))
    return agreement


def labeled_share(rows: Sequence[Judgment], when: str) -> Estimate:
    """How often the labeled answer is preferred; neither counts half."""
    voted = [r for r in rows if getattr(r, when) is not None]
    credit: Floats = np.array([CREDIT[getattr(r, when)] for r in voted], dtype=np.float64)
    return share(credit, codes([r.cluster for r in voted]))


def equal_quality(rows: Sequence[Judgment], margin: float) -> Quality:
    rated = [r for r in rows if r.ratings]
    quality = {}
    for criterion in CRITERIA:
        # one mean difference per item; of twins, of one answer text against the other
        single, mirrored = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for r in rated:
            difference = r.ratings["chosen"][criterion] - r.ratings["rejected"][criterion]
            if not r.mirror:
                single[r.item].append(difference)
            else:  # a group is named after one of its twins
                mirrored[r.group].append(difference if r.item == r.group else -difference)
        signed = np.array([np.mean(each) for each in single.values()], dtype=np.float64)
        size = mean_size(np.array([np.mean(each) for each in mirrored.values()], dtype=np.float64))
        quality[criterion] = CriterionQuality(
            parity=equivalence(signed, margin) if len(signed) else None,
            mirror_size=size if size.n else None,
            means={a: _mean([r.ratings[a][criterion] for r in rated]) for a in ANSWERS},
        )
    return Quality(margin=margin, **quality)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def majority(values: Sequence[str]) -> str | None:
    """The value that more than half of them have."""
    top = Counter(values).most_common(1)
    return top[0][0] if top and 2 * top[0][1] > len(values) else None


def personal_share(items: Iterable[Sequence[Judgment]]) -> PersonalShare:
    """From the judgments of each item."""
    is_personal, clusters, counts = list[bool](), list[str](), Counter[str]()
    for votes in items:
        if differences := [r.difference for r in votes if r.difference]:
            is_personal.append(majority(differences) == "preference")
            clusters.append(votes[0].cluster)
            counts.update(differences)
    return PersonalShare(
        share(np.array(is_personal, dtype=np.float64), codes(clusters)), {d: counts[d] for d in DIFFERENCES}
    )


def annotator_summaries(rows: Sequence[Judgment], checks: dict[str, tuple[int, int]]) -> list[AnnotatorSummary]:
    """Of everybody who finished an item."""
    matrix, _, annotators = votes_matrix(preference_votes(rows, "after"))
    accuracy = dawid_skene(matrix, 3) if len(matrix) else np.zeros(0)
    finished = {name: [CREDIT[r.after] for r in rows if r.annotator == name and r.after] for name in annotators}
    return [
        AnnotatorSummary(
            annotator=name,
            judgements=len(finished[name]),
            reliability=float(reliability),
            with_label=_mean(finished[name]),
            checks=checks.get(name, (0, 0)),
        )
        for name, reliability in zip(annotators, accuracy, strict=True)
    ]


def item_summary(item: str, votes: Sequence[Judgment]) -> ItemSummary:
    """The votes on an item, and every reason to drop it."""
    after, reasons = [r.after for r in votes if r.after], list[str]()
    if len(after) >= 2:
        preferred = majority(after)
        if preferred in ("rejected", "neither"):
            reasons.append(f"most prefer {'the other answer' if preferred == 'rejected' else 'neither'}")
        if preferred is None:
            reasons.append("no majority for either answer")
        if majority([r.difference for r in votes if r.difference]) == "quality":
            reasons.append("most say the answers differ in quality")
        for answer in ANSWERS:
            means = {c: _mean([r.ratings[answer][c] for r in votes if r.ratings]) for c in CRITERIA}
            poor = [c for c, mean in means.items() if mean and mean < POOR]
            reasons += [f"{c} of the {answer} answer is poor" for c in poor]
    return ItemSummary(
        item=item,
        n=len(votes),
        before={p: sum(r.before == p for r in votes) for p in PREFERENCES},
        after={p: after.count(p) for p in PREFERENCES},
        difference=dict(sorted(Counter(r.difference for r in votes if r.difference).items())),
        means={a: _mean([s for r in votes for s in r.ratings.get(a, {}).values()]) for a in ANSWERS},
        reasons=reasons,
    )


# --- the verdict in sentences ---
def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def verdict(summary: AgreementSummary) -> list[str]:
    """Basis, claims, reliability and items to drop."""
    counts, drop = summary.counts, summary.drop
    judgments, items = _counted(counts.judgements, "judgment"), _counted(counts.items, "item")
    basis = [f"{judgments} of {items} by {_counted(counts.annotators, 'annotator')}"]
    if counts.skipped:
        basis.append(f"{counts.skipped} skipped")
    if counts.revised:
        basis.append(f"{counts.revised} changed after the rubric was shown, left out of quality")
    if counts.left_out:
        basis.append(f"left out for failed attention checks: {', '.join(counts.left_out)}")
    lines = ["; ".join(basis) + "."]
    lines += [f"{'✓' if summary.verdicts[name] else '✗'} {claim}" for name, claim in claims(summary).items()]
    if counts.rubric:
        before = _percent(summary.preference.before)
        lines.append(f"From the posts alone, before the rubric was shown, it was {before}.")
    if summary.annotators:
        lowest, highest = (of(summary.annotators, key=lambda a: a.reliability) for of in (min, max))
        span = f"from {lowest.reliability:.2f} ({lowest.annotator}) to {highest.reliability:.2f}"
        lines.append(f"Annotator reliability (Dawid-Skene) ranges {span}.")
    else:
        lines.append("No annotator has finished an item.")
    if drop:
        names = ", ".join(d.item for d in drop[:NAMED_ITEMS]) + (", …" if len(drop) > NAMED_ITEMS else "")
        lines.append(f"{_counted(len(drop), 'item')} should be dropped or repaired: {names}.")
    else:
        lines.append("No item has to be dropped.")
    return lines


def claims(summary: AgreementSummary) -> dict[str, str]:
    """What the study says about each requirement, in the order of `REQUIREMENTS`."""
    who = "With the rubric shown, annotators" if summary.counts.rubric else "Annotators"
    personal = _percent(summary.personal.items)
    after = summary.agreement["after"]
    agreement = "No item has two votes that could agree or differ."
    if after.alpha.value is not None:
        how = "agree" if after.alpha.value >= GOOD_ALPHA else "do not agree well enough"
        agreement = (
            f"Annotators {how} on the preference: Krippendorff’s α {_estimate(after.alpha)} (required: "
            f"{GOOD_ALPHA}), Fleiss’ κ {_estimate(after.fleiss)}, Gwet’s AC1 {_estimate(after.ac1)}."
        )
    return {
        "preference": f"{who} prefer the labeled answer {_percent(summary.preference.after)} of the time.",
        "parity": parity_claim(summary.quality)[1],
        "personal": f"A majority calls the difference personal preference on {personal} of the items.",
        "agreement": agreement,
    }


def parity_claim(quality: Quality) -> tuple[bool, str]:
    """Whether both answers are shown to be equally good, and the numbers."""
    holds, claims, margin = [], [], f"{quality.margin:g} points"
    of = {name: getattr(quality, name) for name in CRITERIA}
    if parities := {name: criterion.parity for name, criterion in of.items() if criterion.parity}:
        each = []
        for criterion, parity in parities.items():
            text = "too few"
            if parity.p is not None:
                effect = "" if parity.effect is None else f", d {parity.effect:+.2f}"
                text = f"{parity.mean:+.2f} [{parity.low:+.2f}, {parity.high:+.2f}]{effect}, p {parity.p:.3f}"
            each.append(f"{criterion} {text}")
        holds.append(all(parity.equivalent for parity in parities.values()))
        how = "" if holds[-1] else "not shown to be "
        claims.append(f"The answers are {how}equally good within ±{margin}: {', '.join(each)}.")
    if sizes := {name: criterion.mirror_size for name, criterion in of.items() if criterion.mirror_size}:
        each = [f"{criterion} {_estimate(size)}" for criterion, size in sizes.items()]
        holds.append(all(size.high is not None and size.high < quality.margin for size in sizes.values()))
        how = "differ by" if holds[-1] else "are not shown to differ by"
        claims.append(f"Answers to mirrored questions {how} less than {margin} on average: {', '.join(each)}.")
    return bool(holds) and all(holds), " ".join(claims) or "Nothing has been rated yet, so equal quality is not shown."


def _percent(e: Estimate) -> str:
    if e.value is None or e.low is None or e.high is None:
        return "an unknown share"
    return f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def _estimate(e: Coefficient | None) -> str:
    if not e or e.value is None:
        return "undefined"
    return f"{e.value:.2f}" + ("" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]")
