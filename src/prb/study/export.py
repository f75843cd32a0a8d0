"""What a study holds, as files: one snapshot, however many people are writing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy import Connection

from prb.errors import BadInput
from prb.runs import read_json, write_json
from prb.study.config import ExportConfig
from prb.study.database import open_study, study_row
from prb.study.forms import unblind
from prb.study.tables import ANNOTATOR, ANSWER, ASSIGNMENT, ITEM, POST

ABOUT = "study.json"
Row = dict[str, Any]


def export(config: ExportConfig) -> dict[str, int]:
    """Write the files; how many rows each got."""
    database = open_study(config.study)
    try:
        with database.read() as connection:
            study = study_row(connection)
            make = judgement_files if study["kind"] == "validate" else collected_files
            tables = make(connection)
    finally:
        database.close()
    about = {"kind": study["kind"], "title": study["title"], "created": study["created"], "settings": study["settings"]}
    _prepare(config.out, about)
    for name, rows in tables.items():
        _write(config.out / name, rows)
    counts = {name: len(rows) for name, rows in tables.items()}
    write_json(config.out / ABOUT, {**about, "exported": time.time(), "rows": counts})
    return counts


def _prepare(folder: Path, about: Mapping[str, Any]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        known = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
        if known.get("created") != about["created"]:
            raise BadInput(f"{folder} exists and is no export of this study; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be made: {error.strerror}") from None


def _write(path: Path, rows: Iterable[Row]) -> None:
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as file:
        file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def judgement_files(connection: Connection) -> dict[str, list[Row]]:
    return {"judgements.jsonl": judgements(connection)}


def _replies(connection: Connection) -> Iterable[tuple[int, list[Any]]]:
    """All replies with their item and person, by assignment."""
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
    for assignment, steps in groupby(rows, key=lambda r: r.id):
        yield assignment, list(steps)


def _items(connection: Connection) -> dict[int, Any]:
    return {row.id: row for row in connection.execute(sa.select(ITEM))}


def judgements(connection: Connection) -> list[Row]:
    """One line for each annotator × item, unblinded: A and B are chosen and rejected again."""
    items = _items(connection)
    return [_judgement(items[steps[0].item], steps) for _, steps in _replies(connection)]


def _judgement(item: Any, steps: list[Any]) -> Row:
    first = steps[0]
    said = {step.step: unblind(step.said, first.flipped) for step in steps}
    before, after = said.get(1, {}), said.get(2, {})
    skipped = before.get("skip") or after.get("skip")
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
        "skipped": skipped,
        "skipped_words": before.get("words") or after.get("words") or None,
        "revised": first.revised,
        "seconds": [step.seconds for step in steps],
        "active": [step.active for step in steps],
        "at": steps[-1].at,
    }


def collected_files(connection: Connection) -> dict[str, list[Row]]:
    """A dataset: `pairs.jsonl` and `ratings.jsonl`; `records.jsonl` holds questions with wishes, for `prb build`."""
    posts: dict[str, list[Row]] = {}
    for pseudonym, text in connection.execute(
        sa.select(ANNOTATOR.c.pseudonym, POST.c.text)
        .join_from(POST, ANNOTATOR, POST.c.annotator == ANNOTATOR.c.id)
        .order_by(POST.c.id)
    ):
        own = posts.setdefault(pseudonym, [])
        own.append({"id": f"{pseudonym}-{len(own) + 1}", "category": "", "text": text})
    items = _items(connection)
    files: dict[str, list[Row]] = {"pairs.jsonl": [], "ratings.jsonl": [], "records.jsonl": []}
    for _, steps in _replies(connection):
        wish = steps[0].said.get("narrative")
        if wish is None:
            continue
        item, user = items[steps[0].item], steps[0].pseudonym
        common = {
            "user": user,
            "question": item.content["question"],
            "profile": posts.get(user, []),
            "narrative": wish,
            "category": item.content["category"] or "other",
        }
        files["records.jsonl"].append({"id": f"{user}-{item.key}", **common})
        if len(steps) == 2 and "skip" not in steps[1].said:
            files["pairs.jsonl"] += _pairs(f"{user}-{item.key}", common, item.content["answers"], steps[1].said)
            files["ratings.jsonl"] += _ratings(f"{user}-{item.key}", common, item.content["answers"], steps[1].said)
    return files


def _pairs(key: str, common: Row, answers: list[str], said: Mapping[str, Any]) -> list[Row]:
    """The best answer above every other one, and every other one above the worst."""
    best, worst = said.get("best"), said.get("worst")
    numbers = range(len(answers))
    wins = [(best, n) for n in numbers if n != best] if best is not None else []
    wins += [(n, worst) for n in numbers if n not in (best, worst)] if worst is not None else []
    rows = {f"{key}-{a}-{b}": (answers[a], answers[b]) for a, b in wins}
    return [{"id": i, **common, "rubric_aspects": [], "chosen": a, "rejected": b} for i, (a, b) in rows.items()]


def _ratings(key: str, common: Row, answers: list[str], said: Mapping[str, Any]) -> list[Row]:
    """1 to 5 as 0 to 1."""
    return [
        {"id": f"{key}-{n}", **common, "answer": answers[n], "rating": (rating - 1) / 4}
        for n, rating in enumerate(said["ratings"])
    ]
