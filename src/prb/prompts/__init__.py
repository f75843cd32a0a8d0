"""Prompts are text files in this folder; filling one is a single pass."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import count
from typing import Literal

from prb.types import Choice, Post, Query, Turn

PolicyPrompt = Literal["prb", "paper"]
BLANK_LINE = "\n\n"
_SLOT = re.compile(r"\{(\w+)\}")


def fill(template: str, **fields: str) -> str:
    """Replace each `{name}` once, so text inside an answer is never read as a placeholder."""
    return _SLOT.sub(lambda slot: fields[slot[1]], template)


def slots(template: str) -> set[str]:
    return set(_SLOT.findall(template))


def quote(name: str, text: str) -> str:
    """The text between two lines with a code derived from it, so that nothing in it can imitate its end.

    The code depends on nothing else, so equal beginnings of prompts stay equal and servers can reuse them.
    """
    for salt in count():
        code = hashlib.blake2b(f"{salt}:{text}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        if code not in text:
            return f"<<{name} {code}>>\n{text}\n<<end of {name} {code}>>"
    raise AssertionError


def with_material(template: str, **fields: str) -> str:
    """A prompt with quoted texts: first how to treat them, then the filled template."""
    return f"{load('material').strip()}\n\n{fill(template.strip(), **fields)}"


@cache
def load(name: str) -> str:
    return (files(__name__) / f"{name}.txt").read_text("utf-8")


def render(query: Query) -> str:
    """The user's message as an LLM reads it: the question, after what is known of the user; no trace of what is not.

    The turns before it are messages of their own; see `chat`.
    """
    if not query.about_user:
        return query.question  # the user's bare message, as reward models were trained on it and others score it
    parts = []
    if query.posts:
        parts.append(fill(load("posts"), posts=BLANK_LINE.join(post.text for post in query.posts)))
    if query.choices:
        parts.append(fill(load("choices"), choices=BLANK_LINE.join(map(choice_text, query.choices))))
    if query.plan:
        parts.append(fill(load("plan"), aspects="\n".join(f"- {aspect}" for aspect in query.plan)))
    parts.append(fill(load("question"), question=query.question))
    return BLANK_LINE.join(part.strip() for part in parts)


def chat(query: Query) -> list[Turn]:
    """The conversation up to the answer: earlier turns, then the user's message."""
    return [*query.context, Turn("user", render(query))]


def policy_chat(query: Query, style: PolicyPrompt = "prb") -> tuple[Turn, ...]:
    """The conversation that a policy answers: as reward models read it, or laid out as in the paper."""
    if style == "prb":
        return tuple(chat(query))
    posts = "\n".join(f"Post {n} (Category: {post.category}):\n{post.text}" for n, post in enumerate(query.posts, 1))
    message = fill(load("policy_paper").strip(), question=query.question, profile=posts)
    return Turn("system", load("policy_paper_system").strip()), *query.context, Turn("user", message)


def flat(query: Query) -> str:
    """The conversation as one text, for models that read no turns."""
    if not query.context:
        return render(query)
    return BLANK_LINE.join(f"{turn.role.capitalize()}: {turn.text}" for turn in chat(query))


def choice_text(choice: Choice) -> str:
    return f"Question: {choice.question}\nPreferred: {choice.chosen}\nRejected: {choice.rejected}"


def quoted_history(posts: Sequence[Post], choices: Sequence[Choice]) -> str:
    """What is known of the user as quoted material; empty if nothing is."""
    blocks = []
    if posts:
        blocks.append(quote("earlier posts of this person, oldest first", BLANK_LINE.join(post.text for post in posts)))
    if choices:
        texts = BLANK_LINE.join(map(choice_text, choices))
        blocks.append(quote("what this person preferred earlier, oldest first", texts))
    return BLANK_LINE.join(blocks)


def quoted_question(query: Query) -> str:
    """The question as quoted material, after the turns that led to it."""
    question = quote("question", query.question)
    if not query.context:
        return question
    turns = BLANK_LINE.join(f"{turn.role}: {turn.text}" for turn in query.context)
    return BLANK_LINE.join([quote("the conversation before the question", turns), question])
