"""Planners that ask an LLM what this user would want from an answer to this question: as aspects, or as a checklist."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from prb.cache import Cache
from prb.config import Count
from prb.data.retrieve import ranker, top_choices, top_posts
from prb.evaluation.planners import PLANNERS, CachedPlanner, Plan, Planner
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import ask
from prb.llm.thinking import without_thinking
from prb.prompts import choice_text, load, quoted_history, quoted_question, with_material
from prb.types import Failure, Query

MOST = 8
Most = Annotated[int, Field(ge=1, le=MOST)]
REMINDER = "Your whole reply must be a numbered list, one short sentence per line: no heading, no introduction."
_ITEM = re.compile(r"^([ \t]*)(?:[0-9]{1,2}[.)]|[-*•–])[ \t]+(\S.*)", re.MULTILINE)
_MARKUP = re.compile(r"\*\*|__|`")


@PLANNERS.register("llm")
def llm(llm: str, aspects: Most = 4, posts: Count = 20, max_tokens: Count = 1024) -> Planner:
    """An LLM infers what this user would want, from the posts and choices nearest to the question."""
    return by_llm(make_llm(llm), aspects=aspects, posts=posts, max_tokens=max_tokens, cache=Cache())


@PLANNERS.register("checklist")
def checklist(llm: str, items: Most = 6, posts: Count = 20, max_tokens: Count = 1024) -> Planner:
    """An LLM writes a checklist of yes-or-no questions for this user; `judge?style=checklist` checks each item."""
    model = make_llm(llm)
    return by_llm(model, aspects=items, posts=posts, max_tokens=max_tokens, cache=Cache(), prompt="plan_checklist")


def by_llm(
    model: LLM,
    *,
    aspects: int = 4,
    posts: int = 20,
    max_tokens: int = 1024,
    cache: Cache | None = None,
    prompt: str = "plan_aspects",
) -> CachedPlanner:
    settings = (load("material"), load(prompt), REMINDER, aspects, posts, max_tokens)
    return CachedPlanner(
        Aspects(model, prompt, aspects, posts, Sampling(max_tokens=max_tokens)),
        lambda query: [
            *(turn.text for turn in query.context),
            query.question,
            *(post.text for post in query.posts),
            *map(choice_text, query.choices),
        ],
        fingerprint=f"llm-{brief(settings)}-{model.fingerprint}",
        remote=model.remote,
        cache=cache,
    )


class Aspects:
    """One call per question and user. Nothing can be inferred about a user without a history, so nothing is asked."""

    def __init__(self, model: LLM, prompt: str, aspects: int, posts: int, sampling: Sampling) -> None:
        self._model, self._template = model, load(prompt)
        self._aspects, self._posts, self._sampling = aspects, posts, sampling
        self._rank = ranker("embedding")

    def __call__(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        known = [n for n, query in enumerate(queries) if query.posts or query.choices]
        prompts = [self._prompt(queries[n]) for n in known]
        missing = "no list of aspects"
        replies = ask(self._model, prompts, self._read, sampling=self._sampling, reminder=REMINDER, missing=missing)
        plans: list[Plan | Failure] = [()] * len(queries)
        for n, reply in zip(known, replies, strict=True):
            plans[n] = reply if isinstance(reply, Failure) else reply.value
        return plans

    def _prompt(self, query: Query) -> str:
        shown = top_posts(query.question, query.posts, self._rank, k=self._posts).posts
        nearest = top_choices(query.question, (), query.choices, self._rank, k=self._posts).positions
        return with_material(
            self._template,
            posts=quoted_history(shown, [query.choices[n] for n in nearest]),
            question=quoted_question(query),
            count="one point" if self._aspects == 1 else f"{self._aspects} points",
        )

    def _read(self, reply: Completion) -> Plan | None:
        aspects = [] if reply.truncated else entries(reply.text)
        return tuple(aspects[: self._aspects]) if 1 <= len(aspects) <= MOST else None


def entries(text: str) -> list[str]:
    """Of a numbered or bulleted list, without markup and repetitions; what is indented deeper belongs to its parent."""
    items = list(_ITEM.finditer(without_thinking(text)))
    outer = [_MARKUP.sub("", item[2]).strip() for item in items if len(item[1]) <= len(items[0][1])]
    return list(dict.fromkeys(filter(None, outer)))


def brief(settings: object) -> str:
    """A short digest of what a planner's output depends on."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
