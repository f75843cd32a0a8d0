"""The verdict of a study in plain sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prb.study.config import CRITERIA

Summary = dict[str, Any]
GOOD_ALPHA = 0.667
"""Below this, Krippendorff (2004, Content Analysis) draws no conclusions at all."""
NAMED_ITEMS = 8


def verdict(summary: Summary) -> list[str]:
    """Basis, claims, reliability, items to drop, and the size of a next study."""
    claims = [f"{'✓' if summary['verdicts'][name] else '✗'} {say(summary)}" for name, say in SENTENCES.items()]
    before = f"From the posts alone, before the rubric was shown, it was {_percent(summary['preference']['before'])}."
    return [_basis(summary), *claims, before, _reliability(summary), _drop(summary), _next_study(summary)]


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
    return f"With the rubric shown, annotators prefer the labeled answer {share} of the time."


def _personal(summary: Summary) -> str:
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


def _agreement(summary: Summary) -> str:
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
    "personal": _personal,
    "agreement": _agreement,
}
"""What `--require` can name."""


def _reliability(summary: Summary) -> str:
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
