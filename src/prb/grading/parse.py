"""What a judge's reply says, read strictly: a grade is 0, 1 or 2, an aspect has one, and nothing is guessed.

A reply that is sound JSON is read as JSON, so that its strings can hold anything. Otherwise (single quotes, quotation
marks inside strings, no JSON at all) every `aspect: n` and `grade: n` in it is looked at, in their order. Either way,
grades of one aspect that differ are no grade, and a grade beside numbered ones that has no number is nobody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from prb.grading import TOP
from prb.llm import Completion
from prb.llm.asking import without_reasoning
from prb.types import Failure

_GRADE = r"(?:match[\s_-]?score|score|grade|rating)"
_MARKS = r"""["'`*“”‘’\\]*"""
_IS = rf"{_MARKS}\s*[:=]"
_BEFORE = r"""[\s"'`*_#“”‘’\\]*"""
"""One class before a number, not several in a row: those would make a reply of a thousand blanks a matter of hours."""
_NUMBER = (
    r"(?P<number>-?[0-9]+(?:[.,][0-9]+)?)(?:\s*(?:/|out\s+of)\s*(?P<total>[0-9]+))?"
    r"(?![0-9%]|[.,][0-9]|\s*[-–—/]\s*[0-9]|\s+(?:to|or|and)\s+[0-9])"
)
_ALONE = re.compile(rf"{_BEFORE}{_NUMBER}{_MARKS}\.?\s*", re.IGNORECASE)
_KEY = re.compile(rf"{_GRADE}s?", re.IGNORECASE)
_ASPECT_KEYS = ("aspect", "name", "id")
_ORDINAL = re.compile(r"(?:aspect)?[\s_#]*([0-9]{1,3})(?:[.:)\s].*)?", re.DOTALL)
_TRAILING = re.compile(r",(\s*[\]}])")
_OPENING = re.compile(r"[\[{]")
_NOWHERE = -1


class Found(NamedTuple):
    place: int | None
    """Of its aspect in the rubric; -1 if it was called what is not there, `None` if it was not called anything."""
    number: str
    total: str
    """What the number is said to be out of."""


def read_one(said: Completion) -> tuple[int, ...] | Failure | None:
    """The one grade of a reply; `None` if there is none, or more than one."""
    text = _text(said)
    return _whole([_agreed(_alone(text, None) or _read(text, ()))])


def read_all(said: Completion, aspects: Sequence[str]) -> tuple[int, ...] | Failure | None:
    """One grade an aspect, in the rubric's order; `None` unless every one of them has exactly one."""
    text = _text(said)
    found = _read(text, aspects) or _listed(text, aspects)
    if len(found) == len(aspects) and all(f.place is None for f in found):
        found = [f._replace(place=n) for n, f in enumerate(found)]  # called nothing, but exactly as many
    if any(f.place in (None, _NOWHERE) for f in found):
        return None
    return _whole([_agreed([f for f in found if f.place == n]) for n in range(len(aspects))])


def _text(said: Completion) -> str:
    """A reply that was cut off by its limit has not come to its end, so nothing in it counts."""
    return "" if said.truncated else without_reasoning(said.text)


def _whole(grades: Sequence[int | Failure | None]) -> tuple[int, ...] | Failure | None:
    sound = tuple([grade for grade in grades if isinstance(grade, int)])
    failure = next((grade for grade in grades if isinstance(grade, Failure)), None)
    return sound if len(sound) == len(grades) else failure


def _agreed(found: Sequence[Found]) -> int | Failure | None:
    grades = {_grade(f) for f in found}
    return grades.pop() if len(grades) == 1 else None


def _grade(found: Found) -> int | Failure:
    value = float(found.number.replace(",", "."))
    if value not in range(TOP + 1) or (found.total and found.total != str(TOP)):
        shown = f"{found.number}/{found.total}" if found.total else found.number
        return Failure("grade outside the scale", f"{shown[:20]}, wanted 0, 1 or 2")
    return int(value)


def _place(name: str, aspects: Sequence[str]) -> int:
    """By number from 1, or by an aspect's full name."""
    names, wanted = [_plain(aspect) for aspect in aspects], _plain(name)
    if names.count(wanted) == 1 and not wanted.isdigit():
        return names.index(wanted)
    ordinal = _ORDINAL.fullmatch(wanted)
    return int(ordinal[1]) - 1 if ordinal and 1 <= int(ordinal[1]) <= len(aspects) else _NOWHERE


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())


def _read(text: str, aspects: Sequence[str]) -> list[Found]:
    decoded = _decoded(text)
    if decoded is None:
        return list(_scanned(text, aspects))
    values, around = decoded
    inside = [found for value in values for found in _entries(value, None, aspects, counts=False)]
    return inside + list(_scanned(around, aspects))


def _listed(text: str, aspects: Sequence[str]) -> list[Found]:
    """Of a reply that is one list of numbers."""
    values, _ = _decoded(text) or ([], "")
    if len(values) != 1 or not isinstance(values[0], list):
        return []
    return list(_entries(values[0], None, aspects, counts=True))


def _decoded(text: str) -> tuple[list[Any], str] | None:
    """Every JSON value in the text, and the text around them; `None` if anything begins like one and is none."""
    text, at = _TRAILING.sub(r"\1", text), 0
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_unambiguous)
    values, around = [], []
    while opening := _OPENING.search(text, at):
        around.append(text[at : opening.start()])
        try:
            value, at = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            return None
        values.append(value)
    return values, "\n".join([*around, text[at:]])


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("the same key twice")
    return dict(pairs)


def _entries(value: Any, place: int | None, aspects: Sequence[str], *, counts: bool) -> Iterator[Found]:
    """Numbers under a word for grade, or under an aspect's name or number; others mean something else."""
    if isinstance(value, list):
        for item in value:
            yield from _entries(item, place, aspects, counts=counts)
    elif isinstance(value, dict):
        called = next((value[key] for key in value if key.casefold() in _ASPECT_KEYS), None)
        beside = place if called is None else _place(str(called), aspects)
        for key, item in value.items():
            above = _place(key, aspects)
            if above != _NOWHERE:
                yield from _entries(item, above, aspects, counts=True)
            elif key.casefold() not in _ASPECT_KEYS:
                yield from _entries(item, beside, aspects, counts=_KEY.fullmatch(key) is not None)
    elif counts and isinstance(value, int | float | str) and not isinstance(value, bool):
        yield from _alone(str(value), place)


def _alone(text: str, place: int | None) -> list[Found]:
    match = _ALONE.fullmatch(text)
    return [Found(place, match["number"], match["total"] or "")] if match else []


def _scanned(text: str, aspects: Sequence[str]) -> Iterator[Found]:
    """The grades of a text that is not JSON; each belongs to the aspect that was named last before it."""
    names = "|".join([*map(re.escape, sorted(aspects, key=len, reverse=True)), "[0-9]{1,3}(?![0-9])", ""])
    called = rf"aspect{_IS}{_BEFORE}(?:aspect{_BEFORE})?(?P<called>{names})"
    place = None
    for match in re.finditer(rf"(?<![a-z_])(?:{called}|{_GRADE}{_IS}{_BEFORE}{_NUMBER})", text, re.IGNORECASE):
        if match["called"] is not None:
            place = _place(match["called"], aspects)
        else:
            yield Found(place, match["number"], match["total"] or "")
