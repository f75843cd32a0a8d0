"""Stages by themselves: rubrics, couples, ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.building.records import UserRecord
from prb.building.stages import (
    MIN_EVIDENCE,
    QualityAsk,
    find_quote,
    propose_couples,
    rate_quality,
    read_couple_verdict,
    read_ratings,
    read_rubric,
)
from prb.llm import Completion, Sampling, ScriptedLLM
from prb.types import Failure, Post

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
        assert len(quoted) >= MIN_EVIDENCE


@given(st.text(max_size=40))
def test_any_evidence_can_be_looked_for(text) -> None:
    quoted = find_quote(text, NARRATIVE)
    assert quoted is None or quoted in NARRATIVE


class ByNumber:
    """A question `x 30` points 30 degrees up."""

    fingerprint = "angles"

    def encode(self, texts):
        angles = np.radians([float(text.split()[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def asking(user: str, angle: float) -> UserRecord:
    return UserRecord(id=f"{user}{angle}", user=user, question=f"q {angle}", narrative="n", posts=(Post("1", "", "p"),))


def test_the_nearest_questions_of_different_users_are_coupled_and_no_record_twice() -> None:
    records = [asking("ann", 0), asking("ben", 10), asking("cid", 12), asking("dan", 90)]
    assert propose_couples(records, ByNumber(), 0.9) == [(records[1], records[2])]


def test_users_of_different_splits_are_never_coupled() -> None:
    ann, ben = asking("ann", 0), asking("ben", 1)
    assert (
        propose_couples(
            [replace(ann, other={"split": "train"}), replace(ben, other={"split": "test"})], ByNumber(), 0.5
        )
        == []
    )


def test_the_questions_of_one_user_are_never_coupled() -> None:
    assert propose_couples([asking("ann", 0), asking("ann", 1)], ByNumber(), 0.5) == []
    assert propose_couples([asking("ann", 0)], ByNumber(), 0.5) == []


def test_blocks_do_not_change_what_is_proposed() -> None:
    records = [asking(f"p{n}", float(angle)) for n, angle in enumerate([0, 3, 40, 42, 45, 80, 81, 170])]
    assert propose_couples(records, ByNumber(), 0.9, block=3) == propose_couples(records, ByNumber(), 0.9)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Well.\nVerdict: conflict", "conflict"),
        ("**Verdict:** Different questions", "different questions"),
        ("Verdict: conflict or compatible", None),
        ("Verdict: conflict\nVerdict: compatible", None),
        ("They conflict.", None),
    ],
)
def test_a_verdict_on_a_couple_is_read_strictly(text, verdict) -> None:
    assert read_couple_verdict(Completion(text=text)) == verdict


ONE = "Answer A: correctness 5, relevance 4, helpfulness 3, fluency 4"
RATINGS = f"{ONE}\n**Answer B:** Correctness: 2/5, relevance: 2/5, helpfulness: 2/5, fluency: 2/5"


def test_ratings_are_means_over_the_criteria_in_either_spelling() -> None:
    assert read_ratings(Completion(text=RATINGS)) == (4.0, 2.0)


@pytest.mark.parametrize("bad", ["Both good.", ONE, RATINGS.replace("relevance 4", "relevance 6")])
def test_a_missing_or_impossible_rating_is_none(bad) -> None:
    assert read_ratings(Completion(text=bad)) is None


def test_a_full_stop_after_the_last_number_does_not_matter() -> None:
    assert read_ratings(Completion(text=RATINGS.replace("fluency 4", "fluency 4."))) == (4.0, 2.0)


def test_both_orders_are_asked_and_a_judge_that_loves_the_first_is_evened_out() -> None:
    llm = ScriptedLLM(RATINGS)
    assert rate_quality(llm, [QualityAsk("q", "pears", "plums")], Sampling()) == [(3.0, 3.0)]
    first, second = (request.chat[-1].text for request in llm.requests)
    assert first.index("pears") < first.index("plums")
    assert second.index("plums") < second.index("pears")


def test_one_order_that_cannot_be_read_fails_the_pair() -> None:
    llm = ScriptedLLM([RATINGS, "No idea.", "Still none."])
    (result,) = rate_quality(llm, [QualityAsk("q", "one", "two")], Sampling())
    assert isinstance(result, Failure)
