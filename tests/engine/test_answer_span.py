"""Whatever the template and the answer, the marked tokens are those of the answer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.engine.answers import group_by_query
from prb.engine.chat import Chat, Text
from prb.types import Ask, Failure, Query, Turn
from tests import tiny

LOOP = "{% for m in messages %}"
END = "{% endfor %}"
CHATML = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
THOUGHTS = (
    "{% set parts = m['content'].split('</think>') %}{% set said = parts[-1].lstrip('\n') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip() if parts | length > 1 else '' %}"
)
INST = "{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]{% else %}"
TEMPLATES = {
    "ChatML": LOOP + CHATML + END,
    "Llama 3": "{{ bos_token }}"
    + LOOP
    + "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
    + END,
    "Llama 2": "{{ bos_token }}" + LOOP + INST + " {{ m['content'] | trim }} {{ eos_token }}{% endif %}" + END,
    "Mistral": "{{ bos_token }}" + LOOP + INST + "{{ m['content'] }}{{ eos_token }}{% endif %}" + END,
    "Gemma": "{{ bos_token }}"
    + LOOP
    + "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    + "<start_of_turn>{{ role }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    + END,
    "Phi-3": LOOP + "<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n" + END + "{{ eos_token }}",
    "Zephyr": LOOP + "<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n" + END,
    "Qwen 3": LOOP
    + "{% if m['role'] == 'assistant' %}"
    + THOUGHTS
    + "<|im_start|>assistant\n<think>\n{{ thought }}\n</think>\n\n{{ said }}<|im_end|>\n{% else %}"
    + CHATML
    + "{% endif %}"
    + END,
    "DeepSeek": "{{ bos_token }}"
    + LOOP
    + "{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}{% else %}"
    + "<|Assistant|>{{ m['content'].split('</think>')[-1] }}{{ eos_token }}{% endif %}"
    + END,
    "words": LOOP + "{{ m['role'] }}: {{ m['content'] }} end\n" + END,
    "nothing after": LOOP + "{{ m['role'] }}\n{{ m['content'] }}" + END,
    "none": None,
}
HOSTILE = [
    *("end", "im_end", "user", "assistant", "<", "|>", "t", "answer0", "answer", "a book", "book", "User:", "\n\nend"),
    *(" end ", "end\n", "{{ m }}", "[/INST]", "model", "say end end", "</think>x", "<think>", "so <think> so"),
]
QUESTIONS = ["a book", "end", "answer0 answer1", "What does user say?", "say im_end end", "<think>\n\n</think>\n\n"]
TEXT = st.one_of(
    st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
)


@cache
def chat_of(name: str) -> tuple[Chat, Any]:
    tokenizer = tiny.tokenizer(TEMPLATES[name])
    return Chat(tokenizer), tokenizer


def shown(tokenizer: Any, text: Text) -> str:
    decoded: str = tokenizer.decode(text.ids[text.start : text.end], clean_up_tokenization_spaces=False)
    return decoded


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(answer=TEXT.filter(str.strip), question=st.sampled_from(QUESTIONS))
def test_the_marked_tokens_decode_to_the_answer(name: str, answer: str, question: str) -> None:
    chat, tokenizer = chat_of(name)
    query = Query(question=question, context=(Turn("user", answer), Turn("assistant", question)))
    expected = answer.rpartition("</think>")[2] if name in ("Qwen 3", "DeepSeek") else answer
    assert shown(tokenizer, chat.text(query, answer)).strip() == expected.strip()


def test_an_answer_is_not_found_inside_the_mark_that_ends_it() -> None:
    chat, tokenizer = chat_of("ChatML")
    text = chat.text(Query(question="ask"), "end")
    assert tokenizer.decode(text.ids[: text.start]).endswith("<|im_start|>assistant\n")
    assert tokenizer.decode(text.ids[text.end :]) == "<|im_end|>\n"


def test_reasoning_that_an_answer_brings_is_part_of_it_if_the_template_shows_it() -> None:
    answer = "<think>\nbe early\n</think>\n\ncook a long day"
    chat, tokenizer = chat_of("Qwen 3")
    text = chat.text(Query(question="ask"), answer)
    assert shown(tokenizer, text) == answer
    assert tokenizer.decode(text.ids[: text.start]).endswith("<|im_start|>assistant\n")
    chat, tokenizer = chat_of("DeepSeek")
    assert shown(tokenizer, chat.text(Query(question="ask"), answer)).strip() == "cook a long day"


def test_without_reasoning_the_empty_block_belongs_to_the_template() -> None:
    chat, tokenizer = chat_of("Qwen 3")
    text = chat.text(Query(question="ask"), "cook")
    assert shown(tokenizer, text) == "cook"
    assert tokenizer.decode(text.ids[: text.start]).endswith("<think>\n\n</think>\n\n")


def test_an_answer_of_which_the_template_shows_nothing_is_a_failure() -> None:
    query = Query(question="ask")
    asks = [Ask(query, "<think>so</think>"), Ask(query, "so")]
    empty, scored = sorted(
        list(group_by_query(asks, chat_of("DeepSeek")[0], 512))[:2], key=lambda group: group.positions
    )
    assert (empty.positions, empty.failure) == ([0], Failure("empty answer", "the chat template shows nothing of it"))
    assert scored.positions == [1]
