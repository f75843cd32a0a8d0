"""The verdict of a study in plain sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prb.study.agree import GOOD_ALPHA
from prb.study.forms import CRITERIA

Result = dict[str, Any]


def verdict(result: Result) -> list[str]:
    """From what it rests on to what to do next."""
    return [
        _basis(result),
        *(f"{'✓' if result['verdicts'][name] else '✗'} {say(result)}" for name, say in SENTENCES.items()),
        _before(result),
        _people(result),
        _drop(result),
        _more(result),
    ]


def _basis(result: Result) -> str:
    c = result["counts"]
    text = f"{c['judgements']} judgements of {c['items']} items by {c['annotators']} annotators"
    text += f"; {c['skipped']} skipped" if c["skipped"] else ""
    text += (
        f"; {c['revised']} first steps changed after the wishes were seen, left out of quality" if c["revised"] else ""
    )
    if c["left_out"]:
        text += f"; left out for failed attention checks: {', '.join(c['left_out'])}"
    return text + "."


def _preference(result: Result) -> str:
    return (
        f"Knowing the wishes, people prefer the labelled answer {_percent(result['preference']['after'])} of the time."
    )


def _personal(result: Result) -> str:
    share = _percent(result["personal"]["items"])
    return f"A majority calls the difference one of personal preference on {share} of the items."


def _parity(result: Result) -> str:
    quality, margin = result["quality"], result["quality"]["margin"]
    signed = {c: quality[c]["parity"] for c in CRITERIA if quality[c]["parity"]}
    sizes = {c: quality[c]["mirror_size"] for c in CRITERIA if quality[c]["mirror_size"]}
    if not signed and not sizes:
        return "Nothing has been rated yet, so equal quality is not shown."
    parts = []
    if signed:
        each = ", ".join(f"{c} {_signed(p)}" for c, p in signed.items())
        holds = all(p["equivalent"] for p in signed.values())
        parts.append(
            f"The answers are {'' if holds else 'not shown to be '}equally good within ±{margin:g} points: {each}."
        )
    if sizes:
        each = ", ".join(f"{c} {_size(s)}" for c, s in sizes.items())
        holds = all(s["high"] is not None and s["high"] < margin for s in sizes.values())
        how = "differ by" if holds else "are not shown to differ by"
        parts.append(f"Answers to mirrored questions {how} less than {margin:g} points in the mean: {each}.")
    return " ".join(parts)


def _agreement(result: Result) -> str:
    after = result["agreement"]["after"]
    alpha = after["alpha"]
    if alpha["value"] is None:
        return "No item has two votes that could agree or differ."
    how = "agree" if alpha["value"] >= GOOD_ALPHA else "do not agree well enough"
    return (
        f"People {how} on the preference: Krippendorff’s α {_plain(alpha)} (wanted: {GOOD_ALPHA}), "
        f"Fleiss’ κ {_plain(after['fleiss'])}, Gwet’s AC1 {_plain(after['ac1'])}, "
        f"mean Cohen’s κ {_plain(after['cohen'])}."
    )


SENTENCES: dict[str, Callable[[Result], str]] = {
    "preference": _preference,
    "parity": _parity,
    "personal": _personal,
    "agreement": _agreement,
}


def _before(result: Result) -> str:
    return f"From the posts alone, before the wishes were shown, it was {_percent(result['preference']['before'])}."


def _people(result: Result) -> str:
    people = result["annotators"]
    if not people:
        return "No annotator has finished an item."
    worst = min(people, key=lambda p: float(p["reliability"]))
    return (
        f"Annotator reliability (Dawid-Skene) runs from {worst['reliability']:.2f} ({worst['annotator']}) "
        f"to {max(p['reliability'] for p in people):.2f}."
    )


def _drop(result: Result) -> str:
    drop = result["drop"]
    if not drop:
        return "No item has to be dropped."
    names = ", ".join(d["item"] for d in drop[:8]) + (", …" if len(drop) > 8 else "")
    return f"{len(drop)} {'item' if len(drop) == 1 else 'items'} should be dropped or repaired: {names}."


def _more(result: Result) -> str:
    plan = result["planning"]
    wants = []
    if plan["items_for_parity"]:
        wants.append(f"{plan['items_for_parity']} unmirrored items to show equal quality (80 % power)")
    if plan["items_for_preference"]:
        wants.append(
            f"{plan['items_for_preference']} items for a preference share of ±{100 * plan['half_width']:g} points"
        )
    return (
        f"A next study like this one would need {' and '.join(wants)}."
        if wants
        else "Too little for planning a next study."
    )


def _percent(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "an unknown share"
    return f"{100 * e['value']:.1f} % [{100 * e['low']:.1f}, {100 * e['high']:.1f}]"


def _plain(e: dict[str, Any]) -> str:
    if e["value"] is None:
        return "undefined"
    return f"{e['value']:.2f}" + ("" if e["low"] is None else f" [{e['low']:.2f}, {e['high']:.2f}]")


def _signed(p: dict[str, Any]) -> str:
    if p["p"] is None:
        return "too few"
    effect = "" if p["effect"] is None else f", d {p['effect']:+.2f}"
    return f"{p['mean']:+.2f} [{p['low']:+.2f}, {p['high']:+.2f}]{effect}, p {p['p']:.3f}"


def _size(s: dict[str, Any]) -> str:
    return f"{s['value']:.2f}" + ("" if s["low"] is None else f" [{s['low']:.2f}, {s['high']:.2f}]")
