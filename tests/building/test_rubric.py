from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.building.rubric import SHORTEST, find_quote, read_rubric

NARRATIVE = "My knees don’t like stairs.\nSo a “short” route is worth more to me than a pretty one."
GOOD = """1. Aspect: The route is short.
Evidence: "a "short" route is worth more"
Reason: Distance counts.
2. **Aspect:** It has no stairs.
**Evidence:** My knees don't like stairs.
**Reason:** Pain."""


def test_a_list_is_read_and_evidence_is_spelled_as_the_narrative_has_it() -> None:
    first, second = read_rubric(GOOD, NARRATIVE, (2, 6)) or ()
    assert first == ("The route is short.", "a “short” route is worth more", "Distance counts.")
    assert second.evidence == "My knees don’t like stairs"


def test_thinking_aloud_before_the_list_does_not_matter() -> None:
    assert read_rubric(f"<think>Aspect: nonsense</think>Here it is:\n{GOOD}", NARRATIVE, (2, 6)) is not None


BAD = {
    "evidence that is no quote": GOOD.replace("My knees", "Your knees"),
    "a missing reason": GOOD.rsplit("\n", 1)[0],
    "too few aspects": GOOD.split("\n2.", maxsplit=1)[0],
    "no list at all": "The person wants a short route.",
    "evidence too short to mean anything": GOOD.replace('a "short" route is worth more', "a"),
    "fields out of order": GOOD.replace("Evidence", "Xvidence")
    .replace("Reason", "Evidence")
    .replace("Xvidence", "Reason"),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_not_a_whole_list_of_quotes_is_no_rubric(text) -> None:
    assert read_rubric(text, NARRATIVE, (2, 6)) is None


def test_more_aspects_than_allowed_are_no_rubric() -> None:
    assert read_rubric(GOOD, NARRATIVE, (1, 1)) is None


@given(st.integers(0, len(NARRATIVE)), st.integers(0, len(NARRATIVE)))
def test_whatever_is_found_is_a_piece_of_the_narrative(a, b) -> None:
    quoted = find_quote(NARRATIVE[min(a, b) : max(a, b)].upper(), NARRATIVE)
    if quoted is not None:
        assert quoted in NARRATIVE
        assert len(quoted) >= SHORTEST


@given(st.text(max_size=40))
def test_any_evidence_can_be_looked_for(text) -> None:
    quoted = find_quote(text, NARRATIVE)
    assert quoted is None or quoted in NARRATIVE
