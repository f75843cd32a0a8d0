"""Masks e-mail addresses, phone numbers, IBANs and handles before a text leaves the machine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from prb.types import Choice, Query

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+")
_HANDLE = re.compile(r"(?<![\w@./])@\w[\w.]{1,29}\b(?:@[\w-]+(?:\.[\w-]+)*)*")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}\b")
_REGIONS = ("US", "GB", "DE", "FR", "IN")
"""Countries whose national formats are recognized without a leading +; with one, every country's is."""


class Match(NamedTuple):
    start: int
    end: int
    kind: str


def find(text: str) -> list[Match]:
    """Personal data from left to right; of overlapping matches the earlier and longer one stays."""
    matches = [Match(*m.span(), "e-mail") for m in _EMAIL.finditer(text)]
    matches += [Match(*m.span(), "handle") for m in _HANDLE.finditer(text)]
    if any(c.isdigit() for c in text):
        from phonenumbers import PhoneNumberMatcher
        from stdnum import iban

        for match in _IBAN.finditer(text):
            ends = [m.end() for m in re.finditer(r"[A-Z0-9]+", match[0])]  # capitals after an IBAN look like more of it
            if valid := next((end for end in reversed(ends) if iban.is_valid(match[0][:end])), None):
                matches.append(Match(match.start(), match.start() + valid, "IBAN"))
        for region in _REGIONS:
            matches += [Match(number.start, number.end, "phone") for number in PhoneNumberMatcher(text, region)]
    kept: list[Match] = []
    for candidate in sorted(matches, key=lambda m: (m.start, -m.end)):
        if not kept or candidate.start >= kept[-1].end:
            kept.append(candidate)
    return kept


def mask(text: str) -> str:
    """The text with each match replaced by its kind, e.g. `[e-mail]`."""
    while matches := find(text):  # a mask may uncover what stood right beside it
        for match in reversed(matches):
            text = f"{text[: match.start]}[{match.kind}]{text[match.end :]}"
    return text


def mask_query(query: Query) -> Query:
    """Masks whatever holds the user's words; the answers to be judged do not."""
    return replace(
        query,
        question=mask(query.question),
        context=tuple(turn._replace(text=mask(turn.text)) for turn in query.context),
        posts=tuple(post._replace(text=mask(post.text)) for post in query.posts),
        choices=tuple(Choice(*map(mask, choice)) for choice in query.choices),
        plan=tuple(mask(aspect) for aspect in query.plan),
    )
