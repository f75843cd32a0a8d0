"""Judgments → a summary: agreement, preference, equal quality, reliability, items to drop, sizes of a next study;
and its verdict in plain sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prb.errors import BadInput, GateFailed, unknown
from prb.hashing import draw
from prb.runs import read_lines, write_json
from prb.stats.agreement import (
    cohen_kappa,
    dawid_skene,
    equivalence,
    fleiss_kappa,
    gwet_ac1,
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

Summary = dict[str, Any]
"""As JSON holds it."""
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
MIN_CHECKS = 0.5
"""Annotators who pass a smaller share of their attention checks are left out."""
NAMED_ITEMS = 8
HALF_WIDTH = 0.05
"""Precision of the preference share that a next study is planned for."""
MANY_ANNOTATORS = 12
"""Annotator pairs grow with the square; above this, mean Cohen's κ has no interval and single pairs are left out."""


def agree(config: AgreeConfig, *, show: Callable[[Summary], None] = lambda _: None) -> Summary:
    """The summary of a study; raises `GateFailed` if a requirement does not hold, after `show` got the summary."""
    required = [name.strip() for name in config.require.split(",") if name.strip()]
    for name in required:
        if name not in REQUIREMENTS:
            raise unknown("requirement", name, REQUIREMENTS)
    summary = summarize(read_judgments(config.study), margin=config.margin)
    if config.out:
        write_json(config.out, summary)
    show(summary)
    require(required, summary)
    return summary


def require(required: Sequence[str], summary: Summary) -> None:
    failed = [name for name in required if not summary["verdicts"][name]]
    if failed:
        says = claims(summary)
        raise GateFailed("; ".join(f"{name} does not hold: {says[name]}" for name in failed))


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
        if study_row(connection)["kind"] != "validate":
            raise BadInput("agreement needs a study of kind validate; `prb study export` writes what this one holds")
        return judgments(connection)


def summarize(rows: Sequence[Judgment], *, margin: float = 0.5, draws: int = 1000) -> Summary:
    """Everything `prb study agree` reports, as data."""
    checks = attention(rows)
    inattentive = sorted(a for a, (passed, asked) in checks.items() if passed < MIN_CHECKS * asked)
    kept = [r for r in rows if not r.check and not r.skipped and r.annotator not in inattentive]
    unrevised = [r for r in kept if not r.revised]
    summary: Summary = {
        "counts": {
            "items": len({r.item for r in kept}),
            "annotators": len({r.annotator for r in kept}),
            "judgements": len(kept),
            "finished": sum(r.after is not None for r in kept),
            "skipped": sum(bool(r.skipped) for r in rows if not r.check),
            "revised": len(kept) - len(unrevised),
            "rubric": not kept or any(r.rubric for r in kept),
            "left_out": inattentive,
        },
        "agreement": _agreement(kept, unrevised, draws),
        "preference": {"before": _labeled_share(unrevised, "before"), "after": _labeled_share(kept, "after")},
        "quality": _quality(unrevised, margin),
        "personal": _personal(kept),
        "annotators": _reliability(kept, checks),
        "drop": items_to_drop(kept),
        "ratings": rating_counts(unrevised),
        "items": item_summaries(kept),
    }
    summary["planning"] = _planning(summary, kept, margin)
    summary["verdicts"] = _verdicts(summary)
    return summary


def attention(rows: Sequence[Judgment]) -> dict[str, tuple[int, int]]:
    """Per annotator: checks passed, checks answered. Passed: the stray answer is not preferred and rated 1 or 2."""
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        if row.check and row.before and not row.skipped:
            passed, asked = counts.get(row.annotator, (0, 0))
            good = row.before != "rejected" and row.ratings["rejected"]["relevance"] <= 2
            counts[row.annotator] = passed + good, asked + 1
    return counts


def votes_matrix(votes: Sequence[tuple[str, str, str, int]]) -> tuple[Ints, Ints, list[str]]:
    """Units × annotators, −1 where there is no vote; the group of each unit; the annotators. A vote is unit, annotator,
    group of units that share a question, value."""
    group = {unit: group for unit, _, group, _ in votes}
    annotators = sorted({annotator for _, annotator, *_ in votes})
    matrix: Ints = np.full((len(group), len(annotators)), -1, dtype=np.int64)
    line, column = {unit: n for n, unit in enumerate(group)}, {name: n for n, name in enumerate(annotators)}
    for unit, annotator, _, value in votes:
        matrix[line[unit], column[annotator]] = value
    return matrix, codes(list(group.values())), annotators


def preference_votes(rows: Sequence[Judgment], when: str) -> list[tuple[str, str, str, int]]:
    """0, 1 or 2 (neither). A hash of the item decides which answer is 0: if it were always the labeled one,
    everybody choosing the labeled answer would count as agreement by chance."""
    votes = []
    for row in rows:
        if preferred := getattr(row, when):
            code = (draw(0, "label", row.item) + (preferred == "rejected")) % 2
            votes.append((row.item, row.annotator, row.group, 2 if preferred == "neither" else code))
    return votes


def _agreement(kept: Sequence[Judgment], unrevised: Sequence[Judgment], draws: int) -> Summary:
    fields = {
        "before": preference_votes(unrevised, "before"),
        "after": preference_votes(kept, "after"),
        "difference": [
            (r.item, r.annotator, r.group, DIFFERENCES.index(r.difference)) for r in kept if r.difference is not None
        ],
    }
    agreement: Summary = {}
    for name, votes in fields.items():
        matrix, groups, annotators = votes_matrix(votes)
        many = len(annotators) > MANY_ANNOTATORS
        coefficients = {"alpha": krippendorff_alpha, "fleiss": fleiss_kappa, "ac1": gwet_ac1, "cohen": mean_cohen}
        agreement[name] = {
            key: with_interval(
                partial(coefficient, values=3), matrix, groups, draws=0 if many and key == "cohen" else draws, seed=0
            ).as_dict()
            for key, coefficient in coefficients.items()
        }
        agreement[name]["cohen_pairs"] = [
            {
                "annotators": [annotators[j], annotators[i]],
                "kappa": cohen_kappa(matrix[:, i], matrix[:, j], 3),
                "n": int(((matrix[:, i] >= 0) & (matrix[:, j] >= 0)).sum()),
            }
            for i in range(0 if many else len(annotators))
            for j in range(i)
        ]
    for criterion in CRITERIA:
        matrix, groups, _ = votes_matrix(
            [
                (f"{r.item} {answer}", r.annotator, r.group, rating[criterion] - 1)
                for r in unrevised
                for answer, rating in r.ratings.items()
            ]
        )
        alpha = partial(krippendorff_alpha, values=5, ordinal=True)
        agreement[criterion] = {"alpha": with_interval(alpha, matrix, groups, draws=draws, seed=0).as_dict()}
    return agreement


def _labeled_share(rows: Sequence[Judgment], field: str) -> Summary:
    """How often the labeled answer is preferred; neither counts half."""
    voted = [r for r in rows if getattr(r, field) is not None]
    credit: Floats = np.array([CREDIT[getattr(r, field)] for r in voted], dtype=np.float64)
    return share(credit, codes([r.cluster for r in voted])).as_dict()


def _quality(rows: Sequence[Judgment], margin: float) -> Summary:
    rated = [r for r in rows if r.ratings]
    quality: Summary = {"margin": margin}
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
        size = mean_size(np.array([np.mean(each) for each in mirrored.values()], dtype=np.float64), seed=0)
        quality[criterion] = {
            "parity": equivalence(signed, margin).as_dict() if len(signed) else None,
            "mirror_size": size.as_dict() if size.n else None,
            "means": {a: _mean([r.ratings[a][criterion] for r in rated]) for a in ANSWERS},
        }
    return quality


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


def _personal(rows: Sequence[Judgment]) -> Summary:
    """Share of items whose difference a majority calls personal preference."""
    items = _by_item([r for r in rows if r.difference]).values()
    is_personal = [majority([r.difference or "" for r in votes]) == "preference" for votes in items]
    clusters = codes([votes[0].cluster for votes in items])
    counts = Counter(r.difference for votes in items for r in votes)
    estimate = share(np.array(is_personal, dtype=np.float64), clusters)
    return {"items": estimate.as_dict(), "judgements": {d: counts[d] for d in DIFFERENCES}}


def _reliability(rows: Sequence[Judgment], checks: dict[str, tuple[int, int]]) -> list[Summary]:
    matrix, _, annotators = votes_matrix(preference_votes(rows, "after"))
    accuracy = dawid_skene(matrix, 3).accuracy if len(matrix) else np.zeros(0)
    table = []
    for name, reliability in zip(annotators, accuracy, strict=True):
        finished = [r.after for r in rows if r.annotator == name and r.after]
        table.append(
            {
                "annotator": name,
                "judgements": len(finished),
                "reliability": float(reliability),
                "with_label": _mean([CREDIT[preference] for preference in finished]),
                "checks": checks.get(name, (0, 0)),
            }
        )
    return table


def items_to_drop(rows: Sequence[Judgment]) -> list[Summary]:
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
            drop.append({"item": item, "reasons": reasons, "n": len(after)})
    return drop


def rating_counts(rows: Sequence[Judgment]) -> dict[str, dict[str, list[int]]]:
    """Per criterion and answer, how often each rating from 1 to 5 was given."""
    criteria = dict.fromkeys(c for r in rows for ratings in r.ratings.values() for c in ratings)
    counts = Counter((c, a, score) for r in rows for a, ratings in r.ratings.items() for c, score in ratings.items())
    return {c: {a: [counts[c, a, rating] for rating in RATINGS] for a in ANSWERS} for c in criteria}


def item_summaries(rows: Sequence[Judgment]) -> list[Summary]:
    """Per item: preferences before and after the rubric was shown, kinds of difference, mean ratings."""
    return [
        {
            "item": item,
            "n": len(votes),
            **{
                when: {p: sum(getattr(r, when) == p for r in votes) for p in PREFERENCES}
                for when in ("before", "after")
            },
            "difference": dict(sorted(Counter(r.difference for r in votes if r.difference).items())),
            "means": {a: _mean([s for r in votes for s in r.ratings.get(a, {}).values()]) for a in ANSWERS},
        }
        for item, votes in _by_item(rows).items()
    ]


def _planning(summary: Summary, rows: Sequence[Judgment], margin: float) -> Summary:
    """How many items the two main claims would need, given the spread seen here."""
    deviations = [q["parity"]["deviation"] for c in CRITERIA if (q := summary["quality"][c])["parity"]]
    spreads = [d for d in deviations if d]
    voted = [(r.item, CREDIT[r.after]) for r in rows if r.after]
    value = summary["preference"]["after"]["value"]
    overlap = len(voted) / max(1, len({item for item, _ in voted}))
    credit = np.array([credit for _, credit in voted], dtype=np.float64)
    correlation = vote_correlation(credit, codes([item for item, _ in voted])) if voted else None
    needed = None
    if value is not None and correlation is not None:
        bounded = min(max(value, 0.05), 0.95)
        needed = items_for_share(bounded, HALF_WIDTH, raters=max(1, round(overlap)), correlation=correlation)
    return {
        "items_for_parity": max(items_for_equivalence(s, margin) for s in spreads) if spreads else None,
        "items_for_preference": needed,
        "half_width": HALF_WIDTH,
        "vote_correlation": correlation,
    }


def _verdicts(summary: Summary) -> dict[str, bool]:
    quality = [q for c in CRITERIA if (q := summary["quality"][c])["parity"] or q["mirror_size"]]
    equivalent = all(q["parity"]["equivalent"] for q in quality if q["parity"])
    bounds = [q["mirror_size"]["high"] for q in quality if q["mirror_size"]]
    small = all(high is not None and high < summary["quality"]["margin"] for high in bounds)
    lows = {"preference": summary["preference"]["after"]["low"], "personal": summary["personal"]["items"]["low"]}
    alpha = summary["agreement"]["after"]["alpha"]["value"]
    return {
        "parity": bool(quality) and equivalent and small,
        **{name: low is not None and low > 0.5 for name, low in lows.items()},
        "agreement": alpha is not None and alpha >= GOOD_ALPHA,
    }


# --- the verdict in sentences ---
def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def verdict(summary: Summary) -> list[str]:
    """Basis, claims, reliability, items to drop, and the size of a next study."""
    counts, drop, plan = summary["counts"], summary["drop"], summary["planning"]
    judgments, items = _counted(counts["judgements"], "judgment"), _counted(counts["items"], "item")
    basis = [f"{judgments} of {items} by {_counted(counts['annotators'], 'annotator')}"]
    if counts["skipped"]:
        basis.append(f"{counts['skipped']} skipped")
    if counts["revised"]:
        basis.append(f"{counts['revised']} changed after the rubric was shown, left out of quality")
    if counts["left_out"]:
        basis.append(f"left out for failed attention checks: {', '.join(counts['left_out'])}")
    lines = ["; ".join(basis) + "."]
    lines += [f"{'✓' if summary['verdicts'][name] else '✗'} {claim}" for name, claim in claims(summary).items()]
    if counts.get("rubric", True):
        share = _percent(summary["preference"]["before"])
        lines.append(f"From the posts alone, before the rubric was shown, it was {share}.")
    if summary["annotators"]:
        lowest, highest = (of(summary["annotators"], key=lambda a: float(a["reliability"])) for of in (min, max))
        lines.append(
            f"Annotator reliability (Dawid-Skene) ranges from {lowest['reliability']:.2f} ({lowest['annotator']}) "
            f"to {highest['reliability']:.2f}."
        )
    else:
        lines.append("No annotator has finished an item.")
    if drop:
        names = ", ".join(d["item"] for d in drop[:NAMED_ITEMS]) + (", …" if len(drop) > NAMED_ITEMS else "")
        lines.append(f"{_counted(len(drop), 'item')} should be dropped or repaired: {names}.")
    else:
        lines.append("No item has to be dropped.")
    needs = []
    if plan["items_for_parity"]:
        needs.append(f"{plan['items_for_parity']} unmirrored items to show equal quality (80 % power)")
    if plan["items_for_preference"]:
        width = 100 * plan["half_width"]
        needs.append(f"{plan['items_for_preference']} items to know the preference share to ±{width:g} points")
    if needs:
        lines.append(f"A next study like this one would need {' and '.join(needs)}.")
    else:
        lines.append("There is too little data to plan a next study.")
    return lines


def claims(summary: Summary) -> dict[str, str]:
    """What the study says about each requirement, in the order of `REQUIREMENTS`."""
    who = "With the rubric shown, annotators" if summary["counts"].get("rubric", True) else "Annotators"
    personal = _percent(summary["personal"]["items"])
    after = summary["agreement"]["after"]
    agreement = "No item has two votes that could agree or differ."
    if after["alpha"]["value"] is not None:
        how = "agree" if after["alpha"]["value"] >= GOOD_ALPHA else "do not agree well enough"
        agreement = (
            f"Annotators {how} on the preference: Krippendorff’s α {_estimate(after['alpha'])} (required: "
            f"{GOOD_ALPHA}), Fleiss’ κ {_estimate(after['fleiss'])}, Gwet’s AC1 {_estimate(after['ac1'])}, "
            f"mean Cohen’s κ {_estimate(after['cohen'])}."
        )
    return {
        "preference": f"{who} prefer the labeled answer {_percent(summary['preference']['after'])} of the time.",
        "parity": _parity(summary["quality"]),
        "personal": f"A majority calls the difference personal preference on {personal} of the items.",
        "agreement": agreement,
    }


def _parity(quality: Summary) -> str:
    margin = quality["margin"]
    signed = {c: quality[c]["parity"] for c in CRITERIA if quality[c]["parity"]}
    sizes = {c: quality[c]["mirror_size"] for c in CRITERIA if quality[c]["mirror_size"]}
    parts = []
    if signed:
        each = []
        for c, parity in signed.items():
            text = "too few"
            if parity["p"] is not None:
                effect = "" if parity["effect"] is None else f", d {parity['effect']:+.2f}"
                text = (
                    f"{parity['mean']:+.2f} [{parity['low']:+.2f}, {parity['high']:+.2f}]{effect}, p {parity['p']:.3f}"
                )
            each.append(f"{c} {text}")
        how = "" if all(parity["equivalent"] for parity in signed.values()) else "not shown to be "
        parts.append(f"The answers are {how}equally good within ±{margin:g} points: {', '.join(each)}.")
    if sizes:
        each = [f"{c} {_estimate(size)}" for c, size in sizes.items()]
        holds = all(size["high"] is not None and size["high"] < margin for size in sizes.values())
        how = "differ by" if holds else "are not shown to differ by"
        parts.append(f"Answers to mirrored questions {how} less than {margin:g} points on average: {', '.join(each)}.")
    return " ".join(parts) or "Nothing has been rated yet, so equal quality is not shown."


def _percent(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "an unknown share"
    return f"{100 * e['value']:.1f} % [{100 * e['low']:.1f}, {100 * e['high']:.1f}]"


def _estimate(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "undefined"
    return f"{e['value']:.2f}" + ("" if e["low"] is None else f" [{e['low']:.2f}, {e['high']:.2f}]")
