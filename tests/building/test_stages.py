"""Records as they are read, calls and their budget, and stages by themselves: rubrics, couples, ratings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.building.config import ROLES, BuildConfig, Stage
from prb.building.stages import (
    MIN_EVIDENCE,
    AnswerPair,
    Candidate,
    Ledger,
    PairTask,
    StageLLM,
    UserRecord,
    find_quote,
    propose_couples,
    rate_quality,
    read_couple_verdict,
    read_ratings,
    read_records,
    read_rubric,
)
from prb.errors import BadData
from prb.llm import Completion, Request, Sampling, ScriptedLLM
from prb.types import Failure, Post, Turn
from prb.work import Replies
from tests.data.named import test_lampqa as lampqa

NARRATIVE = "My knees don’t like stairs.\nSo a “short” route is worth more to me than a pretty one."
GOOD = """1. Aspect: The route is short.
Evidence: "a "short" route is worth more"
Reason: Distance counts.
2. **Aspect:** It has no stairs.
**Evidence:** My knees don't like stairs.
**Reason:** Pain."""


def test_a_list_is_read_and_evidence_is_spelled_as_the_narrative_has_it() -> None:
    first, second = read_rubric(Completion(text=GOOD), NARRATIVE) or ()
    assert first[:3] == ("The route is short.", "a “short” route is worth more", "Distance counts.")
    assert second.evidence == "My knees don’t like stairs"


BAD = {
    "evidence that is no quote": GOOD.replace("My knees", "Your knees"),
    "a missing reason": GOOD.rsplit("\n", 1)[0],
    "too few aspects": GOOD.split("\n2.", maxsplit=1)[0],
    "too many aspects": f"{GOOD}\n" * 4,
    "no list at all": "The person wants a short route.",
    "evidence too short to mean anything": GOOD.replace('a "short" route is worth more', "a"),
    "fields out of order": GOOD.replace("Evidence", "?").replace("Reason", "Evidence").replace("?", "Reason"),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_not_a_whole_list_of_quotes_is_no_rubric(text) -> None:
    assert read_rubric(Completion(text=text), NARRATIVE) is None
    assert read_rubric(Completion(text=GOOD, truncated=True), NARRATIVE) is None


@given(st.integers(0, len(NARRATIVE)), st.integers(0, len(NARRATIVE)))
def test_whatever_is_found_is_a_piece_of_the_narrative(a, b) -> None:
    quoted = find_quote(NARRATIVE[min(a, b) : max(a, b)].upper(), NARRATIVE)
    if quoted is not None:
        assert quoted in NARRATIVE
        assert len(quoted) >= MIN_EVIDENCE


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


def test_one_user_and_users_of_different_splits_are_never_coupled() -> None:
    ann, ben = asking("ann", 0), asking("ben", 1)
    split = [replace(ann, other={"split": "train"}), replace(ben, other={"split": "test"})]
    for records in (split, [ann, asking("ann", 1)], [ann]):
        assert propose_couples(records, ByNumber(), 0.5) == []


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


@pytest.mark.parametrize(
    ("text", "ratings"),
    [
        (RATINGS, (4.0, 2.0)),
        (RATINGS.replace("fluency 4", "fluency 4."), (4.0, 2.0)),
        ("Both good.", None),
        (ONE, None),
        (RATINGS.replace("relevance 4", "relevance 6"), None),
    ],
)
def test_ratings_are_means_over_the_criteria_and_all_or_nothing(text, ratings) -> None:
    assert read_ratings(Completion(text=text)) == ratings


def logged(tmp_path, llm, stage: Stage) -> StageLLM:
    config, replies = BuildConfig(input="x", llm="scripted/x", out=tmp_path), Replies(tmp_path / "replies.jsonl")
    return StageLLM(Ledger(config=config, llms=dict.fromkeys(ROLES, llm), replies=replies, given=True), stage)


def a_pair(first: str, second: str) -> AnswerPair:
    chosen = Candidate(task=PairTask(users=(asking("ann", 0),)), side="chosen", number=1, text=first)
    return AnswerPair(chosen=chosen, rejected=replace(chosen, side="rejected", text=second), round=1)


def test_both_orders_are_asked_and_a_judge_that_loves_the_first_is_evened_out(tmp_path) -> None:
    llm = ScriptedLLM(RATINGS)
    assert rate_quality(logged(tmp_path, llm, "quality"), [a_pair("pears", "plums")]) == [(3.0, 3.0)]
    first, second = (request.chat[-1].text for request in llm.requests)
    assert first.index("pears") < first.index("plums")
    assert second.index("plums") < second.index("pears")


def test_one_order_that_cannot_be_read_fails_the_pair(tmp_path) -> None:
    llm = logged(tmp_path, ScriptedLLM([RATINGS, "No idea.", "Still none."]), "quality")
    (result,) = rate_quality(llm, [a_pair("one", "two")])
    assert isinstance(result, Failure)


def test_published_lamp_qa_files_are_read_with_the_benchmarks_category(tmp_path) -> None:
    (record,) = read_records(f"lampqa?path={lampqa.publish(tmp_path, lampqa.ROW)}")
    assert (record.category, record.rubric[0].aspect) == ("Art_and_Entertainment", "a")


BAD_ROWS = {
    "no question": ({"id": "1"}, "`question` is missing"),
    "a post that is a number": ({"id": "1", "question": "q", "posts": [{"text": 7}]}, "`profile.0.text` must be text"),
    "a narrative that is a number": ({"id": "1", "question": "q", "narrative": 7}, "`narrative` must be text"),
    "a rubric without aspects": ({"id": "1", "question": "q", "rubric_aspects": [{}]}, "`rubric_aspects.0.aspect` is"),
    "no object": ([], "a row must be an object, not a list"),
}


@pytest.mark.parametrize(("row", "what"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_record_is_named_with_its_line(write_jsonl, row, what) -> None:
    with pytest.raises(BadData, match=f"set.jsonl:1: {what}"):
        read_records(str(write_jsonl([row])))


def test_posts_may_be_plain_texts_and_other_fields_survive(write_jsonl) -> None:
    row = {"id": 7, "question": "q", "narrative": "n", "posts": ["one", "two"], "split": "test", "mood": "fine"}
    row |= {"mirror": "x", "chosen": "y", "rubric_aspects": None}
    (record,) = read_records(str(write_jsonl([row])))
    assert [post.text for post in record.posts] == ["one", "two"]
    assert (record.id, record.user, record.other) == ("7", "7", {"split": "test", "mood": "fine"})


# calls: each is paid once, and failures are told apart


def ask(text: str) -> Request:
    return Request((Turn("user", text),), Sampling(max_tokens=10))


def test_failures_of_the_endpoint_are_asked_again_and_others_are_not_paid_twice(tmp_path) -> None:
    lost, refused = Failure("endpoint failed", "reset", kind="transient"), Failure("refused", "no", 3, 4, 0.5)
    assert logged(tmp_path, ScriptedLLM([lost, refused]), "rubric").complete([ask("a"), ask("b")]) == [lost, refused]
    caller = logged(tmp_path, ScriptedLLM("yes"), "rubric")
    assert caller.complete([ask("a"), ask("b")]) == [Completion(text="yes"), refused]
    spent = caller.ledger.usage["rubric"]
    assert (spent.calls, spent.failed, spent.prompt_tokens, spent.completion_tokens, spent.usd) == (2, 1, 3, 4, 0.5)
