"""Couples, ratings, records and the ledger, each by itself."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from prb.building.couple import Couple, propose, read_finding
from prb.building.ledger import Ledger, Stopped, Voice
from prb.building.quality import Both, rate, read_ratings
from prb.building.records import Record, read_records
from prb.errors import BadData, BadInput
from prb.llm import Completion, Message, Request, Sampling
from prb.llm.pacing import Prices
from prb.llm.scripted import ScriptedLLM
from prb.runs import Journal
from prb.types import Failure, Post


class ByNumber:
    """A question `x 30` points 30 degrees up."""

    fingerprint = "angles"

    def encode(self, texts):
        angles = np.radians([float(text.split()[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def asking(user: str, angle: float) -> Record:
    return Record(id=f"{user}{angle}", user=user, question=f"q {angle}", narrative="n", posts=(Post("1", "", "p"),))


def test_the_nearest_questions_of_different_people_are_coupled_and_nobody_twice() -> None:
    records = [asking("ann", 0), asking("ben", 10), asking("cid", 12), asking("dan", 90)]
    assert propose(records, ByNumber(), 0.9) == [Couple(1, 2)]


def test_people_of_different_splits_are_never_coupled() -> None:
    ann, ben = asking("ann", 0), asking("ben", 1)
    assert (
        propose([replace(ann, other={"split": "train"}), replace(ben, other={"split": "test"})], ByNumber(), 0.5) == []
    )


def test_one_persons_own_questions_are_never_coupled() -> None:
    assert propose([asking("ann", 0), asking("ann", 1)], ByNumber(), 0.5) == []
    assert propose([asking("ann", 0)], ByNumber(), 0.5) == []


def test_blocks_do_not_change_what_is_proposed() -> None:
    records = [asking(f"p{n}", float(angle)) for n, angle in enumerate([0, 3, 40, 42, 45, 80, 81, 170])]
    assert propose(records, ByNumber(), 0.9, block=3) == propose(records, ByNumber(), 0.9)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("Well.\nVerdict: conflict", "conflict"),
        ("**Verdict:** Different questions", "different questions"),
        ("Verdict: conflict or compatible", None),
        ("Verdict: conflict\nVerdict: compatible", None),
        ("They conflict.", None),
    ],
)
def test_a_finding_on_a_couple_is_read_strictly(text, finding) -> None:
    assert read_finding(Completion(text=text)) == finding


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
    assert rate(llm, [Both("q", "pears", "plums")], Sampling()) == [(3.0, 3.0)]
    first, second = (request.chat[-1].text for request in llm.requests)
    assert first.index("pears") < first.index("plums")
    assert second.index("plums") < second.index("pears")


def test_one_order_that_cannot_be_read_fails_the_pair() -> None:
    llm = ScriptedLLM([RATINGS, "No idea.", "Still none."])
    (result,) = rate(llm, [Both("q", "one", "two")], Sampling())
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
    "posts that are a text": ({"id": "1", "question": "q", "posts": "p"}, "`posts` wants"),
    "a post that is a number": ({"id": "1", "question": "q", "posts": [{"text": 7}]}, "`posts` wants"),
    "a narrative that is a number": ({"id": "1", "question": "q", "narrative": 7}, "`narrative` wants text"),
    "a rubric without aspects": ({"id": "1", "question": "q", "rubric_aspects": [{}]}, "`rubric_aspects` wants"),
    "no object": ([], "a record is an object"),
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


def ask(text: str) -> Request:
    return Request((Message("user", text),), Sampling(max_tokens=10))


def a_voice(tmp_path, llm, **settings) -> Voice:
    return Voice(llm, "rubric", Prices(prompt=1e6, completion=1e6), Ledger(Journal(tmp_path / "log.jsonl"), **settings))


def test_the_same_question_is_paid_once_even_within_one_batch(tmp_path) -> None:
    llm = ScriptedLLM("yes")
    assert len(a_voice(tmp_path, llm).complete([ask("a"), ask("a"), ask("b")])) == 3
    assert len(llm.requests) == 2


def test_failures_of_the_endpoint_are_asked_again_and_others_are_not_paid_twice(tmp_path) -> None:
    lost, refused = Failure("endpoint failed", "reset"), Failure("refused", "no", 3, 4, 0.5)
    voice = a_voice(tmp_path, ScriptedLLM([lost, refused, "yes"]))
    assert voice.complete([ask("a"), ask("b")]) == [lost, refused]
    assert voice.complete([ask("a"), ask("b")]) == [Completion(text="yes"), refused]
    spent = a_voice(tmp_path, ScriptedLLM("never asked")).ledger.spent["rubric"]
    assert (spent.calls, spent.failed, spent.prompt_tokens, spent.completion_tokens, spent.usd) == (3, 2, 3, 4, 0.5)


def test_a_request_the_endpoint_will_never_take_does_not_stop_the_others(tmp_path) -> None:
    voice = a_voice(tmp_path, ScriptedLLM(Failure("HTTP 400", "content policy")), batch=1)
    assert len(voice.complete([ask(str(n)) for n in range(20)])) == 20


@pytest.mark.parametrize("limit", [{"max_usd": 24.0}, {"max_tokens": 24}])
def test_a_batch_is_cut_to_what_the_budget_bears(tmp_path, limit) -> None:
    """A request is one token in and ten out at most, a dollar each: two fit into 24, a third does not."""
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    llm = ScriptedLLM(said)
    with pytest.raises(Stopped, match="might pass"):
        a_voice(tmp_path, llm, **limit).complete([ask(c) for c in "abc"])
    assert len(llm.requests) == 2


def test_what_was_spent_before_counts_against_the_budget(tmp_path) -> None:
    said = Completion(text="yes", prompt_tokens=1, completion_tokens=10, cost=11.0)
    a_voice(tmp_path, ScriptedLLM(said)).complete([ask("a"), ask("b")])
    with pytest.raises(Stopped):
        a_voice(tmp_path, ScriptedLLM(said), max_usd=24.0).complete([ask("c")])
