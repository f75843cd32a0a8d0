"""Where the thinking of a reply ends: in its text, among its tokens, and in what servers return apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadSpec
from prb.llm import make_llm
from prb.llm.asking import answer_is_next, answer_token, opened_by, without_thinking
from prb.llm.endpoint import first_token
from tests.llm.clients import endpoint, one
from tests.llm.server import serve


@pytest.mark.parametrize(
    ("tokens", "first"),
    [
        (["A"], 0),
        ([" A", "."], 0),
        (["<think>", "A?", "</think>", "\n\n", "B"], 4),
        (["A?", "</think>", "B"], 2),  # the template wrote the opening tag
        (["<thi", "nk>", "so", "</", "think", ">\n", "B"], 6),
        (["<think>", "A or"], None),
        (["<think>", "x", "</think>", "\n"], None),
        ([], None),
    ],
)
def test_the_token_that_begins_the_answer_is_found(tokens: list[str], first: int | None) -> None:
    assert answer_token(tokens) == first


words = st.text(st.sampled_from("AB x\n"), max_size=6)


@given(words, words.filter(str.strip))
def test_an_answer_begins_at_its_first_letter_however_the_reply_is_cut_into_tokens(thought: str, answer: str) -> None:
    text = f"<think>{thought}</think>{answer}"
    assert without_thinking(text) == answer
    at = answer_token(list(text))
    assert at is not None
    assert text[at:].strip() == answer.strip()
    assert [n for n in range(len(text)) if answer_is_next(text[:n])][-1] == at


def test_an_opening_tag_at_the_end_of_a_prompt_is_seen_and_a_closed_one_is_not() -> None:
    assert opened_by("Hi<think>\n") == "<think>\n"
    assert opened_by("Hi<think>\n\n</think>\n\n") == ""


def choice(tokens: list[str], content: str, **message: Any) -> dict[str, Any]:
    listed = [{"token": t, "logprob": -1.0, "top_logprobs": [{"token": f"{t}*", "logprob": -2.0}]} for t in tokens]
    return {"message": {"content": content, **message}, "logprobs": {"content": listed}}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("tokens", [["A?", "</think>", "\n", "B"], ["A?", "B"], ["B"]])
def test_servers_that_return_thinking_apart_are_read_at_the_answer(tokens: list[str], field: str) -> None:
    assert first_token(choice(tokens, "B", **{field: "A?"})) == {"B": -1.0, "B*": -2.0}


def test_thinking_that_was_cut_short_gives_no_log_probabilities() -> None:
    assert first_token(choice(["A", " or"], "", reasoning_content="A or")) == {}
    assert first_token(choice(["<think>", "A"], "<think>A")) == {}


def test_settings_of_the_chat_template_and_of_the_server_reach_the_endpoint() -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5}
    with serve() as server:
        llm = endpoint(server, extra=extra)
        one(llm)
        assert {key: server.seen[0].body[key] for key in extra} == extra
        assert llm.fingerprint != endpoint(server).fingerprint


def test_they_are_options_of_the_spec_and_cannot_replace_what_was_asked() -> None:
    local = "openai/m?base_url=http://127.0.0.1:9/v1"
    made = make_llm(local + '&chat_template_kwargs={"enable_thinking": false}&extra_body={"top_k": 5}')
    assert made.fingerprint.startswith("openai-m@")
    with pytest.raises(BadSpec, match="must not contain messages, which prb sets itself"):
        make_llm(local + '&extra_body={"messages": []}')
    with pytest.raises(BadSpec, match="extra_body"):
        make_llm(local + "&extra_body=nonsense")
