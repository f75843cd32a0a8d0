"""What is asked about an item, which replies are valid, how they are stored, taken back and exported.

A new question is a field in `validate_fields` or `collect_fields`: the page shows it, the reply is stored, and the
export holds it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from itertools import chain, count, groupby, islice, product
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.errors import BadInput
from prb.hashing import draw
from prb.runs import is_draft, json_line, read_json, write_json, write_lines, writing
from prb.study.config import CRITERIA, ExportConfig, Judgment
from prb.study.database import ANNOTATOR, ASSIGNMENT, AUDIT, ITEM, POST, REPLY, log, open_study, study_row

STUDY_FILE, JUDGMENTS_FILE = "study.json", "judgements.jsonl"
Row = dict[str, Any]
SKIP_REASONS = {
    "unclear": "The question or an answer makes no sense",
    "unknown": "I know too little about the topic",
    "upsetting": "It is offensive or upsetting",
    "technical": "It is not displayed properly",
    "other": "Another reason",
}
MAX_TEXT = 20_000
"""Characters of a post, a question or a wish; longer ones are refused, never cut."""
EXPORTED_ELSEWHERE = frozenset({"ratings", "prefer", "sure", "difference", "skip", "words"})
"""Fields of a validation reply that have a column of their own; every other field is exported under its own name."""
COLLECTED_ELSEWHERE = frozenset({"narrative", "ratings", "best", "worst", "skip", "words"})
"""The same of a collection; every other field is exported in `replies`: a name may mean something else in a dataset."""
TAKEN_NAMES = frozenset({"token", "active", "ratings", "skip", "words"})
"""What forms and stored replies hold besides the questions."""
TAKEN_KEYS = "jknsu"
"""Shortcuts with another meaning: next, previous, neither, skip, undo."""


class FormOption(NamedTuple):
    value: str
    label: str
    key: str
    """The key that picks it."""


class FormField(NamedTuple):
    name: str
    label: str
    options: tuple[FormOption, ...] = ()
    """Without options: free text."""
    hint: str = ""
    ends: tuple[str, str] = ("", "")
    """What the two ends of a scale mean."""


SCALE = tuple(FormOption(str(n), str(n), str(n)) for n in range(1, 6))
PREFERENCE = (FormOption("A", "Answer A", "a"), FormOption("B", "Answer B", "b"), FormOption("neither", "Neither", "n"))
SURE = (FormOption("1", "A guess", "1"), FormOption("2", "Fairly sure", "2"), FormOption("3", "Certain", "3"))
DIFFERENCE = (
    FormOption("preference", "Personal preference", "p"),
    FormOption("quality", "Quality", "q"),
    FormOption("unclear", "Can’t tell", "t"),
)


def has_rubric(content: Mapping[str, Any]) -> bool:
    return bool(content["rubric"] or content["narrative"])


def step_count(kind: str, content: Mapping[str, Any]) -> int:
    """A rubric is shown in a second step, and so are a participant's answers; without them one step is all."""
    return 2 if (has_rubric(content) if kind == "validate" else content["answers"]) else 1


def form_fields(kind: str, step: int, content: Mapping[str, Any]) -> list[FormField]:
    if kind == "collect":
        return collect_fields(step, len(content["answers"]))
    return validate_fields(step, rubric=has_rubric(content))


def check_fields(kind: str) -> None:
    """Refuse a question whose reply could not be stored or exported, before anybody is asked."""
    for step, rubric in product((1, 2), ([], ["any"])):
        for field in form_fields(kind, step, {"answers": ["", "", ""], "rubric": rubric, "narrative": ""}):
            if problem := field_problem(kind, field):
                raise BadInput(f"study question {field.name!r}: {problem}")


def field_problem(kind: str, field: FormField) -> str | None:
    taken = TAKEN_NAMES | (set(Judgment.__struct_fields__) - EXPORTED_ELSEWHERE if kind == "validate" else set())
    named = re.fullmatch("([A-Z]+-)?([a-z][a-z0-9_]*)", field.name)
    if not named:
        return "a name is lower-case letters, digits and _, such as how_long; ratings of answer A begin with A-"
    if field.name in taken:
        return "this name is taken"
    if named[1] and not (field.options and all(option.value.isdecimal() for option in field.options)):
        return "what is asked of one answer is a rating; its options must be numbers"
    if named[1] and kind == "collect" and named[2] != "rating":
        return "a collection has one rating per answer, A-rating"
    return None


def validate_fields(step: int, *, rubric: bool = True) -> list[FormField]:
    """Step 1: quality and preference from the posts alone. Step 2: the preference again, with the rubric shown."""
    reasons = [
        FormField("sure", "How sure are you?", SURE),
        FormField("difference", "What is the main difference between the answers?", DIFFERENCE),
    ]
    if step > 1:
        again = "Now that you know this: which answer would this user prefer?"
        return [FormField("prefer", again, PREFERENCE), *reasons]
    ratings = [
        FormField(f"{answer}-{name}", name.capitalize(), SCALE, hint, ("poor", "excellent"))
        for answer in "AB"
        for name, hint in CRITERIA.items()
    ]
    prefer = FormField("prefer", "Which answer would this user prefer?", PREFERENCE)
    return [*ratings, prefer] if rubric else [*ratings, prefer, *reasons]


def collect_fields(step: int, answers: int) -> list[FormField]:
    """Step 1: what the participant wants. Step 2: ratings and a choice among the answers."""
    if step == 1:
        hint = "What should it contain, how should it sound, what should it leave out, and why?"
        return [FormField("narrative", "What would make an answer a good one for you?", hint=hint)]
    names = letters(answers)
    ends = ("not at all", "perfectly")
    fields = [FormField(f"{name}-rating", "How well does it suit you?", SCALE, ends=ends) for name in names]
    keys = {name: name.lower() if len(name) == 1 and name.lower() not in TAKEN_KEYS else "" for name in names}
    each = [FormOption(name, f"Answer {name}", key) for name, key in keys.items()]
    fields.append(FormField("best", "Which one do you prefer?", (*each, FormOption("neither", "No preference", "n"))))
    if answers > 2:
        options = (*each, FormOption("neither", "Can’t say", "n"))
        fields.append(FormField("worst", "Which one suits you least?", options))
    return fields


def letters(answers: int) -> list[str]:
    """Names of the answers on the page: A to Z, then AA, AB, …"""
    names = chain.from_iterable(map("".join, product(ascii_uppercase, repeat=length)) for length in count(1))
    return list(islice(names, answers))


def check_reply(fields: Sequence[FormField], form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The valid values, and for each other field what is missing or wrong."""
    reply: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for field in fields:
        value = form.get(field.name, "").strip()
        if not value:
            wrong[field.name] = "Please write something here" if not field.options else "Please choose"
        elif field.options and value not in {option.value for option in field.options}:
            wrong[field.name] = "Please choose one of these"
        elif len(value) > MAX_TEXT:
            wrong[field.name] = too_long(value)
        else:
            reply[field.name] = value
    if reply.get("best") not in (None, "neither") and reply.get("best") == reply.get("worst"):
        wrong["worst"] = "The best answer cannot also be the worst one"
    return reply, wrong


def too_long(text: str, limit: int = MAX_TEXT) -> str:
    return f"This text has {len(text):,} characters; at most {limit:,} are allowed"


def unblind(reply: Mapping[str, Any], flipped: bool) -> dict[str, Any]:
    """A validation reply with chosen and rejected in place of A and B."""
    names = {"A": "rejected" if flipped else "chosen", "B": "chosen" if flipped else "rejected", "neither": "neither"}
    unblinded: dict[str, Any] = {}
    for key, value in reply.items():
        answer, dash, criterion = key.partition("-")
        if dash:
            unblinded.setdefault("ratings", {}).setdefault(names[answer], {})[criterion] = int(value)
        else:
            unblinded[key] = names[value] if key == "prefer" else value
    return unblinded


def shown_order(pseudonym: str, content: Mapping[str, Any]) -> list[int]:
    """The order in which a participant sees the answers: random, but always the same for them."""
    numbers = range(len(content["answers"]))
    return sorted(numbers, key=lambda n: draw(0, "shown", pseudonym, content["question"], n))


def numbered_reply(reply: Mapping[str, str], pseudonym: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A collection reply with answer numbers in place of letters, so that it does not depend on the order shown."""
    order = shown_order(pseudonym, content)
    number = dict(zip(letters(len(order)), order, strict=True))
    numbered: dict[str, Any] = {}
    for key, value in reply.items():
        letter, dash, _ = key.partition("-")
        if dash:
            numbered.setdefault("ratings", [None] * len(order))[number[letter]] = int(value)
        else:
            numbered[key] = number.get(value) if key in ("best", "worst") else value
    return numbered


def letter_reply(reply: Mapping[str, Any], pseudonym: str, content: Mapping[str, Any]) -> dict[str, str]:
    """The inverse of `numbered_reply`, for a form that is filled in again."""
    order = shown_order(pseudonym, content)
    letter = dict(zip(order, letters(len(order)), strict=True))
    values = {key: str(value) for key, value in reply.items() if key not in ("best", "worst", "ratings")}
    values |= {key: letter.get(reply[key], "neither") for key in ("best", "worst") if key in reply}
    values |= {f"{letter[n]}-rating": str(value) for n, value in enumerate(reply.get("ratings", ()))}
    return values


class CurrentStep(NamedTuple):
    """The step an annotator is at."""

    assignment: int
    step: int
    steps: int
    content: dict[str, Any]
    flipped: bool
    done: int
    total: int
    can_undo: bool

    @property
    def place(self) -> str:
        return f"{self.assignment}-{self.step}"


END = "end"
"""The place after the last item."""


def current_step(connection: Connection, annotator: int, kind: str) -> CurrentStep | None:
    """The next step of the first unfinished item; `None` when all are finished."""
    stored = sa.select(sa.func.count()).where(REPLY.c.assignment == ASSIGNMENT.c.id).scalar_subquery().label("stored")
    row = connection.execute(
        sa.select(ASSIGNMENT.c.id, ASSIGNMENT.c.flipped, ITEM.c.content, stored)
        .join_from(ASSIGNMENT, ITEM)
        .where(ASSIGNMENT.c.annotator == annotator, ASSIGNMENT.c.done.is_(False))
        .order_by(ASSIGNMENT.c.position)
        .limit(1)
    ).first()
    if row is None:
        return None
    done, total = progress(connection, annotator)
    steps, can_undo = step_count(kind, row.content), bool(done or row.stored)
    return CurrentStep(row.id, row.stored + 1, steps, row.content, row.flipped, done, total, can_undo)


def progress(connection: Connection, annotator: int) -> tuple[int, int]:
    """Finished and assigned items."""
    counts = sa.select(sa.func.sum(sa.cast(ASSIGNMENT.c.done, sa.Integer)), sa.func.count())
    done, total = connection.execute(counts.where(ASSIGNMENT.c.annotator == annotator)).one()
    return done or 0, total


def assigned_content(connection: Connection, annotator: int, assignment: int) -> dict[str, Any] | None:
    """The item of an assignment, if it is this annotator's."""
    items = sa.select(ITEM.c.content).join_from(ASSIGNMENT, ITEM)
    return connection.scalar(items.where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator))


Stored = Literal["saved", "repeated", "kept", "missing"]
"""Saved; saved before with the same content; an earlier reply is kept; there is no such assignment."""


def store_reply(
    connection: Connection,
    annotator: int,
    assignment: int,
    step: int,
    reply: Mapping[str, Any],
    *,
    last: bool,
    seconds: float,
    active: float | None,
) -> Stored:
    """Store one reply. The row's key is (assignment, step), so it is stored once however often it is sent."""
    assigned = sa.select(ASSIGNMENT.c.done).where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator)
    row = connection.execute(assigned.with_for_update()).first()
    if row is None:
        return "missing"
    replies = sa.select(REPLY.c.step, REPLY.c.fields).where(REPLY.c.assignment == assignment)
    stored = {r.step: r.fields for r in connection.execute(replies)}
    if step in stored:
        return "repeated" if stored[step] == reply else "kept"
    if row.done or step != len(stored) + 1:
        return "kept"
    values = {"assignment": assignment, "step": step, "fields": dict(reply), "seconds": seconds, "active": active}
    connection.execute(sa.insert(REPLY), {**values, "at": time.time()})
    if last:
        connection.execute(sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == assignment).values(done=True))
    log(connection, "skipped" if "skip" in reply else "replied", annotator=annotator, assignment=assignment, step=step)
    return "saved"


def undo_reply(connection: Connection, annotator: int) -> bool:
    """Take back the latest reply. Taking back step 1, after step 2 was shown, marks the assignment as revised."""
    row = connection.execute(
        sa.select(REPLY.c.assignment, REPLY.c.step, REPLY.c.fields, ASSIGNMENT.c.revised)
        .join_from(REPLY, ASSIGNMENT)
        .where(ASSIGNMENT.c.annotator == annotator)
        .order_by(ASSIGNMENT.c.position.desc(), REPLY.c.step.desc())  # not by time: clocks are set back
        .limit(1)
        .with_for_update()
    ).first()
    if row is None:
        return False
    connection.execute(sa.delete(REPLY).where(REPLY.c.assignment == row.assignment, REPLY.c.step == row.step))
    revised = row.revised or (row.step == 1 and "skip" not in row.fields)
    connection.execute(
        sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == row.assignment).values(done=False, revised=revised)
    )
    log(connection, "undone", annotator=annotator, assignment=row.assignment, step=row.step, reply=row.fields)
    return True


def undone_reply(connection: Connection, annotator: int, now: CurrentStep) -> dict[str, Any]:
    """The reply that was just taken back, to fill in the form again."""
    detail = connection.scalar(
        sa.select(AUDIT.c.detail)
        .where(AUDIT.c.annotator == annotator, AUDIT.c.what == "undone")
        .order_by(AUDIT.c.id.desc())
        .limit(1)
    )
    if detail is None or (detail["assignment"], detail["step"]) != (now.assignment, now.step):
        return {}
    return dict(detail["reply"])


# --- export: one snapshot, even while annotators work ---
def study_tables(connection: Connection) -> tuple[Row, dict[str, list[Row]]]:
    """What a study is, and what it holds so far: the rows of each file of an export."""
    study = study_row(connection)
    if study.kind == "validate":
        tables = {JUDGMENTS_FILE: [judgment.row() for judgment in judgments(connection)]}
    else:
        tables = collected_tables(connection)
    about = {key: getattr(study, key) for key in ("kind", "title", "created", "settings")}
    about |= {"exported": time.time(), "rows": {name: len(rows) for name, rows in tables.items()}}
    return about, tables


def export(config: ExportConfig) -> dict[str, int]:
    """Write the files; returns the number of rows in each."""
    with closing(open_study(config.study)) as database, database.read() as connection:
        about, tables = study_tables(connection)
    folder = config.out
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not all(is_draft(entry) for entry in folder.iterdir()):
            previous = read_json(folder / STUDY_FILE) if (folder / STUDY_FILE).is_file() else {}
            if previous.get("created") != about["created"]:
                raise BadInput(f"{folder} exists and is not an export of this study; choose another --out")
    write_json(folder / STUDY_FILE, about)  # first, so that an interrupted export can be repeated
    for name, rows in tables.items():
        write_lines(folder / name, rows)
    return dict(about["rows"])


def export_archive(connection: Connection) -> bytes:
    """The files of an export as a ZIP archive, for the browser."""
    about, tables = study_tables(connection)
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        archive.writestr(STUDY_FILE, json_line(about))
        for name, rows in tables.items():
            archive.writestr(name, b"".join(map(json_line, rows)))
    return content.getvalue()


def _replies(connection: Connection) -> Iterable[list[Any]]:
    """The replies of each assignment, by step, with their annotator and item."""
    rows = connection.execute(
        sa.select(REPLY, ASSIGNMENT.c.item, ASSIGNMENT.c.flipped, ASSIGNMENT.c.revised, ANNOTATOR.c.pseudonym)
        .select_from(REPLY.join(ASSIGNMENT).join(ANNOTATOR))
        .order_by(REPLY.c.assignment, REPLY.c.step)
    ).all()
    return (list(steps) for _, steps in groupby(rows, key=lambda row: row.assignment))


def _items(connection: Connection) -> dict[int, Any]:
    return {row.id: row for row in connection.execute(sa.select(ITEM))}


def judgments(connection: Connection) -> list[Judgment]:
    """One per annotator × item. Practice is left out."""
    items, rows = _items(connection), list[Judgment]()
    for steps in _replies(connection):
        item, first = items[steps[0].item], steps[0]
        if item.content.get("practice"):
            continue
        rubric = has_rubric(item.content)
        replies = {step.step: unblind(step.fields, first.flipped) for step in steps}
        before, after = replies.get(1, {}), replies.get(2 if rubric else 1, {})
        rows.append(
            Judgment(
                item=item.key,
                user=item.content["user"],
                cluster=item.cluster,
                group=item.content["group"],
                mirror=item.content["twin"],
                check=item.is_check,
                rubric=rubric,
                annotator=first.pseudonym,
                first="rejected" if first.flipped else "chosen",
                ratings=before.get("ratings", {}),
                before=before.get("prefer"),
                after=after.get("prefer"),
                sure=int(after["sure"]) if "sure" in after else None,
                difference=after.get("difference"),
                skipped=before.get("skip") or after.get("skip"),
                skipped_words=before.get("words") or after.get("words") or None,
                revised=first.revised,
                seconds=[step.seconds for step in steps],
                active=[step.active for step in steps],
                at=steps[-1].at,
                more={name: value for name, value in (before | after).items() if name not in EXPORTED_ELSEWHERE},
            )
        )
    return rows


def collected_tables(connection: Connection) -> dict[str, list[Row]]:
    """A dataset: `pairs.jsonl` and `ratings.jsonl`; `records.jsonl` holds questions with wishes, for `prb build`."""
    posts: dict[str, list[Row]] = {}
    for pseudonym, text in connection.execute(
        sa.select(ANNOTATOR.c.pseudonym, POST.c.text).join_from(POST, ANNOTATOR).order_by(POST.c.id)
    ):
        profile = posts.setdefault(pseudonym, [])
        profile.append({"id": f"{pseudonym}-{len(profile) + 1}", "category": "", "text": text})
    items = _items(connection)
    pairs, ratings, records = list[Row](), list[Row](), list[Row]()
    for steps in _replies(connection):
        wish = steps[0].fields.get("narrative")
        if wish is None:
            continue
        item, user = items[steps[0].item], steps[0].pseudonym
        key = f"{user}-{item.key}"
        common: Row = {
            "user": user,
            "question": item.content["question"],
            "profile": posts.get(user, []),
            "narrative": wish,
            "category": item.content["category"] or "other",
        }
        replies = [(name, value) for step in steps for name, value in step.fields.items()]
        if more := {name: value for name, value in replies if name not in COLLECTED_ELSEWHERE}:
            common["replies"] = more
        records.append({"id": key, **common})
        if len(steps) == 2 and "skip" not in steps[1].fields:
            reply, answers = steps[1].fields, item.content["answers"]
            pairs += [
                {"id": f"{key}-{a}-{b}", **common, "rubric_aspects": [], "chosen": answers[a], "rejected": answers[b]}
                for a, b in preferences(reply, len(answers))
            ]
            ratings += [
                {"id": f"{key}-{n}", **common, "answer": answers[n], "rating": (rating - 1) / 4}  # 1..5 as 0..1
                for n, rating in enumerate(reply["ratings"])
            ]
    return {"pairs.jsonl": pairs, "ratings.jsonl": ratings, "records.jsonl": records}


def preferences(reply: Mapping[str, Any], answers: int) -> list[tuple[int, int]]:
    """The best answer above every other one, and every other one above the worst."""
    best, worst = reply.get("best"), reply.get("worst")
    wins = [(best, n) for n in range(answers) if n != best] if best is not None else []
    wins += [(n, worst) for n in range(answers) if n not in (best, worst)] if worst is not None else []
    return wins
