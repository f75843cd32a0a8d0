"""Requests become asks of a model, or a clear refusal; results become replies, or an error."""

from __future__ import annotations

import re
import time
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from prb.serving.app import (
    END_MARKERS,
    ClassifyRequest,
    Refused,
    RewardRequest,
    ScoreRequest,
    first_problem,
    read_body,
)
from prb.serving.server import Limits
from prb.types import Ask, Choice, Post, Query, Turn
from tests.serving.fakes import ask


def refused(**body: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        ScoreRequest.model_validate(body)
    return first_problem(caught.value.errors())


LABEL = '{"question": "q"}'


def rewards(query: list[str], prompts: list[str], labels: list[Any]) -> list[Ask]:
    return RewardRequest.model_validate({"query": query, "prompts": prompts, "labels": labels}).asks()


def test_a_request_becomes_one_ask_an_answer_about_one_query() -> None:
    posts: list[Any] = [{"id": "p7", "category": "Food", "text": "I bake."}, "I travel."]
    body = {"query": {"question": "q", "user": "u", "posts": posts, "plan": ["brief"]}, "answers": ["a", "b"]}
    query = Query(
        question="q", user="u", posts=(Post("p7", "Food", "I bake."), Post("2", "", "I travel.")), plan=("brief",)
    )
    assert ScoreRequest.model_validate(body).asks() == [Ask(query, "a"), Ask(query, "b")]


@pytest.mark.parametrize("field", ["rubric", "rubric_aspects", "narrative", "profile", "post"])
def test_there_is_no_field_for_the_rubric_and_no_misspelled_field_is_overlooked(field: str) -> None:
    assert refused(query={"question": "q", field: "x"}, answers=["a"]).startswith(f"query.{field}: ")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"query": {"question": "q"}, "answers": []}, "answers"),
        ({"query": {"question": "q"}}, "answers"),
        ({"query": {}, "answers": ["a"]}, "query.question"),
        ({"query": {"question": "q"}, "answers": ["a", 3]}, "answers.1"),
        ({"query": {"question": "\ud800"}, "answers": ["a"]}, "query.question"),
        ({"query": {"question": "q"}, "answers": ["a", "\udfff"]}, "answers.1"),
        ({"query": {"question": "q", "user": "\ud800"}, "answers": ["a"]}, "query.user"),
        ({"query": {"question": "q", "posts": [{"text": "t", "category": "\ud800"}]}, "answers": ["a"]}, "query.posts"),
        ({"query": {"question": "q", "posts": [""] * 10_001}, "answers": ["a"]}, "query.posts"),
    ],
)
def test_a_wrong_request_is_told_where_it_is_wrong(body: dict[str, Any], place: str) -> None:
    assert re.match(rf"{place}[.:]", refused(**body))


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    assert "secret" not in refused(query={"question": {"secret": 1}}, answers=["a"])


def test_markers_of_the_end_are_no_part_of_an_answer() -> None:
    texts = [f"p: Use {end} here.{end}\n{end}" for end in END_MARKERS]
    asks = rewards(texts, ["p: "] * len(texts), [LABEL] * len(texts))
    assert [one.answer for one in asks] == [f"Use {end} here." for end in END_MARKERS]


@pytest.mark.parametrize("ending", ["</s>", " ", "\n<eos>", "<|im_end|>\n"])
def test_megabytes_of_markers_and_blanks_take_a_moment(ending: str) -> None:
    """One pass over them; one by one, four of these stopped a server for minutes."""
    many = ending * (4_000_000 // len(ending))
    started = time.process_time()
    assert rewards([f"p: a{many}", f"p: {many}b"], ["p: "] * 2, [LABEL] * 2) == [ask("q", "a"), ask("q", f"{many}b")]
    assert time.process_time() - started < 5


def test_megabytes_of_blanks_are_no_chat() -> None:
    started = time.process_time()
    for text in (" " * 8_000_000, "<|im_start|>user\n" + " " * 8_000_000, "<|im_start|>" * 600_000):
        with pytest.raises(Refused, match="is not a chat"):
            ClassifyRequest.model_validate({"input": text}).asks()
    assert time.process_time() - started < 10


def test_a_label_carries_the_person_as_json_or_as_a_map() -> None:
    query = Query(question="q", user="u", posts=(Post("1", "", "I am brief"),))
    labels = [
        '{"question": "q", "user": "u", "posts": ["I am brief"]}',
        {"question": "q", "user": "u", "posts": ["I am brief"]},
    ]
    assert rewards(["p a", "p b"], ["p ", "p "], labels) == [Ask(query, "a"), Ask(query, "b")]


@pytest.mark.parametrize(
    "label", ["", "  ", "42", "the right answer", "[]", {}, '{"posts": []}', '{"question": "q", "rubric": []}']
)
def test_a_label_that_is_no_query_is_refused_rather_than_scored_for_nobody(label: Any) -> None:
    with pytest.raises(Refused, match=r"labels\.1 is not a query") as caught:
        rewards(["p a", "p b"], ["p ", "p "], [LABEL, label])
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("texts", "prompts", "labels", "why"),
    [
        (["p a", "x a"], ["p ", "p "], [LABEL] * 2, r"query\.1 does not begin with prompts\.1"),
        (["p a", "p b"], ["p "], [LABEL] * 2, "must have the same length"),
        (["p a", "p b"], ["p ", "p "], [], "must have the same length"),
        (["p a", "p b"], ["p ", "p "], [LABEL] * 3, "must have the same length"),
        (["p a"], ["p "], None, "labels"),
        (["p a"], ["p "], [None], "labels"),
    ],
)
def test_texts_prompts_and_labels_must_belong_together(
    texts: list[str], prompts: list[str], labels: Any, why: str
) -> None:
    with pytest.raises((Refused, ValidationError), match=why):
        rewards(texts, prompts, labels)


def read(question: str, posts: list[str], *answers: str) -> list[Ask]:
    sent = {"query": {"question": question, "posts": posts}, "answers": answers}
    return read_body(ScoreRequest, orjson.dumps(sent), Limits(answers=3, chars=100))[1]


@pytest.mark.parametrize(
    ("posts", "answers", "why"),
    [
        ([], ["a"] * 4, "4 answers in one request; at most 3"),
        (["x" * 60, "y" * 40], ["a"], "a query of 101 characters; at most 100"),
        ([], ["a" * 101], "an answer of 101 characters; at most 100"),
    ],
)
def test_what_is_too_large_is_refused_with_its_size(posts: list[str], answers: list[str], why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        read("q", posts, *answers)
    assert caught.value.status == 413


def test_what_just_fits_is_accepted() -> None:
    assert len(read("q", ["x" * 59, "y" * 40], *["a" * 100] * 3)) == 3


@pytest.mark.parametrize(
    ("kind", "body", "place"),
    [
        (ScoreRequest, {"query": {"question": "q"}, "answers": [1] * 50_000}, "answers.0"),
        (ScoreRequest, {"query": {"question": "q", "posts": [1] * 50_000}, "answers": ["a"]}, "query.posts.0"),
        (ScoreRequest, {"query": {"question": "q", "plan": [1] * 50_000}, "answers": ["a"]}, "query.plan.0"),
        (
            ScoreRequest,
            {"query": {"question": "q"} | dict.fromkeys(map(str, range(50_000)), 1), "answers": ["a"]},
            "query.0",
        ),
        (ScoreRequest, {"query": {"question": "q"}, "answers": [""] * 100_001}, "answers"),
        (RewardRequest, {"query": [1] * 50_000, "prompts": [""], "labels": [LABEL]}, "query.0"),
        (RewardRequest, {"query": ["a"], "prompts": [1] * 50_000, "labels": [LABEL]}, "prompts.0"),
        (RewardRequest, {"query": ["a"], "prompts": [""], "labels": [1] * 50_000}, "labels.0"),
    ],
)
def test_of_many_errors_only_the_first_is_collected(kind: Any, body: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_body(kind, orjson.dumps(body), Limits())
    assert caught.value.error_count() <= 2  # a post may be a string or an object, and is neither
    assert first_problem(caught.value.errors()).startswith(place)


def test_a_query_may_hold_past_choices_and_earlier_turns() -> None:
    choice = {"question": "Tea?", "chosen": "Yes.", "rejected": "No."}
    body = {"question": "And now?", "choices": [choice], "context": [{"role": "user", "text": "Hello."}]}
    (one,) = ScoreRequest.model_validate({"query": body, "answers": ["a"]}).asks()
    assert one.query.choices == (Choice("Tea?", "Yes.", "No."),)
    assert one.query.context == (Turn("user", "Hello."),)
    assert refused(query={**body, "choices": [{"question": "Tea?", "chosen": "Yes."}]}, answers=["a"]).startswith(
        "query"
    )
    assert "role" in refused(query={**body, "context": [{"role": "bot", "text": "x"}]}, answers=["a"])
