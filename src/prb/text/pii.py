"""Masks e-mail addresses, phone numbers, IBANs and handles before a text leaves the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from prb.types import Query

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+")
_HANDLE = re.compile(r"(?<![\w@./])@\w[\w.]{1,29}\b(?:@[\w-]+(?:\.[\w-]+)*)*")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}\b")
_REGIONS = ("US", "GB", "DE", "FR", "IN")
"""Countries whose national formats are recognised without a leading +; with one, every country's is."""


class Found(NamedTuple):
    start: int
    end: int
    kind: str


def find(text: str) -> list[Found]:
    """Personal data from left to right; of overlapping finds the earlier and longer one stays."""
    found: list[Found] = []
    for hit in sorted(_all(text), key=lambda f: (f.start, -f.end)):
        if not found or hit.start >= found[-1].end:
            found.append(hit)
    return found


def mask(text: str) -> str:
    """The text with each find replaced by its kind, e.g. `[e-mail]`."""
    while found := find(text):  # a mask may lay bare what stood right beside it
        for hit in reversed(found):
            text = f"{text[: hit.start]}[{hit.kind}]{text[hit.end :]}"
    return text


def mask_query(query: Query) -> Query:
    """Posts, plan and question are the person's words; answers are not."""
    return replace(
        query,
        question=mask(query.question),
        posts=tuple(post._replace(text=mask(post.text)) for post in query.posts),
        plan=tuple(mask(aspect) for aspect in query.plan),
    )


def _all(text: str) -> Iterator[Found]:
    yield from (Found(*m.span(), "e-mail") for m in _EMAIL.finditer(text))
    yield from (Found(*m.span(), "handle") for m in _HANDLE.finditer(text))
    if any(c.isdigit() for c in text):
        yield from _ibans(text)
        yield from _phones(text)


def _ibans(text: str) -> Iterator[Found]:
    from stdnum import iban

    for match in _IBAN.finditer(text):
        ends = [m.end() for m in re.finditer(r"[A-Z0-9]+", match[0])]  # capitals after an IBAN look like more of it
        valid = next((end for end in reversed(ends) if iban.is_valid(match[0][:end])), None)
        if valid:
            yield Found(match.start(), match.start() + valid, "IBAN")


def _phones(text: str) -> Iterator[Found]:
    import phonenumbers

    for region in _REGIONS:
        for match in phonenumbers.PhoneNumberMatcher(text, region):
            yield Found(match.start, match.end, "phone")
