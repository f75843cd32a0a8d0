"""What a study holds, as files: one snapshot, whatever is written meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.errors import BadInput
from prb.runs import content_digest, is_draft, read_sealed, write_lines, write_sealed, writing
from prb.study.config import CRITERIA, ExportConfig
from prb.study.database import ANNOTATOR, ANSWER, ASSIGNMENT, ITEM, POST, open_study, study_row
from prb.study.judgments import unblind

STUDY_FILE, JUDGMENTS_FILE = "study.json", "judgements.jsonl"
Row = dict[str, Any]


def export(config: ExportConfig) -> dict[str, int]:
    """Write the files; the number of rows in each."""
    with closing(open_study(config.study)) as database, database.read() as connection:
        study = study_row(connection)
        if study["kind"] == "validate":
            tables = {JUDGMENTS_FILE: judgments(connection)}
        else:
            tables = collected_tables(connection)
    about = {key: study[key] for key in ("kind", "title", "created", "settings")}
    folder = config.out
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not all(is_draft(entry) for entry in folder.iterdir()):
            previous = read_sealed(folder / STUDY_FILE) if (folder / STUDY_FILE).is_file() else {}
            if previous.get("created") != about["created"]:
                raise BadInput(f"{folder} exists and is not an export of this study; choose another --out")
    write_sealed(folder / STUDY_FILE, about)  # whose folder it is, in case this process is killed
    for name, rows in tables.items():
        write_lines(folder / name, rows)
    counts = {name: len(rows) for name, rows in tables.items()}
    digests = {name: content_digest(folder / name) for name in tables}
    write_sealed(folder / STUDY_FILE, {**about, "exported": time.time(), "rows": counts, "digests": digests})
    return counts


def _replies(connection: Connection) -> Iterable[list[Any]]:
    """The replies of each assignment, by step, with their annotator and item."""
    rows = connection.execute(
        sa.select(
            ASSIGNMENT.c.id,
            ASSIGNMENT.c.flipped,
            ASSIGNMENT.c.revised,
            ANNOTATOR.c.pseudonym,
            ITEM.c.id.label("item"),
            ANSWER.c.step,
            ANSWER.c.said,
            ANSWER.c.seconds,
            ANSWER.c.active,
            ANSWER.c.at,
        )
        .select_from(
            ANSWER.join(ASSIGNMENT, ANSWER.c.assignment == ASSIGNMENT.c.id)
            .join(ITEM, ASSIGNMENT.c.item == ITEM.c.id)
            .join(ANNOTATOR, ASSIGNMENT.c.annotator == ANNOTATOR.c.id)
        )
        .order_by(ASSIGNMENT.c.id, ANSWER.c.step)
    ).all()
    return (list(steps) for _, steps in groupby(rows, key=lambda r: r.id))


def _items(connection: Connection) -> dict[int, Any]:
    return {row.id: row for row in connection.execute(sa.select(ITEM))}


def judgments(connection: Connection) -> list[Row]:
    """One row per annotator × item, unblinded: A and B are chosen and rejected again."""
    items = _items(connection)
    return [_judgment(items[steps[0].item], steps) for steps in _replies(connection)]


def _judgment(item: Any, steps: list[Any]) -> Row:
    first = steps[0]
    replies = {step.step: unblind(step.said, first.flipped) for step in steps}
    before, after = replies.get(1, {}), replies.get(2, {})
    return {
        "item": item.key,
        "user": item.content["user"],
        "cluster": item.cluster,
        "group": item.content["group"],
        "mirror": item.content["twin"],
        "check": item.is_check,
        "annotator": first.pseudonym,
        "first": "rejected" if first.flipped else "chosen",
        "ratings": before.get("ratings", {}),
        "before": before.get("prefer"),
        "after": after.get("prefer"),
        "sure": int(after["sure"]) if "sure" in after else None,
        "difference": after.get("difference"),
        "skipped": before.get("skip") or after.get("skip"),
        "skipped_words": before.get("words") or after.get("words") or None,
        "revised": first.revised,
        "seconds": [step.seconds for step in steps],
        "active": [step.active for step in steps],
        "at": steps[-1].at,
    }


def collected_tables(connection: Connection) -> dict[str, list[Row]]:
    """A dataset: `pairs.jsonl` and `ratings.jsonl`; `records.jsonl` holds questions with wishes, for `prb build`."""
    posts: dict[str, list[Row]] = {}
    for pseudonym, text in connection.execute(
        sa.select(ANNOTATOR.c.pseudonym, POST.c.text)
        .join_from(POST, ANNOTATOR, POST.c.annotator == ANNOTATOR.c.id)
        .order_by(POST.c.id)
    ):
        profile = posts.setdefault(pseudonym, [])
        profile.append({"id": f"{pseudonym}-{len(profile) + 1}", "category": "", "text": text})
    items = _items(connection)
    pairs, ratings, records = list[Row](), list[Row](), list[Row]()
    for steps in _replies(connection):
        wish = steps[0].said.get("narrative")
        if wish is None:
            continue
        item, user = items[steps[0].item], steps[0].pseudonym
        key = f"{user}-{item.key}"
        common = {
            "user": user,
            "question": item.content["question"],
            "profile": posts.get(user, []),
            "narrative": wish,
            "category": item.content["category"] or "other",
        }
        records.append({"id": key, **common})
        if len(steps) == 2 and "skip" not in steps[1].said:
            reply, answers = steps[1].said, item.content["answers"]
            pairs += [
                {"id": f"{key}-{a}-{b}", **common, "rubric_aspects": [], "chosen": answers[a], "rejected": answers[b]}
                for a, b in preferences(reply, len(answers))
            ]
            ratings += [
                {"id": f"{key}-{n}", **common, "answer": answers[n], "rating": (rating - 1) / 4}  # 1..5 as 0..1
                for n, rating in enumerate(reply["ratings"])
                if rating is not None  # older versions could not ask about answers after the 26th
            ]
    return {"pairs.jsonl": pairs, "ratings.jsonl": ratings, "records.jsonl": records}


def preferences(reply: Mapping[str, Any], answers: int) -> list[tuple[int, int]]:
    """The best answer above every other one, and every other one above the worst."""
    best, worst = reply.get("best"), reply.get("worst")
    wins = [(best, n) for n in range(answers) if n != best] if best is not None else []
    wins += [(n, worst) for n in range(answers) if n not in (best, worst)] if worst is not None else []
    return wins


Summary = dict[str, Any]
GOOD_ALPHA = 0.667
"""Below this, Krippendorff (2004, Content Analysis) draws no conclusions at all."""
NAMED_ITEMS = 8


def verdict(summary: Summary) -> list[str]:
    """From the data behind it to what to do next."""
    claims = [f"{'✓' if summary['verdicts'][name] else '✗'} {say(summary)}" for name, say in SENTENCES.items()]
    before = f"From the posts alone, before the rubric was shown, it was {_percent(summary['preference']['before'])}."
    return [_basis(summary), *claims, before, _reliability(summary), _drop(summary), _next_study(summary)]


def _basis(summary: Summary) -> str:
    c = summary["counts"]
    parts = [f"{c['judgements']} judgments of {c['items']} items by {c['annotators']} annotators"]
    if c["skipped"]:
        parts.append(f"{c['skipped']} skipped")
    if c["revised"]:
        parts.append(f"{c['revised']} changed after the rubric was shown, left out of quality")
    if c["left_out"]:
        parts.append(f"left out for failed attention checks: {', '.join(c['left_out'])}")
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
        holds = all(p["equivalent"] for p in signed.values())
        parts.append(
            f"The answers are {'' if holds else 'not shown to be '}equally good within ±{margin:g} points: {each}."
        )
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
