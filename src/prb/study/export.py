"""`prb study export`: what a study holds, as files; one snapshot, even while annotators work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.errors import BadInput
from prb.runs import content_digest, is_draft, read_sealed, write_lines, write_sealed, writing
from prb.study.config import ExportConfig
from prb.study.database import ANNOTATOR, ANSWER, ASSIGNMENT, ITEM, POST, open_study, study_row
from prb.study.judgments import unblind

STUDY_FILE, JUDGMENTS_FILE = "study.json", "judgements.jsonl"
Row = dict[str, Any]


def export(config: ExportConfig) -> dict[str, int]:
    """Write the files; returns the number of rows in each."""
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
    write_sealed(folder / STUDY_FILE, about)  # first, so that an interrupted export can be repeated
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
    items, rows = _items(connection), list[Row]()
    for steps in _replies(connection):
        item, first = items[steps[0].item], steps[0]
        replies = {step.step: unblind(step.said, first.flipped) for step in steps}
        before, after = replies.get(1, {}), replies.get(2, {})
        rows.append(
            {
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
        )
    return rows


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
