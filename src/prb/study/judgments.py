"""What is asked about an item, which replies are valid, how they are stored, taken back and exported.

A new question is a field in `validate_fields` or `collect_fields`: the page shows it, the reply is stored, and the
export holds it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from prb.errors import BadInput
from prb.hashing import draw
from prb.runs import read_json, write_json, write_lines, writing
from prb.study.config import CRITERIA, ExportConfig, Judgment
from prb.study.database import ANNOTATOR, ASSIGNMENT, AUDIT, ITEM, POST, REPLY, log, open_study, study_row

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
EXPORTED_ELSEWHERE = frozenset({"ratings", "prefer", "difference", "skip"})
"""Fields of a validation reply that have a column of their own; every other field is exported under its own name."""
COLLECTED_ELSEWHERE = frozenset({"narrative", "ratings", "best", "skip"})
"""Likewise for a collection; every other field is exported in `replies`: a name may mean something else there."""
LETTERS = ascii_uppercase
"""Names of the answers on the page."""
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


def validate_fields(step: int, *, rubric: bool = True) -> list[FormField]:
    """Step 1: quality and preference from the posts alone. Step 2: the preference again, with the rubric shown."""
    difference = FormField("difference", "What is the main difference between the answers?", DIFFERENCE)
    if step > 1:
        again = "Now that you know this: which answer would this user prefer?"
        return [FormField("prefer", again, PREFERENCE), difference]
    ratings = [
        FormField(f"{answer}-{name}", name.capitalize(), SCALE, hint, ("poor", "excellent"))
        for answer in "AB"
        for name, hint in CRITERIA.items()
    ]
    prefer = FormField("prefer", "Which answer would this user prefer?", PREFERENCE)
    return [*ratings, prefer] if rubric else [*ratings, prefer, difference]


def collect_fields(step: int, answers: int) -> list[FormField]:
    """Step 1: what the participant wants. Step 2: ratings and a choice among the answers."""
    if step == 1:
        hint = "What should it contain, how should it sound, what should it leave out, and why?"
        return [FormField("narrative", "What would make an answer a good one for you?", hint=hint)]
    names = LETTERS[:answers]
    ends = ("not at all", "perfectly")
    fields = [FormField(f"{name}-rating", "How well does it suit you?", SCALE, ends=ends) for name in names]
    each = [FormOption(a, f"Answer {a}", a.lower() if a.lower() not in TAKEN_KEYS else "") for a in names]
    options = (*each, FormOption("neither", "No preference", "n"))
    return [*fields, FormField("best", "Which one do you prefer?", options)]


def which_fields(fields: Iterable[FormField]) -> set[str]:
    """Those whose options are the answers, by their letters on the page; exported is what these stand for."""
    return {field.name for field in fields if set("AB") <= {option.value for option in field.options}}


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
    return reply, wrong


def too_long(text: str) -> str:
    return f"This text has {len(text):,} characters; at most {MAX_TEXT:,} are allowed"


def decoded(reply: Mapping[str, str], names: Mapping[str, Any], fields: Iterable[FormField]) -> dict[str, Any]:
    """A reply to these fields with what the letters on the page stand for, by `names`, in place of the letters."""
    which = which_fields(fields)
    content: dict[str, Any] = {}
    for key, value in reply.items():
        letter, dash, criterion = key.partition("-")
        if dash:
            content.setdefault("ratings", {}).setdefault(names[letter], {})[criterion] = int(value)
        else:
            content[key] = names.get(value) if key in which else value
    return content


def shown_order(pseudonym: str, content: Mapping[str, Any]) -> list[int]:
    """The order in which a participant sees the answers: random, but always the same for them."""
    numbers = range(len(content["answers"]))
    return sorted(numbers, key=lambda n: draw(0, "shown", pseudonym, content["question"], n))


def numbered_reply(reply: Mapping[str, str], pseudonym: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A collection reply with answer numbers in place of letters, so that it does not depend on the order shown."""
    numbers = dict(zip(LETTERS, shown_order(pseudonym, content), strict=False))
    numbered = decoded(reply, numbers, form_fields("collect", 2, content))
    if ratings := numbered.get("ratings"):
        numbered["ratings"] = [ratings[n]["rating"] for n in range(len(numbers))]
    return numbered


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


Stored = Literal["saved", "kept", "missing"]
"""Saved, now or before; an earlier reply is kept; there is no such assignment."""


def store_reply(
    connection: Connection,
    annotator: int,
    assignment: int,
    step: int,
    reply: Mapping[str, Any],
    *,
    last: bool,
    seconds: float,
) -> Stored:
    """Store one reply. The row's key is (assignment, step), so it is stored once however often it is sent."""
    assigned = sa.select(ASSIGNMENT.c.done).where(ASSIGNMENT.c.id == assignment, ASSIGNMENT.c.annotator == annotator)
    row = connection.execute(assigned.with_for_update()).first()
    if row is None:
        return "missing"
    replies = sa.select(REPLY.c.step, REPLY.c.fields).where(REPLY.c.assignment == assignment)
    stored = {r.step: r.fields for r in connection.execute(replies)}
    if step in stored:
        return "saved" if stored[step] == reply else "kept"
    if row.done or step != len(stored) + 1:
        return "kept"
    values = {"assignment": assignment, "step": step, "fields": dict(reply), "seconds": seconds}
    connection.execute(sa.insert(REPLY), {**values, "at": time.time()})
    if last:
        connection.execute(sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == assignment).values(done=True))
    log(connection, "skipped" if "skip" in reply else "replied", annotator=annotator, assignment=assignment, step=step)
    return "saved"


def undo_reply(connection: Connection, annotator: int) -> None:
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
        return
    connection.execute(sa.delete(REPLY).where(REPLY.c.assignment == row.assignment, REPLY.c.step == row.step))
    revised = row.revised or (row.step == 1 and "skip" not in row.fields)
    connection.execute(
        sa.update(ASSIGNMENT).where(ASSIGNMENT.c.id == row.assignment).values(done=False, revised=revised)
    )
    log(connection, "undone", annotator=annotator, assignment=row.assignment, step=row.step, reply=row.fields)


def undone_reply(connection: Connection, annotator: int, now: CurrentStep) -> dict[str, Any]:
    """The reply that was just taken back, to fill in the form again."""
    undone = sa.select(AUDIT.c.detail).where(AUDIT.c.annotator == annotator, AUDIT.c.what == "undone")
    detail = connection.scalar(undone.order_by(AUDIT.c.id.desc()).limit(1))
    if detail is None or (detail["assignment"], detail["step"]) != (now.assignment, now.step):
        return {}
    return dict(detail["reply"])


# --- export: one snapshot, even while annotators work ---
def export(config: ExportConfig) -> dict[str, int]:
    """Write what a study is and what it holds so far; returns the number of rows in each file."""
    with closing(open_study(config.study)) as database, database.read() as connection:
        study = study_row(connection)
        if study.kind == "validate":
            tables = {"judgements.jsonl": [judgment.row() for judgment in judgments(connection)]}
        else:
            tables = collected_tables(connection)
    rows, folder = {name: len(table) for name, table in tables.items()}, config.out
    about_file = folder / "study.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        previous = read_json(about_file) if about_file.is_file() else {}
        if any(folder.iterdir()) and previous.get("created") != study.created:
            raise BadInput(f"{folder} exists and is not an export of this study; choose another --out")
    about = {key: getattr(study, key) for key in ("kind", "title", "created", "settings")}
    # first, so that an interrupted export can be repeated
    write_json(about_file, {**about, "exported": time.time(), "rows": rows})
    for name, table in tables.items():
        write_lines(folder / name, table)
    return rows


def _answered(connection: Connection) -> Iterator[tuple[Any, list[Any]]]:
    """The item of each assignment that has replies, and these by step, with their annotator."""
    items = {row.id: row for row in connection.execute(sa.select(ITEM))}
    rows = connection.execute(
        sa.select(REPLY, ASSIGNMENT.c.item, ASSIGNMENT.c.flipped, ASSIGNMENT.c.revised, ANNOTATOR.c.pseudonym)
        .select_from(REPLY.join(ASSIGNMENT).join(ANNOTATOR))
        .order_by(REPLY.c.assignment, REPLY.c.step)
    ).all()
    for _, steps in groupby(rows, key=lambda row: row.assignment):
        replies = list(steps)
        yield items[replies[0].item], replies


def judgments(connection: Connection) -> list[Judgment]:
    """One per annotator × item. Practice is left out."""
    rows = list[Judgment]()
    for item, steps in _answered(connection):
        first = steps[0]
        if item.content.get("practice"):
            continue
        rubric = has_rubric(item.content)
        shown = ("rejected", "chosen") if first.flipped else ("chosen", "rejected")
        names = {"A": shown[0], "B": shown[1], "neither": "neither"}
        replies = {
            step.step: decoded(step.fields, names, form_fields("validate", step.step, item.content)) for step in steps
        }
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
                first=shown[0],
                ratings=before.get("ratings", {}),
                before=before.get("prefer"),
                after=after.get("prefer"),
                difference=after.get("difference"),
                skipped=before.get("skip") or after.get("skip"),
                revised=first.revised,
                seconds=[step.seconds for step in steps],
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
    pairs, ratings, records = list[Row](), list[Row](), list[Row]()
    for item, steps in _answered(connection):
        user, wish = steps[0].pseudonym, steps[0].fields.get("narrative")
        if wish is None:
            continue
        key = f"{user}-{item.key}"
        common: Row = {
            "user": user,
            "question": item.content["question"],
            "profile": posts.get(user, []),
            "narrative": wish,
            "category": item.content["category"] or "other",
        }
        texts = dict(enumerate(item.content["answers"]))
        which = which_fields(form_fields("collect", 2, item.content))
        replies = [(name, value) for step in steps for name, value in step.fields.items()]
        more = {name: value for name, value in replies if name not in COLLECTED_ELSEWHERE}
        if more:
            common["replies"] = {n: texts.get(value, value) if n in which else value for n, value in more.items()}
        records.append({"id": key, **common})
        if len(steps) == 2 and "skip" not in steps[1].fields:
            reply, answers = steps[1].fields, item.content["answers"]
            best = reply["best"]  # None: no preference
            pairs += [
                {"id": f"{key}-{best}-{n}", **common, "rubric_aspects": [], "chosen": answers[best], "rejected": other}
                for n, other in enumerate(answers)
                if best is not None and n != best
            ]
            ratings += [
                {"id": f"{key}-{n}", **common, "answer": answers[n], "rating": (rating - 1) / 4}  # 1..5 as 0..1
                for n, rating in enumerate(reply["ratings"])
            ]
    return {"pairs.jsonl": pairs, "ratings.jsonl": ratings, "records.jsonl": records}
