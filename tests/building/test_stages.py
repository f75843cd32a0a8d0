"""Records as they are read, calls and their budget, and stages by themselves: rubrics, couples, ratings."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.building import stages as stages_module
from prb.building.config import BuildConfig
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
from prb.errors import BadData, BadInput, BudgetUsedUp, Unreachable
from prb.llm import Completion, Request, Sampling, ScriptedLLM
from prb.types import Failure, Post, Turn
from prb.work import Replies

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


def test_thinking_aloud_before_the_list_does_not_matter() -> None:
    reply = Completion(text=f"<think>Aspect: nonsense</think>Here it is:\n{GOOD}")
    assert read_rubric(reply, NARRATIVE) is not None


BAD = {
    "evidence that is no quote": GOOD.replace("My knees", "Your knees"),
    "a missing reason": GOOD.rsplit("\n", 1)[0],
    "too few aspects": GOOD.split("\n2.", maxsplit=1)[0],
    "too many aspects": f"{GOOD}\n" * 4,
    "no list at all": "The person wants a short route.",
    "evidence too short to mean anything": GOOD.replace('a "short" route is worth more', "a"),
    "fields out of order": GOOD.replace("Evidence", "Xvidence")
    .replace("Reason", "Evidence")
    .replace("Xvidence", "Reason"),
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


def a_pair(first: str, second: str) -> AnswerPair:
    task = PairTask(record=asking("ann", 0), rubric=(), against=())
    chosen = Candidate(task=task, side="chosen", number=1, text=first)
    return AnswerPair(chosen=chosen, rejected=replace(chosen, side="rejected", text=second), round=1)


def test_both_orders_are_asked_and_a_judge_that_loves_the_first_is_evened_out() -> None:
    llm = ScriptedLLM(RATINGS)
    assert rate_quality(llm, [a_pair("pears", "plums")], Sampling()) == [(3.0, 3.0)]
    first, second = (request.chat[-1].text for request in llm.requests)
    assert first.index("pears") < first.index("plums")
    assert second.index("plums") < second.index("pears")


def test_one_order_that_cannot_be_read_fails_the_pair() -> None:
    llm = ScriptedLLM([RATINGS, "No idea.", "Still none."])
    (result,) = rate_quality(llm, [a_pair("one", "two")], Sampling())
    assert isinstance(result, Failure)


LAMP = {
    "id": "0_0_1",
    "question": "Why?",
    "narrative": "Because I wonder.",
    "profile": [{"id": "p", "text": "x", "category": "anime"}],
    "category": "anime",
    "rubric_aspects": [{"aspect": "a", "evidence": "I wonder", "reason": "r"}],
}


def test_published_lamp_qa_files_are_read_with_the_benchmarks_category(tmp_path) -> None:
    folder = tmp_path / "Art_and_Entertainment"
    folder.mkdir()
    (folder / "test.json").write_text(json.dumps([LAMP]))
    (record,), rejects = read_records(f"lampqa:{tmp_path}")
    assert (record.category, record.rubric[0].aspect, record.posts[0].category) == (
        "Art_and_Entertainment",
        "a",
        "anime",
    )
    assert rejects == []


def test_lamp_qa_as_jsonl_takes_the_category_from_its_name(tmp_path) -> None:
    (tmp_path / "Society_and_Culture-test.jsonl").write_text(json.dumps(LAMP))
    assert read_records(f"lampqa:{tmp_path}")[0][0].category == "Society_and_Culture"


def test_a_real_lamp_qa_profile_is_read_as_it_is(shared_data, tmp_path) -> None:
    real = json.loads((shared_data / "lampqa" / "lampqa_real_fragments.json").read_text())
    row = {
        "id": "0_0_0",
        "question": "What happened?",
        "profile": real["train_row_0_profile_verbatim"],
        "narrative": "n",
    }
    (tmp_path / "Art_and_Entertainment.json").write_text(json.dumps([row]))
    (record,), _ = read_records(f"lampqa:{tmp_path}")
    assert len(record.posts) == 42
    assert record.posts[0].text == row["profile"][0]["text"]


@pytest.mark.parametrize("content", ["{", '{"a": 1}'])
def test_a_lamp_qa_file_that_is_no_list_is_bad_input(tmp_path, content) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadInput):
        read_records(f"lampqa:{tmp_path}")


BAD_ROWS = {
    "no question": ({"id": "1"}, "`question` is missing"),
    "posts that are a text": ({"id": "1", "question": "q", "posts": "p"}, "`posts` must be"),
    "a post that is a number": ({"id": "1", "question": "q", "posts": [{"text": 7}]}, "`posts` must be"),
    "a narrative that is a number": ({"id": "1", "question": "q", "narrative": 7}, "`narrative` must be a string"),
    "a rubric without aspects": ({"id": "1", "question": "q", "rubric_aspects": [{}]}, "`rubric_aspects` must be"),
    "no object": ([], "a record must be a JSON object"),
}


@pytest.mark.parametrize(("row", "what"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_record_is_named_with_its_line(write_jsonl, row, what) -> None:
    with pytest.raises(BadData, match=f"set.jsonl:1: {what}"):
        read_records(str(write_jsonl([row])))


def test_posts_may_be_plain_texts_and_other_fields_survive(write_jsonl) -> None:
    row = {"id": 7, "question": "q", "narrative": "n", "posts": ["one", " ", "two"], "split": "test", "mood": "fine"}
    row |= {"mirror": "x", "chosen": "y", "rubric_aspects": None}
    (record,), _ = read_records(str(write_jsonl([row])))
    assert [post.text for post in record.posts] == ["one", "two"]
    assert (record.id, record.user, record.other) == ("7", "7", {"split": "test", "mood": "fine"})


# calls: each is paid once, failures are told apart, and the budget holds


def ask(text: str) -> Request:
    return Request((Turn("user", text),), Sampling(max_tokens=10))


def logged(tmp_path, llm, **settings) -> StageLLM:
    """At a dollar per token."""
    spec = "scripted/x?usd_in=1000000&usd_out=1000000"
    config = BuildConfig(input="x", llm=spec, out=tmp_path, **settings)
    replies = Replies(tmp_path / "replies.jsonl")
    return Ledger(config=config, llms={"write": llm}, replies=replies, given=True).llm("rubric")


def test_the_same_question_is_paid_once_even_within_one_batch(tmp_path) -> None:
    llm = ScriptedLLM("yes")
    assert len(logged(tmp_path, llm).complete([ask("a"), ask("a"), ask("b")])) == 3
    assert len(llm.requests) == 2


def test_failures_of_the_endpoint_are_asked_again_and_others_are_not_paid_twice(tmp_path) -> None:
    lost, refused = Failure("endpoint failed", "reset", kind="transient"), Failure("refused", "no", 3, 4, 0.5)
    assert logged(tmp_path, ScriptedLLM([lost, refused])).complete([ask("a"), ask("b")]) == [lost, refused]
    caller = logged(tmp_path, ScriptedLLM("yes"))
    assert caller.complete([ask("a"), ask("b")]) == [Completion(text="yes"), refused]
    spent = caller.ledger.usage["rubric"]
    assert (spent.calls, spent.failed, spent.prompt_tokens, spent.completion_tokens, spent.usd) == (2, 1, 3, 4, 0.5)


def test_a_request_the_endpoint_will_never_take_does_not_stop_the_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stages_module, "BATCH", 1)
    caller = logged(tmp_path, ScriptedLLM(Failure("HTTP 400", "content policy")))
    assert len(caller.complete([ask(str(n)) for n in range(20)])) == 20


def test_a_batch_is_cut_to_what_the_budget_bears(tmp_path) -> None:
    """A request is one token in and ten out at most, a dollar each: two fit into 24, a third does not."""
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    llm = ScriptedLLM(said)
    with pytest.raises(BudgetUsedUp, match="might exceed"):
        logged(tmp_path, llm, max_usd=24.0).complete([ask(c) for c in "abc"])
    assert len(llm.requests) == 2


def test_what_was_spent_before_counts_against_the_budget(tmp_path) -> None:
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    logged(tmp_path, ScriptedLLM(said)).complete([ask("a"), ask("b")])
    caller = logged(tmp_path, ScriptedLLM(said), max_usd=24.0)
    caller.complete([ask("a"), ask("b")])  # a build that is resumed goes through all of its calls
    with pytest.raises(BudgetUsedUp):
        caller.complete([ask("c")])


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure("HTTP 401", "wrong key", kind="fatal"), Unreachable),
        (Failure("budget used up", "$1 of $1", kind="budget"), BudgetUsedUp),
    ],
)
def test_an_llm_that_gives_up_stops_the_build_and_books_nothing(tmp_path, failure, error) -> None:
    caller = logged(tmp_path, ScriptedLLM(["yes", "yes", *[failure] * 9]))
    with pytest.raises(error, match=failure.reason):
        caller.complete([ask(str(n)) for n in range(20)])
    again = ScriptedLLM("yes")
    logged(tmp_path, again).complete([ask(str(n)) for n in range(20)])
    assert len(again.requests) == 18


def test_failures_are_counted_by_reason_whether_logged_or_new(tmp_path) -> None:
    logged(tmp_path, ScriptedLLM([Failure("refused"), "yes"])).complete([ask("a"), ask("b")])
    logged_again = logged(tmp_path, ScriptedLLM("never asked"))
    logged_again.complete([ask("a"), ask("b")])
    assert (logged_again.ledger.asked, logged_again.ledger.failures) == (2, {"refused": 1})
