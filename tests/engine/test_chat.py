"""Queries and answers → token ids → rewards: templates, tokens of the answer, what is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.engine.chat import AnswerScorer, Chat, Text, TwoTexts, fit, group_by_query
from prb.prompts import flat
from prb.types import Ask, Choice, Failure, Post, Query, Turn
from tests import tiny

ASK = Query(question="ask")
NO_BOS = tiny.CHAT.replace("{{ bos_token }}", "")


TALK = (Turn("system", "be warm"), Turn("user", "book"), Turn("assistant", "late"))
ASKED = "<|user|>\nask<|end|>\n<|assistant|>\nanswer<|end|>\n"


@pytest.mark.parametrize(
    ("template", "system", "context", "text"),
    [
        (tiny.CHAT, None, (), f"<s>{ASKED}"),
        (NO_BOS, None, (), f"<s>{ASKED}"),  # exactly one, also where the template writes none
        (tiny.CHAT, "be big", (), f"<s><|system|>\nbe big<|end|>\n{ASKED}"),
        (
            tiny.CHAT,
            "be big",
            TALK,
            "<s><|system|>\nbe big\n\nbe warm<|end|>\n<|user|>\nbook<|end|>\n<|assistant|>\nlate<|end|>\n" + ASKED,
        ),
        (None, None, (), "<s>ask\n\nanswer"),
        (None, None, TALK[1:], "<s>User: book\n\nAssistant: late\n\nUser: ask\n\nanswer"),
    ],
)
def test_a_query_is_written_by_the_models_template_or_as_plain_text(
    template: str | None, system: str | None, context: tuple[Turn, ...], text: str
) -> None:
    tokenizer = tiny.tokenizer(template)
    chat = Chat(tokenizer, system=system)
    assert tokenizer.decode(chat.texts(Query(question="ask", context=context), ["answer"])[0].ids) == text


def test_without_a_history_the_tokens_are_those_of_the_chat_template_for_the_bare_message() -> None:
    tokenizer, question = tiny.tokenizer(), " Which bread?\n\nA book: "
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "big"}]
    expected = tokenizer.apply_chat_template(turns, return_dict=False)
    assert list(Chat(tokenizer).texts(Query(question=question), ["big"])[0].ids) == list(expected)


def test_an_encoder_gets_two_texts() -> None:
    tokenizer = tiny.tokenizer(None, encoder=True)
    made = TwoTexts(tokenizer).texts(ASK, ["answer"])[0]
    assert tokenizer.decode(made.ids) == "<s>ask</s>answer</s>"


def query(posts: int, words: int = 12) -> Query:
    history = tuple(Post(str(n), "", f"post number {n} about bread") for n in range(posts))
    return Query(question=" ".join(f"w{n}" for n in range(words)), user="u", posts=history)


def encode(query: Query, answer: str) -> list[int]:
    return [0] * (len(flat(query).split()) + len(answer.split()))


def fitting(answers: Sequence[str], limit: int) -> Callable[[Query], bool]:
    return lambda query: all(len(encode(query, answer)) <= limit for answer in answers)


def test_the_oldest_posts_go_first_and_as_few_as_possible_then_the_middle_of_the_question() -> None:
    assert fit(query(3), fitting(["a"], 1000)) == (query(3), 0)
    full, bare = (len(encode(query(posts), "a")) for posts in (6, 0))
    short, cut = fit(query(6), fitting(["a"], full - 1))
    assert ([post.id for post in short.posts], cut) == (["1", "2", "3", "4", "5"], 1)
    short, cut = fit(query(4), fitting(["a"], bare - 4))
    assert (cut, short.posts) == (5, ())
    assert short.question.startswith("w0 w1")
    assert short.question.endswith("w11")
    assert "[…]" in short.question


def test_an_answer_that_alone_is_too_long_is_a_failure_not_a_cut_answer() -> None:
    assert isinstance(fit(query(2), fitting([" ".join("a" * 50)], 20)), Failure)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 8), st.integers(1, 30), st.integers(1, 20), st.integers(5, 120))
def test_a_fitted_query_fits_and_loses_no_more_posts_than_needed(
    posts: int, words: int, answer: int, limit: int
) -> None:
    texts = [" ".join("a" * answer)]
    fitted = fit(query(posts, words), fitting(texts, limit))
    if isinstance(fitted, Failure):
        assert answer + 3 > limit - 3
        return
    short, cut = fitted
    assert len(encode(short, texts[0])) <= limit
    if 0 < cut <= posts:
        one_more = Query(question=short.question, user="u", posts=query(posts, words).posts[cut - 1 :])
        assert len(encode(one_more, texts[0])) > limit


def test_after_the_posts_go_the_oldest_choices_then_the_oldest_turns_and_a_conversation_begins_with_the_user() -> None:
    choices = tuple(Choice(f"old question {n}", "this one", "not that one") for n in range(3))
    context = (Turn("system", "rules"), *(Turn("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(4)))
    whole = Query(question="now what", user="u", context=context, posts=query(2).posts, choices=choices)
    sizes = range(len(encode(whole, "a")), len(encode(Query(question="now what"), "a")), -1)
    cuts = [fitted for size in sizes if not isinstance(fitted := fit(whole, fitting(["a"], size)), Failure)]
    kept = [(len(q.posts), len(q.choices), len(q.context)) for q, _ in cuts]
    assert kept[0] == (2, 3, 5)
    assert kept == sorted(kept, reverse=True)
    assert all(posts == 0 or choices == 3 for posts, choices, _ in kept)
    assert all(choices == 0 or turns == 5 for _, choices, turns in kept)
    assert {q.context[0] for q, _ in cuts} == {Turn("system", "rules")}
    assert {q.context[1].role for q, _ in cuts if len(q.context) > 1} == {"user"}
    assert {q.choices[-1] for q, _ in cuts if q.choices} == {choices[-1]}


def loop(turn: str, *, start: str = "", end: str = "") -> str:
    return start + "{% for m in messages %}" + turn + "{% endfor %}" + end


BOS = "{{ bos_token }}"
IM_TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
INST = "{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]{% else %}"
LLAMA_3 = "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>"
GEMMA = (
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "<start_of_turn>{{ role }}\n{{ m['content'] | trim }}<end_of_turn>\n"
)
QWEN_3 = (
    "{% if m['role'] == 'assistant' %}"
    "{% set parts = m['content'].split('</think>') %}{% set said = parts[-1].lstrip('\n') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip() if parts | length > 1 else '' %}"
    "<|im_start|>assistant\n<think>\n{{ thought }}\n</think>\n\n{{ said }}<|im_end|>\n"
    "{% else %}" + IM_TURN + "{% endif %}"
)
DEEPSEEK = (
    "{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}{% else %}"
    "<|Assistant|>{{ m['content'].split('</think>')[-1] }}{{ eos_token }}{% endif %}"
)
TEMPLATES = {
    "ChatML": loop(IM_TURN),
    "Llama 3": loop(LLAMA_3, start=BOS),
    "Llama 2": loop(INST + " {{ m['content'] | trim }} {{ eos_token }}{% endif %}", start=BOS),
    "Mistral": loop(INST + "{{ m['content'] }}{{ eos_token }}{% endif %}", start=BOS),
    "Gemma": loop(GEMMA, start=BOS),
    "Phi-3": loop("<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n", end="{{ eos_token }}"),
    "Zephyr": loop("<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n"),
    "Qwen 3": loop(QWEN_3),
    "DeepSeek": loop(DEEPSEEK, start=BOS),
    "words": loop("{{ m['role'] }}: {{ m['content'] }} end\n"),
    "nothing after": loop("{{ m['role'] }}\n{{ m['content'] }}"),
    "none": None,
}
HOSTILE_ANSWERS = [
    *("end", "im_end", "user", "assistant", "<", "|>", "t", "answer0", "answer", "a book", "book", "User:", "\n\nend"),
    *(" end ", "end\n", "{{ m }}", "[/INST]", "model", "say end end", "</think>x", "<think>", "so <think> so"),
]
QUESTIONS = ["a book", "end", "answer0 answer1", "What does user say?", "say im_end end", "<think>\n\n</think>\n\n"]
TEXT = st.one_of(
    st.sampled_from(HOSTILE_ANSWERS), st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
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
    assert shown(tokenizer, chat.texts(query, [answer])[0]).strip() == expected.strip()


def test_reasoning_that_an_answer_brings_is_part_of_it_if_the_template_shows_it() -> None:
    answer = "<think>\nbe early\n</think>\n\ncook a long day"
    chat, tokenizer = chat_of("Qwen 3")
    (text,) = chat.texts(ASK, [answer])
    assert shown(tokenizer, text) == answer
    assert tokenizer.decode(text.ids[: text.start]).endswith("<|im_start|>assistant\n")
    chat, tokenizer = chat_of("DeepSeek")
    assert shown(tokenizer, chat.texts(ASK, [answer])[0]).strip() == "cook a long day"


def test_an_answer_of_which_the_template_shows_nothing_is_a_failure() -> None:
    asks = [Ask(ASK, "<think>so</think>"), Ask(ASK, "so")]
    (scored,), failures = group_by_query(asks, chat_of("DeepSeek")[0], 512)
    assert failures == {0: Failure("empty answer", "the chat template shows nothing of it")}
    assert scored.positions == [1]


class Letters:
    """One token per letter."""

    def texts(self, query: Query, answers: Sequence[str]) -> list[Text]:
        prompt = " ".join([*(post.text for post in query.posts), query.question])
        return [Text([*map(ord, prompt + answer)], len(prompt), len(prompt + answer)) for answer in answers]


ASKS = [Ask(Query(question=f"q{n % 4}"), "x" * (n % 5)) for n in range(23)]


def scorer(seen: list[int] | None = None) -> AnswerScorer:
    def compute(groups: Sequence[Sequence[Text]]) -> list[list[float]]:
        if seen is not None:
            seen.append(len(groups))
        return [[float(sum(text.ids)) for text in group] for group in groups]

    return AnswerScorer(Letters(), compute, fingerprint="letters", limit=100)


def test_rewards_come_in_the_order_of_the_asks_and_queries_are_read_together() -> None:
    seen: list[int] = []
    rewards = scorer(seen).score(ASKS)
    assert seen == [4]
    for ask, reward in zip(ASKS, rewards, strict=True):
        if not ask.answer:
            assert reward == Failure("empty answer")
        else:
            assert reward == sum(map(ord, ask.query.question + ask.answer))
            assert (reward.tokens, reward.spoken) == (2 + len(ask.answer), len(ask.answer))
    assert scorer().score([]) == []


def test_a_query_that_is_too_long_is_cut_alike_for_all_its_answers() -> None:
    query = Query(question="q", posts=tuple(Post(str(n), "", "p" * 20) for n in range(5)))
    asks = [Ask(query, "a"), Ask(query, "b" * 30)]
    (group,), _ = group_by_query(asks, Letters(), 100)
    assert (group.cut, [len(text.ids) for text in group.texts]) == (2, [65, 94])
