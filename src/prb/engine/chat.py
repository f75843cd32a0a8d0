"""Queries and answers → token ids → rewards: the model's chat template once, exactly one BOS, what to cut if the result
is too long, and a scorer that reads the answers to a query together.

What does not fit loses the oldest posts first, then the oldest past choices, the oldest turns of the conversation, the
middle of the question; never the answer. All answers to a query are cut alike, by the longest of them, so that they are
judged on the same ground.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from prb.cache import Memo
from prb.prompts import chat, flat
from prb.types import Ask, Failure, Query, Reward, Turn
from prb.work import checked_reward, halve_if_out_of_memory

T = TypeVar("T")
Tokens = Sequence[int]

NO_THOUGHTS = re.compile(r"<think>\s*</think>\s*$")
"""How a template says that an answer was given without reasoning."""

SEPARATOR = "\n\n"
"""Reward models without a chat template read the prompt, an empty line and the answer, with the special tokens the
tokenizer adds."""
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For LLMs without a chat template, as base models are: `User: Name a color.`, an empty line, `Assistant:`."""
PLAIN_STOP = ("\n\nUser:", "\n\nAssistant:")
"""Such a model does not know where to end, so its reply is cut where it begins another turn."""


def apply_template(tokenizer: Any, messages: Sequence[tuple[str, str]], **shape: Any) -> str:
    """(role, text) messages as the model's own template writes them, or the plain one where it has none.

    Templates without a system role get the system text at the start of the first turn.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        shape["chat_template"] = PLAIN_TEMPLATE
    attempts = [list(messages)]
    if len(messages) > 1 and messages[0][0] == "system":
        (_, system), (role, text), *rest = messages
        attempts.append([(role, f"{system}\n\n{text}"), *rest])
    for attempt in attempts:
        chat = [{"role": role, "content": text} for role, text in attempt]
        try:
            return str(tokenizer.apply_chat_template(chat, tokenize=False, **shape))
        except TemplateError as error:
            why = error
    raise ValueError(f"the model's chat template refuses this chat: {why}")


def write_prompt(tokenizer: Any, messages: Sequence[tuple[str, str]], **settings: Any) -> str:
    """The chat up to where the model takes over; an answer that has begun is continued. `settings` are the template's
    own, such as `enable_thinking`."""
    if not messages:
        raise ValueError("the chat is empty")
    begun = messages[-1][0] == "assistant"
    shape = {"add_generation_prompt": not begun, "continue_final_message": begun}
    return apply_template(tokenizer, messages, **{**settings, **shape})


def one_bos(tokenizer: Any, tokens: Tokens) -> list[int]:
    """Exactly one BOS where the template wrote one or the tokenizer would add one; else none."""
    bos: int | None = getattr(tokenizer, "bos_token_id", None)
    rest = list(tokens)
    if bos is None:
        return rest
    while rest[:1] == [bos]:
        rest.pop(0)
    needed = len(rest) < len(tokens) or tokenizer("a")["input_ids"][:1] == [bos]
    return [bos, *rest] if needed else rest


@dataclass(frozen=True)
class Text:
    """A prompt with its answer as token ids, and which of them are the answer's."""

    ids: Tokens
    start: int
    end: int
    types: Tokens | None = None
    """Which of two texts a token belongs to, where a tokenizer distinguishes them."""


@dataclass
class TwoTexts:
    """Prompt and answer as the two texts of an encoder's pair input."""

    tokenizer: Any

    def texts(self, query: Query, answers: Sequence[str]) -> list[Text]:
        encoded = [self.tokenizer(flat(query), answer) for answer in answers]
        return [Text(e["input_ids"], 0, len(e["input_ids"]), e.get("token_type_ids")) for e in encoded]


@dataclass
class Chat:
    """The conversation as turns, with the answer as the assistant's last one."""

    tokenizer: Any
    system: str | None = None

    def texts(self, query: Query, answers: Sequence[str]) -> list[Text]:
        templated = bool(getattr(self.tokenizer, "chat_template", None))
        if templated:
            # with one system message at most, since templates know no more: ours, then the conversation's
            ours = [("system", self.system)] if self.system else []
            messages = [*ours, *((turn.role, turn.text) for turn in chat(query))]
            turns = [(role, text) for role, text in messages if role != "system"]
            if len(turns) < len(messages):
                turns.insert(0, ("system", "\n\n".join(text for role, text in messages if role == "system")))
            # what the template writes around an answer, found with one that is unlike anything else in the text
            code = next(code for n in count() if not any((code := f"answer{n}") in text for _, text in turns))
            framed, *wholes = (apply_template(self.tokenizer, [*turns, ("assistant", a)]) for a in (code, *answers))
            before, _, after = framed.rpartition(code)
        else:
            before, after = f"{flat(query)}{SEPARATOR}", ""
            wholes = [f"{before}{answer}" for answer in answers]
        encoded = self.tokenizer(wholes, add_special_tokens=not templated, return_offsets_mapping=True)
        texts = []
        for whole, tokens, offsets in zip(wholes, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            first, last = answer_span(whole, before, after)
            inside = [i for i, (a, b) in enumerate(offsets) if b > first and a < last and b > a]
            # none, if the template shows nothing of the answer
            start = inside[0] if inside else sum(b <= first for _, b in offsets)
            end = inside[-1] + 1 if inside else start
            # a template writes its own special tokens; a BOS that it leaves out though the tokenizer adds one is put
            # back
            ids = one_bos(self.tokenizer, tokens) if templated else tokens
            shift = len(ids) - len(tokens)
            texts.append(Text(ids, start + shift, end + shift))
        return texts


def answer_span(whole: str, before: str, after: str) -> tuple[int, int]:
    """Where the answer is in a text that begins and ends as other texts of the same query do.

    Templates of reasoning models write an empty `<think>` block before an answer without one. An answer that brings its
    own takes its place, and all of it is the answer.
    """
    start = len(before)
    if not whole.startswith(before):
        start = common_prefix([whole, NO_THOUGHTS.sub("", before)])
    return start, len(whole) - common_prefix([whole[start:][::-1], after[::-1]])


def fit(query: Query, fits: Callable[[Query], bool]) -> tuple[Query, int] | Failure:
    """The largest part of the query that `fits`, with each of its answers, and how many parts were cut."""
    if fits(query):
        return query, 0
    bare = replace(query, posts=(), choices=(), context=_newest_turns(query.context, 0))
    words = query.question.split()

    def without_middle(keep: int) -> Query:
        """Beginnings set the scene, ends hold the request."""
        head = (keep + 2) // 2
        return replace(bare, question=" ".join([*words[:head], "[…]", *words[len(words) + head - keep - 1 :]]))

    shorter: list[tuple[int, Callable[[int], Query]]] = [
        (len(query.posts), lambda n: replace(query, posts=query.posts[len(query.posts) - n :])),
        (len(query.choices), lambda n: replace(query, posts=(), choices=query.choices[len(query.choices) - n :])),
        (len(query.context), lambda n: replace(bare, context=_newest_turns(query.context, n))),
        (max(0, len(words) - 2), without_middle),
    ]
    cut = 0
    for most, with_newest in shorter:
        if fits(with_newest(0)):
            # bisection: 0 fits, and nothing larger than a misfit does
            keep = bisect_left(range(1, most + 1), True, key=lambda n: not fits(with_newest(n)))
            return with_newest(keep), cut + (1 if with_newest is without_middle else most - keep)
        cut += most
    return Failure("too long", "the answer alone does not fit the model")


def _newest_turns(turns: tuple[Turn, ...], n: int) -> tuple[Turn, ...]:
    """System messages stay, and a conversation begins with the user, as templates expect."""
    first = next((i for i in range(len(turns) - n, len(turns)) if turns[i].role == "user"), len(turns))
    return tuple(turn for i, turn in enumerate(turns) if i >= first or turn.role == "system")


def common_prefix(sequences: Sequence[Any]) -> int:
    """How many tokens, or characters, all of them begin with: lists, or texts."""
    first, last = min(sequences), max(sequences)
    return next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def gathered(items: Iterable[T], joins: Callable[[list[T], T], bool]) -> list[list[T]]:
    """Consecutive items in groups; `joins` says whether an item may be in the group before it."""
    groups: list[list[T]] = []
    for item in items:
        if groups and joins(groups[-1], item):
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


Compute = Callable[[Sequence[Sequence[Text]]], Sequence[Sequence[float | Failure]]]
"""Groups of texts that share a query → a number for each, or why there is none."""


class Reader(Protocol):
    """How a query and its answers become tokens."""

    def texts(self, query: Query, answers: Sequence[str]) -> Sequence[Text]: ...


class Group(NamedTuple):
    """Answers to one query as texts that fit the model."""

    positions: Sequence[int]
    """The positions of these answers among all asks."""
    texts: Sequence[Text]
    cut: int


def group_by_query(asks: Sequence[Ask], reader: Reader, limit: int) -> tuple[list[Group], dict[int, Failure]]:
    """The answers to each query, as texts of at most `limit` tokens; and, by position, why others cannot be read: they
    are empty, the template shows nothing of them, or they do not fit."""
    positions: dict[Query, list[int]] = {}
    groups, failures = [], {}
    for position, ask in enumerate(asks):
        if ask.answer.strip():
            positions.setdefault(ask.query, []).append(position)
        else:
            failures[position] = Failure("empty answer")
    for query, places in positions.items():
        texts = dict(zip(places, reader.texts(query, [asks[i].answer for i in places]), strict=True))
        for i, text in texts.items():
            if text.start >= text.end:
                failures[i] = Failure("empty answer", "the chat template shows nothing of it")
        shown = [i for i in places if i not in failures]
        if not shown:
            continue
        if all(len(texts[i].ids) <= limit for i in shown):
            groups.append(Group(shown, [texts[i] for i in shown], cut=0))
            continue
        read = lru_cache(maxsize=1)(partial(reader.texts, answers=[asks[i].answer for i in shown]))
        fitted = fit(query, lambda shorter: all(len(text.ids) <= limit for text in read(shorter)))  # noqa: B023
        if isinstance(fitted, Failure):
            failures |= dict.fromkeys(shown, fitted)
        else:
            groups.append(Group(shown, read(fitted[0]), fitted[1]))
    return groups, failures


@dataclass
class AnswerScorer:
    """A scorer made from a reader and a function of grouped texts; equal texts of a batch are scored once."""

    reader: Reader
    compute: Compute
    fingerprint: str
    limit: int
    execution: str = ""
    remote: bool = False
    """Whether texts leave the machine."""

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        groups, failures = group_by_query(asks, self.reader, self.limit)
        texts = [(n, text) for n, group in enumerate(groups) for text in group.texts]
        keys = [(text.start, text.end, *text.ids) for _, text in texts]

        def compute(texts: Sequence[tuple[int, Text]]) -> list[float | Failure]:
            """Texts of one query come next to each other, so that they share its prefix."""
            together = [[text for _, text in same] for _, same in groupby(texts, itemgetter(0))]
            return [checked_reward(value) for row in self.compute(together) for value in row]

        values = iter(Memo[float](capacity=0).map(partial(halve_if_out_of_memory, compute), texts, keys))
        results: dict[int, float | Failure] = {**failures}
        for group in groups:
            for position, text in zip(group.positions, group.texts, strict=True):
                value = next(values)
                if not isinstance(value, Failure):
                    value = Reward(value, tokens=len(text.ids), spoken=text.end - text.start, cut=group.cut)
                results[position] = value
        return [results[position] for position in range(len(asks))]
