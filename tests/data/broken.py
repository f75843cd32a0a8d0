"""Files that are wrong in one way each, between two sound rows, with the messages they should give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from tests.conftest import Row, make_row, make_twins


def sound(n: int = 1, **changes: Any) -> Row:
    """A row that gives neither an error nor a warning."""
    return make_row(n, **{"rejected": f"Twice a month, plant {n} rests.", **changes})


def line(row: Any) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


class Broken(NamedTuple):
    lines: list[bytes]
    problems: list[tuple[int, str]]
    good: list[str]
    """Ids of the rows that `skip_bad` still uses."""

    @property
    def raw(self) -> bytes:
        return b"".join(self.lines)


def between(
    *rows: Any, says: Sequence[str | tuple[int, str]], good: Sequence[str] = (), split: str | None = None
) -> Broken:
    """The rows between a sound first and a sound last one; a bare message belongs to line 2."""
    lines = [row if isinstance(row, bytes) else line(row) for row in rows]
    problems = [(2, what) if isinstance(what, str) else what for what in says]
    first, last = sound(1, split=split), sound(99, split=split)
    return Broken([line(first), *lines, line(last)], problems, ["r1", *good, "r99"])


def _twins(**changes: Any) -> list[Row]:
    first, second = make_twins(5, split="test")
    return [first, {**second, **changes}]


REQUIRED = ("question", "chosen", "rejected")
LATIN_1 = line(sound(2, question="Is the café open?")).decode().encode("latin-1")
UNKNOWN = "is no other row without errors that points back"
UNSWAPPED = "does not hold the same question with the answers swapped"

WRONG_TYPE: list[tuple[str, Any, str]] = [
    ("id", ["r2"], "`id` must be text, not a list"),
    ("user", {"name": "Ann"}, "`user` must be text, not an object"),
    ("mirror", True, "`mirror` must be text, not true/false"),
    ("question", 3, "`question` must be text, not a number"),
    ("chosen", {"text": "yes"}, "`chosen` must be text, not an object"),
    ("tier", 2, "`tier` must be text, not a number"),
    ("drift", "yes", "`drift` must be true or false, not text"),
    ("groups", ["60+"], "`groups` must be an object, not a list"),
    ("groups", {"age": 60}, "`groups.age` must be text, not a number"),
    ("profile", 7, "`profile` must be a list, not a number"),
    ("profile", ["I like tea.", " "], "`profile.1.text` is empty"),
    ("profile", [{"role": "user", "content": "Hi."}], "`profile.0.text` is missing"),
    ("context", "Hi.", "`context` must be a list, not text"),
    ("profile", [{"text": "Tea.", "id": [1]}], "`profile.0.id` must be text, not a list"),
    ("rubric_aspects", {"aspect": "x"}, "`rubric_aspects` must be a list, not an object"),
    ("rubric_aspects", [{"evidence": "x"}], "`rubric_aspects.0.aspect` is missing"),
    ("chosen", [], "`chosen` is empty"),
    ("chosen", ["a", " "], "`chosen.1` is empty"),
    ("rejected", ["z", "Once a week, plant 2 is happy. "], "`chosen` and `rejected` are the same text"),
    ("context", [{"role": "bot", "text": "Hi."}], "`context.0.role` must be 'system', 'user' or 'assistant', not 'bot"),
    ("choices", [{"question": "Tea?", "chosen": "Yes."}], "`choices.0.rejected` is missing"),
]

BROKEN: dict[str, Broken] = {
    **{f"{field} missing": between(sound(2, **{field: None}), says=[f"`{field}` is missing"]) for field in REQUIRED},
    **{
        f"{field} empty": between(sound(2, **{field: " \n"}), says=[f"`{field}` is empty"])
        for field in ("id", "question", "chosen", "rejected", "user", "mirror")
    },
    **{
        f"{field} of wrong type {n}": between(sound(2, **{field: value}), says=[what])
        for n, (field, value, what) in enumerate(WRONG_TYPE)
    },
    "two missing": between(
        {"id": "r2", "text": "a", "label": 1},
        says=["`question` and `chosen` and `rejected` are missing; the columns are text, label"],
    ),
    **{
        f"{column} for {field}": between(
            sound(2, **{field: None, column: "x"}),
            says=[f"`{column}` looks like {what} but is not read; did you mean `{field}`?"],
        )
        for field, what, columns in (
            ("user", "the user", ("usr", "users", "reviewer_id", "annotator", "User-Email")),
            ("profile", "the user's history", ("chat_history", "profle", "user_bio", "oldPosts", "past_choices")),
        )
        for column in columns
    },
    "several at once": between(
        sound(2, question=None, chosen="", tier=1),
        says=["`question` is missing; the columns", "`chosen` is empty", "`tier` must be text, not a number"],
    ),
    "duplicate id": between(
        sound(2), sound(2), says=[(3, "duplicate id 'r2', first seen at set.jsonl:2")], good=["r2"]
    ),
    "duplicate id as number and text": between(
        sound(2, id=7), sound(3, id="7"), says=[(3, "duplicate id '7', first seen at set.jsonl:2")], good=["7"]
    ),
    **{
        f"mirror {where}": between(sound(2, mirror=twin), says=[f"`mirror` {twin!r} {UNKNOWN}"])
        for where, twin in (("at itself", "r2"), ("nowhere", "r3"), ("at a row without one", "r1"))
    },
    "mirror that does not point back": between(
        *make_twins(5), sound(2, mirror="t5a"), says=[(4, f"`mirror` 't5a' {UNKNOWN}")], good=["t5a", "t5b"]
    ),
    "mirror at a broken twin": between(
        *_twins(narrative=3),
        says=[f"`mirror` 't5b' {UNKNOWN}", (3, "`narrative` must be text, not a number")],
        split="test",
    ),
    "mirror with another answer": between(
        *_twins(chosen="Never."), says=[f"`mirror` 't5b' {UNSWAPPED}", (3, f"`mirror` 't5a' {UNSWAPPED}")], split="test"
    ),
    "mirror with another question": between(
        *_twins(question="Why?"), says=[f"`mirror` 't5b' {UNSWAPPED}", (3, f"`mirror` 't5a' {UNSWAPPED}")], split="test"
    ),
    "mirror with answers in the same order": between(
        make_twins(5)[0],
        {**make_twins(5)[0], "id": "t5b", "mirror": "t5a"},
        says=[f"`mirror` 't5b' {UNSWAPPED}", (3, f"`mirror` 't5a' {UNSWAPPED}")],
    ),
    "mirror in another split": between(
        *_twins(split="train"), says=[f"`mirror` 't5b' {UNSWAPPED}", (3, f"`mirror` 't5a' {UNSWAPPED}")], split="test"
    ),
    "broken JSON": between(b'{"id": "r2",,}\n', says=["broken JSON: "]),
    "cut JSON": between(line(sound(2))[:-20] + b"\n", says=["broken JSON: "]),
    "lone surrogate": between(b'{"id": "\\ud800"}\n', says=["broken JSON: "]),
    "nested too deeply": between(b"[" * 5000 + b"\n", says=["broken JSON: "]),
    "latin-1": between(LATIN_1, says=["broken JSON: str is not valid UTF-8"]),
    "raw NUL": between(line(sound(2)).replace(b"water", b"wa\0er"), says=["broken JSON: "]),
    "a number for a row": between(b"5\n", says=["a row must be an object, not a number"]),
    "a list for a row": between(line([sound(2)]), says=["a row must be an object, not a list"]),
}
