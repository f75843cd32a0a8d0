"""Files that are wrong in one way each, between two sound rows, with what a person should be told about them."""

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


REQUIRED = ("id", "question", "profile", "rubric_aspects", "narrative", "category", "chosen", "rejected")
LATIN_1 = line(sound(2, question="Is the café open?")).decode().encode("latin-1")
UNSWAPPED = "does not hold the same question with the answers swapped"

WRONG_TYPE: list[tuple[str, Any, str]] = [
    ("id", 1.5, "`id` is a number, wants text or a whole number"),
    ("id", ["r2"], "`id` is a list, wants text or a whole number"),
    ("user", {"name": "Ann"}, "`user` is an object, wants text or a whole number"),
    ("mirror", True, "`mirror` is true/false, wants text or a whole number"),
    ("question", 3, "`question` is a number, wants text"),
    ("narrative", ["short"], "`narrative` is a list, wants text"),
    ("category", 7, "`category` is a number, wants text"),
    ("chosen", {"text": "yes"}, "`chosen` is an object, wants text"),
    ("rejected", False, "`rejected` is true/false, wants text"),
    ("tier", 2, "`tier` is a number, wants text"),
    ("split", 2, "`split` is a number, wants text"),
    ("topic", [], "`topic` is a list, wants text"),
    ("drift", "yes", "`drift` is text, wants true or false"),
    ("groups", ["60+"], "`groups` is a list, wants an object"),
    ("groups", {"age": 60}, "`groups.age` is a number, wants text"),
    ("groups", {"int": 60}, "`groups.int` is a number, wants text"),
    ("profile", "I like tea.", "`profile` is text, wants a list"),
    ("profile", ["I like tea."], "`profile.0` is text, wants an object"),
    ("profile", [{"text": "Tea."}, {"text": 5}], "`profile.1.text` is a number, wants text"),
    ("profile", [{"text": "Tea.", "category": 1}], "`profile.0.category` is a number, wants text"),
    ("profile", [{"text": "Tea.", "id": 1.5}], "`profile.0.id` is a number, wants text or a whole number"),
    ("rubric_aspects", {"aspect": "x"}, "`rubric_aspects` is an object, wants a list"),
    ("rubric_aspects", [{"aspect": 1}], "`rubric_aspects.0.aspect` is a number, wants text"),
    ("rubric_aspects", [{"evidence": "x"}], "`rubric_aspects.0.aspect` is missing"),
]

BROKEN: dict[str, Broken] = {
    **{
        f"{field} missing": between(sound(2, **{field: None}), says=[f"`{field}` is missing"])
        for field in REQUIRED
        if field != "id"
    },
    "id missing": between(sound(2, id=None), says=["`id` is missing"]),
    **{
        f"{field} empty": between(sound(2, **{field: " \n"}), says=[f"`{field}` is empty"])
        for field in ("id", "question", "category", "chosen", "rejected", "user")
    },
    **{
        f"{field} of wrong type {n}": between(sound(2, **{field: value}), says=[what])
        for n, (field, value, what) in enumerate(WRONG_TYPE)
    },
    "required null": between({**sound(2), "question": None}, says=["`question` is null, wants text"]),
    "several at once": between(
        sound(2, question=None, chosen="", tier=1),
        says=["`question` is missing", "`chosen` is empty", "`tier` is a number, wants text"],
    ),
    "duplicate id": between(
        sound(2), sound(2), says=[(3, "duplicate id 'r2', first seen at set.jsonl:2")], good=["r2"]
    ),
    "duplicate id as number and text": between(
        sound(2, id=7), sound(3, id="7"), says=[(3, "duplicate id '7', first seen at set.jsonl:2")], good=["7"]
    ),
    "equal answers": between(
        sound(2, rejected=" Yes. ", chosen="Yes."), says=["`chosen` and `rejected` are the same text"]
    ),
    "post without text": between(sound(2, profile=[{"id": "p"}]), says=["`profile.0.text` is missing"]),
    "post with empty text": between(
        sound(2, profile=[{"text": "Tea."}, {"text": ""}]), says=["`profile.1.text` is empty"]
    ),
    "mirror at itself": between(sound(2, mirror="r2"), says=["`mirror` points at its own row"]),
    "mirror nowhere": between(sound(2, mirror="r3"), says=["`mirror` 'r3' is not in the set, or has errors"]),
    "mirror at a row without one": between(sound(2, mirror="r1"), says=["`mirror` 'r1' has no mirror itself"]),
    "mirror that does not point back": between(
        *make_twins(5),
        sound(2, mirror="t5a"),
        says=[(4, "`mirror` 't5a' does not point back: it points at 't5b'")],
        good=["t5a", "t5b"],
    ),
    "mirror at a broken twin": between(
        *_twins(narrative=3),
        says=["`mirror` 't5b' is not in the set, or has errors", (3, "`narrative` is a number, wants text")],
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
        *_twins(split="train"),
        says=["`mirror` 't5b' is in another split", (3, "`mirror` 't5a' is in another split")],
        split="test",
    ),
    "broken JSON": between(b'{"id": "r2",,}\n', says=["broken JSON: "]),
    "cut JSON": between(line(sound(2))[:-20] + b"\n", says=["broken JSON: "]),
    "lone surrogate": between(b'{"id": "\\ud800"}\n', says=["broken JSON: "]),
    "nested too deeply": between(b"[" * 5000 + b"\n", says=["broken JSON: "]),
    "latin-1": between(LATIN_1, says=[f"wrong encoding: byte {LATIN_1.index(bytes([0xE9])) + 1} is not UTF-8"]),
    "raw NUL": between(line(sound(2)).replace(b"water", b"wa\0er"), says=["holds a NUL byte"]),
    "escaped NUL": between(line(sound(2, question="Why \0?")), says=["holds a NUL byte"]),
    "a number for a row": between(b"5\n", says=["a row is an object, this is a number"]),
    "a list for a row": between(line([sound(2)]), says=["a row is an object, this is a list"]),
    "text for a row": between(b'"r2"\n', says=["a row is an object, this is text"]),
    "null for a row": between(b"null\n", says=["a row is an object, this is null"]),
}
