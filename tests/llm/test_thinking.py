"""Where the thinking of a reply ends: in its text, among its tokens, and in what servers return apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadSpec
from prb.llm import make_llm
from prb.llm.asking import opened_by, without_thinking
from tests.llm.clients import endpoint, one
from tests.llm.server import says, serve

words = st.text(st.sampled_from("AB x\n"), max_size=6)


@given(words, words.filter(str.strip))
def test_an_answer_begins_after_its_thinking(thought: str, answer: str) -> None:
    assert without_thinking(f"<think>{thought}</think>{answer}") == answer


def test_an_opening_tag_at_the_end_of_a_prompt_is_seen_and_a_closed_one_is_not() -> None:
    assert opened_by("Hi<think>\n") == "<think>\n"
    assert opened_by("Hi<think>\n\n</think>\n\n") == ""


@pytest.mark.parametrize(
    ("thought", "first"),
    [({}, {"B": -1.0, "B*": -2.0}), ({"reasoning_content": "A?"}, {}), ({"reasoning": "A?"}, {})],
)
def test_the_first_token_of_thinking_is_not_weighed(thought: dict[str, str], first: dict[str, float]) -> None:
    listed = [{"token": "B", "logprob": -1.0, "top_logprobs": [{"token": "B*", "logprob": -2.0}]}]
    with serve(lambda _: says("B.", message=thought, logprobs={"content": listed})) as server:
        assert one(endpoint(server), top_logprobs=2).first == first


def test_settings_of_the_chat_template_and_of_the_server_reach_the_endpoint() -> None:
    quiet = {"enable_thinking": False}
    with serve() as server:
        llm = endpoint(server, chat_template_kwargs=quiet, extra_body={"top_k": 5})
        one(llm)
        assert (server.seen[0].body["chat_template_kwargs"], server.seen[0].body["top_k"]) == (quiet, 5)
        assert llm.fingerprint != endpoint(server).fingerprint


def test_they_are_options_of_the_spec_and_cannot_replace_what_was_asked() -> None:
    local = "openai/m?base_url=http://127.0.0.1:9/v1"
    made = make_llm(local + '&chat_template_kwargs={"enable_thinking": false}&extra_body={"top_k": 5}')
    assert made.fingerprint.startswith("openai-m@")
    with pytest.raises(BadSpec, match="must not contain messages, which prb sets itself"):
        make_llm(local + '&extra_body={"messages": []}')
    with pytest.raises(BadSpec, match="extra_body"):
        make_llm(local + "&extra_body=nonsense")
