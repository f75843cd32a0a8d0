"""What is asked at each step, as data: pages are drawn from it, replies are checked against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CRITERIA = {
    "correctness": "Is what it says right?",
    "relevance": "Does it answer the question?",
    "helpfulness": "Could one act on it?",
}
SKIP = {
    "unclear": "The question or an answer makes no sense",
    "unknown": "I know too little about the subject",
    "upsetting": "It is offensive or upsetting",
    "technical": "It is not displayed properly",
    "other": "Another reason",
}
MAX_TEXT = 20_000
"""Characters of a post, a question or a wish; longer ones are refused, never cut."""


class Option(NamedTuple):
    value: str
    label: str
    key: str
    """The key that picks it."""


class Field(NamedTuple):
    name: str
    label: str
    options: tuple[Option, ...] = ()
    """None: free text."""
    hint: str = ""
    ends: tuple[str, str] = ("", "")
    """What the two ends of a scale mean."""


SCALE = tuple(Option(str(n), str(n), str(n)) for n in range(1, 6))
PREFER = (Option("A", "Answer A", "a"), Option("B", "Answer B", "b"), Option("neither", "Neither", "n"))


def validate_fields(step: int) -> list[Field]:
    if step == 1:
        ratings = [
            Field(f"{answer}-{name}", name.capitalize(), SCALE, hint, ("poor", "excellent"))
            for answer in "AB"
            for name, hint in CRITERIA.items()
        ]
        return [*ratings, Field("prefer", "Which answer would this person prefer?", PREFER)]
    return [
        Field("prefer", "Now that you know: which one would this person prefer?", PREFER),
        Field(
            "sure",
            "How sure are you?",
            (Option("1", "A guess", "1"), Option("2", "Fairly sure", "2"), Option("3", "Certain", "3")),
        ),
        Field(
            "difference",
            "What is the difference mainly about?",
            (
                Option("preference", "Personal preference", "p"),
                Option("quality", "Quality", "q"),
                Option("unclear", "Can’t tell", "t"),
            ),
        ),
    ]


def collect_fields(step: int, answers: int) -> list[Field]:
    if step == 1:
        hint = "What should it contain, how should it sound, what should it leave out, and why?"
        return [Field("narrative", "What would make an answer a good one for you?", hint=hint)]
    names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:answers]
    rate = [Field(f"{n}-rating", "How well does it suit you?", SCALE, ends=("not at all", "perfectly")) for n in names]
    each = tuple(Option(n, f"Answer {n}", n.lower()) for n in names)
    pick = [Field("best", "Which one would you rather have?", (*each, Option("neither", "No preference", "n")))]
    if answers > 2:
        pick.append(Field("worst", "And which one suits you least?", (*each, Option("neither", "Can’t say", "n"))))
    return rate + pick


def read(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What was said, and by field what is missing or wrong."""
    said: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for field in fields:
        value = form.get(field.name, "").strip()
        if not value:
            wrong[field.name] = "Please write something here" if not field.options else "Please choose"
        elif field.options and value not in {o.value for o in field.options}:
            wrong[field.name] = "Please choose one of these"
        elif len(value) > MAX_TEXT:
            wrong[field.name] = too_long(value)
        else:
            said[field.name] = value
    if said.get("best") not in (None, "neither") and said.get("best") == said.get("worst"):
        wrong["worst"] = "The best one cannot be the worst one too"
    return said, wrong


def too_long(text: str) -> str:
    return f"This is {len(text):,} characters long; {MAX_TEXT:,} is the most"


def seconds(value: str | None, at_most: float) -> float | None:
    """Time the page was in view, as the browser counted it; never more than there was."""
    try:
        return max(0.0, min(float(value or ""), at_most))
    except ValueError:
        return None


def unblind(said: Mapping[str, Any], flipped: bool) -> dict[str, Any]:
    """Replies about A and B as replies about chosen and rejected."""
    names = {"A": "rejected" if flipped else "chosen", "B": "chosen" if flipped else "rejected", "neither": "neither"}
    out: dict[str, Any] = {}
    for key, value in said.items():
        answer, dash, criterion = key.partition("-")
        if dash:
            out.setdefault("ratings", {}).setdefault(names[answer], {})[criterion] = int(value)
        else:
            out[key] = names[value] if key == "prefer" else value
    return out
