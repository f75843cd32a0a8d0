"""Judgments → a summary: agreement, preference, equal quality, reliability, items to drop, sizes of a next study;
and its verdict in plain sentences."""

from __future__ import annotations

from collections import Counter
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
Vote = tuple[str, str, str, int]
"""Unit, annotator, group of units that share a question, value."""
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
        if name not in SENTENCES:
            raise unknown("requirement", name, SENTENCES)
    rows = read_judgments(config.study)
    summary = summarize(rows, margin=config.margin)
    if config.out:
        write_json(config.out, summary)
    show(summary)
    require(required, summary)
    return summary


def require(required: Sequence[str], summary: Summary) -> None:
    failed = [name for name in required if not summary["verdicts"][name]]
    if failed:
        raise GateFailed("; ".join(f"{name} does not hold: {SENTENCES[name](summary)}" for name in failed))


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


class Votes:
    """A matrix of units × annotators for one field; −1 where there is no vote."""

    def __init__(self, votes: Sequence[Vote]) -> None:
        self.units = list(dict.fromkeys(unit for unit, *_ in votes))
        self.annotators = sorted({annotator for _, annotator, *_ in votes})
        group = {unit: g for unit, _, g, _ in votes}
        self.groups: Ints = codes([group[unit] for unit in self.units])
        self.matrix: Ints = np.full((len(self.units), len(self.annotators)), -1, dtype=np.int64)
        line, column = {u: n for n, u in enumerate(self.units)}, {a: n for n, a in enumerate(self.annotators)}
        for unit, annotator, _, vote in votes:
            self.matrix[line[unit], column[annotator]] = vote

    def estimate(self, statistic: Callable[[Ints], float | None], draws: int) -> Summary:
        return with_interval(statistic, self.matrix, self.groups, draws=draws, seed=0).as_dict()

    def annotator_pairs(self) -> list[Summary]:
        pairs = []
        for i, a in enumerate(self.annotators):
            for j, b in enumerate(self.annotators[:i]):
                kappa = cohen_kappa(self.matrix[:, i], self.matrix[:, j], 3)
                shared = int(((self.matrix[:, i] >= 0) & (self.matrix[:, j] >= 0)).sum())
                pairs.append({"annotators": [b, a], "kappa": kappa, "n": shared})
        return pairs


def _preference_code(row: Judgment, field: str) -> int | None:
    """0, 1 or 2 (neither). A hash of the item decides which answer is 0: if it were always the labeled one,
    everybody choosing the labeled answer would count as agreement by chance."""
    if getattr(row, field) is None:
        return None
    return (
        2
        if getattr(row, field) == "neither"
        else (draw(0, "label", row.item) % 2 + (getattr(row, field) == "rejected")) % 2
    )


def _votes(rows: Sequence[Judgment], value: Callable[[Judgment], int | None]) -> Votes:
    return Votes([(r.item, r.annotator, r.group, v) for r in rows if (v := value(r)) is not None])


def _agreement(kept: Sequence[Judgment], unrevised: Sequence[Judgment], draws: int) -> Summary:
    fields = {
        "before": _votes(unrevised, lambda r: _preference_code(r, "before")),
        "after": _votes(kept, lambda r: _preference_code(r, "after")),
        "difference": _votes(kept, lambda r: DIFFERENCES.index(r.difference) if r.difference else None),
    }
    agreement: Summary = {}
    for name, votes in fields.items():
        many = len(votes.annotators) > MANY_ANNOTATORS
        agreement[name] = {
            "alpha": votes.estimate(partial(krippendorff_alpha, values=3), draws),
            "fleiss": votes.estimate(partial(fleiss_kappa, values=3), draws),
            "ac1": votes.estimate(partial(gwet_ac1, values=3), draws),
            "cohen": votes.estimate(partial(mean_cohen, values=3), 0 if many else draws),
            "cohen_pairs": [] if many else votes.annotator_pairs(),
        }
    alpha = partial(krippendorff_alpha, values=5, ordinal=True)
    for criterion in CRITERIA:
        ratings = [
            (f"{r.item} {answer}", r.annotator, r.group, rating[criterion] - 1)
            for r in unrevised
            for answer, rating in r.ratings.items()
        ]
        agreement[criterion] = {"alpha": Votes(ratings).estimate(alpha, draws)}
    return agreement


def _labeled_share(rows: Sequence[Judgment], field: str) -> Summary:
    """How often the labeled answer is preferred; neither counts half."""
    voted = [r for r in rows if getattr(r, field) is not None]
    credit: Floats = np.array([CREDIT[getattr(r, field)] for r in voted], dtype=np.float64)
    return share(credit, codes([r.cluster for r in voted])).as_dict()


def _quality(rows: Sequence[Judgment], margin: float) -> Summary:
    rated = [r for r in rows if r.ratings]
    single, mirrored = [r for r in rated if not r.mirror], [r for r in rated if r.mirror]
    quality: Summary = {"margin": margin}
    for criterion in CRITERIA:
        signed = _differences(single, criterion, by="item")
        size = mean_size(_differences(mirrored, criterion, by="group"), seed=0)
        quality[criterion] = {
            "parity": equivalence(signed, margin).as_dict() if len(signed) else None,
            "mirror_size": size.as_dict() if size.n else None,
            "means": {a: _mean([r.ratings[a][criterion] for r in rated]) for a in ANSWERS},
        }
    return quality


def _differences(rows: Sequence[Judgment], criterion: str, *, by: str) -> Floats:
    """Mean rating difference of the two answers per item; for twins, of one answer text against the other."""
    differences: dict[str, list[float]] = {}
    for r in rows:
        sign = 1 if r.item == getattr(r, by) else -1  # a group is named after one of its twins
        difference = r.ratings["chosen"][criterion] - r.ratings["rejected"][criterion]
        differences.setdefault(getattr(r, by), []).append(sign * difference)
    return np.array([np.mean(d) for d in differences.values()], dtype=np.float64)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def majority(values: Sequence[str]) -> str | None:
    """The value that more than half of them have."""
    top = Counter(values).most_common(1)
    return top[0][0] if top and 2 * top[0][1] > len(values) else None


def _by_item(rows: Sequence[Judgment]) -> dict[str, list[Judgment]]:
    groups: dict[str, list[Judgment]] = {}
    for r in rows:
        groups.setdefault(r.item, []).append(r)
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
    votes = _votes(rows, lambda r: _preference_code(r, "after"))
    accuracy = dawid_skene(votes.matrix, 3).accuracy if len(votes.units) else np.zeros(0)
    annotators = []
    for name, reliability in zip(votes.annotators, accuracy, strict=True):
        finished = [r.after for r in rows if r.annotator == name and r.after]
        annotators.append(
            {
                "annotator": name,
                "judgements": len(finished),
                "reliability": float(reliability),
                "with_label": _mean([CREDIT[preference] for preference in finished]),
                "checks": checks.get(name, (0, 0)),
            }
        )
    return annotators


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
def verdict(summary: Summary) -> list[str]:
    """Basis, claims, reliability, items to drop, and the size of a next study."""
    claims = [f"{'✓' if summary['verdicts'][name] else '✗'} {say(summary)}" for name, say in SENTENCES.items()]
    if summary["counts"].get("rubric", True):
        share = _percent(summary["preference"]["before"])
        claims.append(f"From the posts alone, before the rubric was shown, it was {share}.")
    return [_basis(summary), *claims, _reliability_line(summary), _drop(summary), _next_study(summary)]


def _basis(summary: Summary) -> str:
    counts = summary["counts"]
    parts = [f"{counts['judgements']} judgments of {counts['items']} items by {counts['annotators']} annotators"]
    if counts["skipped"]:
        parts.append(f"{counts['skipped']} skipped")
    if counts["revised"]:
        parts.append(f"{counts['revised']} changed after the rubric was shown, left out of quality")
    if counts["left_out"]:
        parts.append(f"left out for failed attention checks: {', '.join(counts['left_out'])}")
    return "; ".join(parts) + "."


def _preference(summary: Summary) -> str:
    share = _percent(summary["preference"]["after"])
    who = "With the rubric shown, annotators" if summary["counts"].get("rubric", True) else "Annotators"
    return f"{who} prefer the labeled answer {share} of the time."


def _personal_line(summary: Summary) -> str:
    share = _percent(summary["personal"]["items"])
    return f"A majority calls the difference personal preference on {share} of the items."


def _parity(summary: Summary) -> str:
    quality, margin = summary["quality"], summary["quality"]["margin"]
    signed = {c: quality[c]["parity"] for c in CRITERIA if quality[c]["parity"]}
    sizes = {c: quality[c]["mirror_size"] for c in CRITERIA if quality[c]["mirror_size"]}
    if not signed and not sizes:
        return "Nothing has been rated yet, so equal quality is not shown."
    parts = []
    if signed:
        each = ", ".join(f"{c} {_difference(p)}" for c, p in signed.items())
        how = "" if all(p["equivalent"] for p in signed.values()) else "not shown to be "
        parts.append(f"The answers are {how}equally good within ±{margin:g} points: {each}.")
    if sizes:
        each = ", ".join(f"{c} {_estimate(s)}" for c, s in sizes.items())
        holds = all(s["high"] is not None and s["high"] < margin for s in sizes.values())
        how = "differ by" if holds else "are not shown to differ by"
        parts.append(f"Answers to mirrored questions {how} less than {margin:g} points on average: {each}.")
    return " ".join(parts)


def _agreement_line(summary: Summary) -> str:
    after = summary["agreement"]["after"]
    alpha = after["alpha"]
    if alpha["value"] is None:
        return "No item has two votes that could agree or differ."
    how = "agree" if alpha["value"] >= GOOD_ALPHA else "do not agree well enough"
    return (
        f"Annotators {how} on the preference: Krippendorff’s α {_estimate(alpha)} (required: {GOOD_ALPHA}), "
        f"Fleiss’ κ {_estimate(after['fleiss'])}, Gwet’s AC1 {_estimate(after['ac1'])}, "
        f"mean Cohen’s κ {_estimate(after['cohen'])}."
    )


SENTENCES: dict[str, Callable[[Summary], str]] = {
    "preference": _preference,
    "parity": _parity,
    "personal": _personal_line,
    "agreement": _agreement_line,
}
"""What `--require` can name."""


def _reliability_line(summary: Summary) -> str:
    annotators = sorted(summary["annotators"], key=lambda a: float(a["reliability"]))
    if not annotators:
        return "No annotator has finished an item."
    lowest, highest = annotators[0], annotators[-1]
    return (
        f"Annotator reliability (Dawid-Skene) ranges from {lowest['reliability']:.2f} ({lowest['annotator']}) "
        f"to {highest['reliability']:.2f}."
    )


def _drop(summary: Summary) -> str:
    drop = summary["drop"]
    if not drop:
        return "No item has to be dropped."
    names = ", ".join(d["item"] for d in drop[:NAMED_ITEMS]) + (", …" if len(drop) > NAMED_ITEMS else "")
    return f"{len(drop)} {'item' if len(drop) == 1 else 'items'} should be dropped or repaired: {names}."


def _next_study(summary: Summary) -> str:
    plan = summary["planning"]
    needs = []
    if plan["items_for_parity"]:
        needs.append(f"{plan['items_for_parity']} unmirrored items to show equal quality (80 % power)")
    if plan["items_for_preference"]:
        width = 100 * plan["half_width"]
        needs.append(f"{plan['items_for_preference']} items to know the preference share to ±{width:g} points")
    if not needs:
        return "There is too little data to plan a next study."
    return f"A next study like this one would need {' and '.join(needs)}."


def _percent(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "an unknown share"
    return f"{100 * e['value']:.1f} % [{100 * e['low']:.1f}, {100 * e['high']:.1f}]"


def _estimate(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "undefined"
    return f"{e['value']:.2f}" + ("" if e["low"] is None else f" [{e['low']:.2f}, {e['high']:.2f}]")


def _difference(p: dict[str, Any]) -> str:
    if p["p"] is None:
        return "too few"
    effect = "" if p["effect"] is None else f", d {p['effect']:+.2f}"
    return f"{p['mean']:+.2f} [{p['low']:+.2f}, {p['high']:+.2f}]{effect}, p {p['p']:.3f}"
