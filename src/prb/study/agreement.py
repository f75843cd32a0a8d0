"""Judgments → a summary: agreement, preference, equal quality, reliability, items to drop, sizes of a next study;
and its verdict in plain sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType

from prb.errors import BadInput, GateFailed, unknown
from prb.hashing import draw
from prb.runs import read_lines, write_json
from prb.stats.agreement import (
    AttentionCheck,
    Coefficient,
    Parity,
    attention,
    cohen_kappa,
    dawid_skene,
    equivalence,
    fleiss_kappa,
    gwet_ac1,
    inattentive,
    items_for_equivalence,
    items_for_share,
    krippendorff_alpha,
    mean_cohen,
    mean_size,
    vote_correlation,
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
HALF_WIDTH = 0.05
"""Precision of the preference share that a next study is planned for."""
MANY_ANNOTATORS = 12
"""Annotator pairs grow with the square; above this, mean Cohen's κ has no interval and single pairs are left out."""


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


class RaterPair(Struct, frozen=True):
    annotators: tuple[str, str]
    kappa: float | None
    n: int


class QuestionAgreement(Struct, frozen=True, kw_only=True):
    """Of ratings there is only Krippendorff's α, for ordinal values."""

    alpha: Coefficient
    fleiss: Coefficient | UnsetType = UNSET
    ac1: Coefficient | UnsetType = UNSET
    cohen: Coefficient | UnsetType = UNSET
    cohen_pairs: list[RaterPair] | UnsetType = UNSET


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

    @property
    def parity(self) -> dict[str, Parity]:
        return {name: parity for name in CRITERIA if (parity := getattr(self, name).parity)}

    @property
    def mirror_size(self) -> dict[str, Coefficient]:
        return {name: size for name in CRITERIA if (size := getattr(self, name).mirror_size)}


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


class ItemToDrop(Struct, frozen=True, kw_only=True):
    item: str
    reasons: list[str]
    n: int


class ItemSummary(Struct, frozen=True, kw_only=True):
    item: str
    n: int
    before: dict[str, int]
    after: dict[str, int]
    difference: dict[str, int]
    means: dict[str, float | None]


class NextStudy(Struct, frozen=True, kw_only=True):
    """How many items the two main claims would need, given the spread seen here."""

    items_for_parity: int | None
    items_for_preference: int | None
    half_width: float = HALF_WIDTH
    vote_correlation: float | None


class AgreementSummary(Struct, frozen=True, kw_only=True):
    """The content of `agreement.json`."""

    counts: StudyCounts
    agreement: dict[str, QuestionAgreement]
    preference: Preference
    quality: Quality
    personal: PersonalShare
    annotators: list[AnnotatorSummary]
    drop: list[ItemToDrop]
    ratings: dict[str, dict[str, list[int]]]
    """Per criterion and answer, how often each rating from 1 to 5 was given."""
    items: list[ItemSummary]
    planning: NextStudy
    verdicts: dict[str, bool]
    """By requirement."""


def agree(config: AgreeConfig) -> AgreementSummary:
    """The summary of a study; raises `GateFailed`, with the summary attached, if a requirement does not hold."""
    required = [name.strip() for name in config.require.split(",") if name.strip()]
    for name in required:
        if name not in REQUIREMENTS:
            raise unknown("requirement", name, REQUIREMENTS)
    summary = summarize(read_judgments(config.study), margin=config.margin)
    if config.out:
        write_json(config.out, msgspec.to_builtins(summary))
    require(required, summary)
    return summary


def require(required: Sequence[str], summary: AgreementSummary) -> None:
    says = claims(summary)
    if failed := [f"{name} does not hold: {says[name]}" for name in required if not summary.verdicts[name]]:
        error = GateFailed("; ".join(failed))
        error.result = summary
        raise error


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
    quality, personal, alpha = equal_quality(unrevised, margin), personal_share(kept), agreement["after"].alpha.value
    return AgreementSummary(
        counts=StudyCounts(
            items=len({r.item for r in kept}),
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
        drop=items_to_drop(kept),
        ratings=rating_counts(unrevised),
        items=item_summaries(kept),
        planning=next_study(quality, preference.after.value, kept),
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


def votes_matrix(
    rows: Sequence[Judgment], votes: Callable[[Judgment], Mapping[str, int]]
) -> tuple[Ints, Ints, list[str]]:
    """Units × annotators, −1 where there is no vote; the group of each unit; the annotators. `votes` are the values of
    a judgment by unit."""
    voted = [(row, unit, value) for row in rows for unit, value in votes(row).items()]
    group = {unit: row.group for row, unit, _ in voted}
    annotators = sorted({row.annotator for row, *_ in voted})
    matrix: Ints = np.full((len(group), len(annotators)), -1, dtype=np.int64)
    line, column = {unit: n for n, unit in enumerate(group)}, {name: n for n, name in enumerate(annotators)}
    for row, unit, value in voted:
        matrix[line[unit], column[row.annotator]] = value
    return matrix, codes(list(group.values())), annotators


def preference_vote(row: Judgment, when: str = "after") -> dict[str, int]:
    """0, 1 or 2 (neither). A hash of the item decides which answer is 0: if it were always the labeled one,
    everybody choosing the labeled answer would count as agreement by chance."""
    if not (preferred := getattr(row, when)):
        return {}
    code = (draw(0, "label", row.item) + (preferred == "rejected")) % 2
    return {row.item: 2 if preferred == "neither" else code}


def agreement_by_question(
    kept: Sequence[Judgment], unrevised: Sequence[Judgment], draws: int
) -> dict[str, QuestionAgreement]:
    def of_difference(row: Judgment) -> dict[str, int]:
        return {row.item: DIFFERENCES.index(row.difference)} if row.difference else {}

    def of_rating(row: Judgment, criterion: str) -> dict[str, int]:
        return {f"{row.item} {answer}": ratings[criterion] - 1 for answer, ratings in row.ratings.items()}

    agreement = {
        "before": vote_agreement(unrevised, partial(preference_vote, when="before"), draws),
        "after": vote_agreement(kept, preference_vote, draws),
        "difference": vote_agreement(kept, of_difference, draws),
    }
    ordinal = partial(krippendorff_alpha, values=len(RATINGS), ordinal=True)
    for criterion in CRITERIA:
        matrix, groups, _ = votes_matrix(unrevised, partial(of_rating, criterion=criterion))
        agreement[criterion] = QuestionAgreement(alpha=with_interval(ordinal, matrix, groups, draws=draws))
    return agreement


def vote_agreement(
    rows: Sequence[Judgment], votes: Callable[[Judgment], Mapping[str, int]], draws: int
) -> QuestionAgreement:
    """Of votes for one of three values."""
    matrix, groups, annotators = votes_matrix(rows, votes)
    many = len(annotators) > MANY_ANNOTATORS

    def measured(coefficient: Callable[..., float | None], draws: int = draws) -> Coefficient:
        return with_interval(partial(coefficient, values=3), matrix, groups, draws=draws)

    pairs = []
    for b in range(0 if many else len(annotators)):
        for a in range(b):
            kappa, both = cohen_kappa(matrix[:, b], matrix[:, a], 3), (matrix[:, [a, b]] >= 0).all(axis=1)
            pairs.append(RaterPair((annotators[a], annotators[b]), kappa, int(both.sum())))
    return QuestionAgreement(
        alpha=measured(krippendorff_alpha),
        fleiss=measured(fleiss_kappa),
        ac1=measured(gwet_ac1),
        cohen=measured(mean_cohen, 0 if many else draws),
        cohen_pairs=pairs,
    )


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


def _by_item(rows: Sequence[Judgment]) -> dict[str, list[Judgment]]:
    groups = defaultdict[str, list[Judgment]](list)
    for r in rows:
        groups[r.item].append(r)
    return groups


def personal_share(rows: Sequence[Judgment]) -> PersonalShare:
    items = _by_item([r for r in rows if r.difference]).values()
    is_personal = [majority([r.difference or "" for r in votes]) == "preference" for votes in items]
    clusters = codes([votes[0].cluster for votes in items])
    counts = Counter(r.difference for votes in items for r in votes)
    return PersonalShare(share(np.array(is_personal, dtype=np.float64), clusters), {d: counts[d] for d in DIFFERENCES})


def annotator_summaries(rows: Sequence[Judgment], checks: dict[str, tuple[int, int]]) -> list[AnnotatorSummary]:
    """Of everybody who finished an item."""
    matrix, _, annotators = votes_matrix(rows, preference_vote)
    accuracy = dawid_skene(matrix, 3).accuracy if len(matrix) else np.zeros(0)
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


def items_to_drop(rows: Sequence[Judgment]) -> list[ItemToDrop]:
    """Items that annotators do not confirm, with every reason; an item needs two votes."""
    drop = []
    for item, votes in _by_item(rows).items():
        after = [r.after for r in votes if r.after]
        if len(after) < 2:
            continue
        reasons = []
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
        if reasons:
            drop.append(ItemToDrop(item=item, reasons=reasons, n=len(after)))
    return drop


def rating_counts(rows: Sequence[Judgment]) -> dict[str, dict[str, list[int]]]:
    criteria = dict.fromkeys(c for r in rows for ratings in r.ratings.values() for c in ratings)
    counts = Counter((c, a, score) for r in rows for a, ratings in r.ratings.items() for c, score in ratings.items())
    return {c: {a: [counts[c, a, rating] for rating in RATINGS] for a in ANSWERS} for c in criteria}


def item_summaries(rows: Sequence[Judgment]) -> list[ItemSummary]:
    return [
        ItemSummary(
            item=item,
            n=len(votes),
            before={p: sum(r.before == p for r in votes) for p in PREFERENCES},
            after={p: sum(r.after == p for r in votes) for p in PREFERENCES},
            difference=dict(sorted(Counter(r.difference for r in votes if r.difference).items())),
            means={a: _mean([s for r in votes for s in r.ratings.get(a, {}).values()]) for a in ANSWERS},
        )
        for item, votes in _by_item(rows).items()
    ]


def next_study(quality: Quality, preferred: float | None, rows: Sequence[Judgment]) -> NextStudy:
    """`preferred`: how often the labeled answer was."""
    spreads = [parity.deviation for parity in quality.parity.values() if parity.deviation]
    voted = [(r.item, CREDIT[r.after]) for r in rows if r.after]
    overlap = len(voted) / max(1, len({item for item, _ in voted}))
    credit = np.array([credit for _, credit in voted], dtype=np.float64)
    correlation = vote_correlation(credit, codes([item for item, _ in voted])) if voted else None
    needed = None
    if preferred is not None and correlation is not None:
        bounded = min(max(preferred, 0.05), 0.95)
        needed = items_for_share(bounded, HALF_WIDTH, raters=max(1, round(overlap)), correlation=correlation)
    return NextStudy(
        items_for_parity=max((items_for_equivalence(s, quality.margin) for s in spreads), default=None),
        items_for_preference=needed,
        vote_correlation=correlation,
    )


# --- the verdict in sentences ---
def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def verdict(summary: AgreementSummary) -> list[str]:
    """Basis, claims, reliability, items to drop, and the size of a next study."""
    counts, drop, plan = summary.counts, summary.drop, summary.planning
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
    needs = []
    if plan.items_for_parity:
        needs.append(f"{plan.items_for_parity} unmirrored items to show equal quality (80 % power)")
    if plan.items_for_preference:
        width = f"±{100 * plan.half_width:g} points"
        needs.append(f"{plan.items_for_preference} items to know the preference share to {width}")
    if needs:
        lines.append(f"A next study like this one would need {' and '.join(needs)}.")
    else:
        lines.append("There is too little data to plan a next study.")
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
            f"{GOOD_ALPHA}), Fleiss’ κ {_estimate(after.fleiss)}, Gwet’s AC1 {_estimate(after.ac1)}, "
            f"mean Cohen’s κ {_estimate(after.cohen)}."
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
    if quality.parity:
        each = []
        for criterion, parity in quality.parity.items():
            text = "too few"
            if parity.p is not None:
                effect = "" if parity.effect is None else f", d {parity.effect:+.2f}"
                text = f"{parity.mean:+.2f} [{parity.low:+.2f}, {parity.high:+.2f}]{effect}, p {parity.p:.3f}"
            each.append(f"{criterion} {text}")
        holds.append(all(parity.equivalent for parity in quality.parity.values()))
        how = "" if holds[-1] else "not shown to be "
        claims.append(f"The answers are {how}equally good within ±{margin}: {', '.join(each)}.")
    if quality.mirror_size:
        each = [f"{criterion} {_estimate(size)}" for criterion, size in quality.mirror_size.items()]
        sizes = quality.mirror_size.values()
        holds.append(all(size.high is not None and size.high < quality.margin for size in sizes))
        how = "differ by" if holds[-1] else "are not shown to differ by"
        claims.append(f"Answers to mirrored questions {how} less than {margin} on average: {', '.join(each)}.")
    return bool(holds) and all(holds), " ".join(claims) or "Nothing has been rated yet, so equal quality is not shown."


def _percent(e: Estimate) -> str:
    if e.value is None or e.low is None or e.high is None:
        return "an unknown share"
    return f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def _estimate(e: Coefficient | UnsetType) -> str:
    if not e or e.value is None:
        return "undefined"
    return f"{e.value:.2f}" + ("" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]")
