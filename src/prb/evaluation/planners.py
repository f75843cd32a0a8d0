"""Planners infer what a user wants an answer to contain, given question and history.

`extractive` quotes the user. The others ask an LLM, for aspects or for a checklist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from prb.config import Count
from prb.data.retrieve import RANKERS, top_choices, top_posts
from prb.hashing import settings_digest
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import ask, without_thinking
from prb.prompts import choice_text, load, quoted_history, quoted_question, with_material
from prb.registry import Registry
from prb.text.encoders import ENCODERS
from prb.text.words import sentences
from prb.types import Failure, Query, is_remote
from prb.work import Breaker, Call, CalledModel, Replies, ask_missing, call_key, query_parts

Plan = tuple[str, ...]


class Planner(Protocol):
    """Planners that send texts to another machine have `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, query: Query) -> Plan | Failure:
        """`query` holds the whole history, not only what a reward model would be shown of it."""
        ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluation.planners", group="prb.planners")


def infer_plans(
    planner: Planner, queries: Sequence[Query], replies: Replies | None = None, breaker: Breaker | None = None
) -> list[Plan | Failure]:
    """One plan per query; with `replies`, only what has none yet is asked for. LLMs are asked for all at once."""
    if replies is None:
        return planner.plans(queries) if isinstance(planner, LLMPlanner) else [planner.plan(query) for query in queries]
    answer, remote = partial(infer_plans, planner), is_remote(planner)
    called = CalledModel("planner", answer, planner.fingerprint, remote, method="plan")
    start, content = called.key_start(), planner.content if isinstance(planner, LLMPlanner) else query_parts
    calls = [Call(call_key(start, *content(query)), query) for query in queries]
    list(ask_missing([((), calls)], replies, called, breaker or Breaker()))
    inferred = [replies[call.key] for call in calls]
    return [reply.as_failure or tuple(map(str, reply.value or ())) for reply in inferred]  # type: ignore[arg-type]


TASTE = re.compile(
    r"\b(i (?:really |always |never |would rather |just |don't |can't |won't )*"
    r"(?:prefer|like|love|hate|want|need|enjoy|dislike|trust|avoid|loathe|learn best|work best)"
    r"|i'd rather|i can't stand|what i (?:want|need)|give me|spare me|drives me|makes me|for me|never again|no more)\b",
    re.IGNORECASE,
)


class Extractive:
    def __init__(self, aspects: int, encoder: str) -> None:
        self._aspects = aspects
        self._encoder = ENCODERS.make(encoder)
        self.fingerprint = f"extractive-{aspects}-{self._encoder.fingerprint}"

    def plan(self, query: Query) -> tuple[str, ...]:
        written = [s for post in query.posts for s in sentences(post.text) if not s.endswith("?")]
        preferred = [s for choice in query.choices for s in sentences(choice.chosen)]
        quotes = written + preferred
        if not quotes:
            return ()
        rows = self._encoder.encode([query.question, *quotes])
        taste = np.array([bool(TASTE.search(s)) for s in written] + [False] * len(preferred))
        near = rows[1:] @ rows[0] + taste
        return tuple(quotes[i] for i in np.argsort(-near, kind="stable")[: self._aspects])


@PLANNERS.register("extractive")
def extractive(aspects: Count = 3, encoder: str = "static") -> Planner:
    """Sentences on the user's own taste, or of answers they preferred; those near the question first."""
    return Extractive(aspects, encoder)


# --- planners that ask an LLM ---
MOST = 8
Most = Annotated[int, Field(ge=1, le=MOST)]
REMINDER = "Your whole reply must be a numbered list, one short sentence per line: no heading, no introduction."
_ITEM = re.compile(r"^([ \t]*)(?:[0-9]{1,2}[.)]|[-*•–])[ \t]+(\S.*)", re.MULTILINE)
_MARKUP = re.compile(r"\*\*|__|`")


@PLANNERS.register("llm")
def llm(llm: str, aspects: Most = 4, posts: Count = 20, max_tokens: Count = 1024) -> Planner:
    """An LLM infers what this user would want, from the posts and choices nearest to the question."""
    return LLMPlanner(make_llm(llm), aspects, posts, max_tokens)


@PLANNERS.register("checklist")
def checklist(llm: str, items: Most = 6, posts: Count = 20, max_tokens: Count = 1024) -> Planner:
    """An LLM writes a checklist of yes-or-no questions for this user; `judge?style=checklist` checks each item."""
    return LLMPlanner(make_llm(llm), items, posts, max_tokens, prompt="plan_checklist")


class LLMPlanner:
    """One call per question and user. Nothing can be inferred about a user without a history, so nothing is asked."""

    def __init__(
        self, model: LLM, aspects: int = 4, posts: int = 20, max_tokens: int = 1024, prompt: str = "plan_aspects"
    ) -> None:
        self._model, self._sampling, self.remote = model, Sampling(max_tokens=max_tokens), model.remote
        self._template, self._aspects, self._posts = load(prompt), aspects, posts
        settings = (load("material"), self._template, REMINDER, aspects, posts, max_tokens)
        self.fingerprint = f"llm-{settings_digest(settings)}-{model.fingerprint}"

    def plan(self, query: Query) -> Plan | Failure:
        return self.plans([query])[0]

    def plans(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        """For many users at once; queries of the same content have the same plan."""
        contents = [tuple(self.content(query)) for query in queries]
        distinct = dict(zip(reversed(contents), reversed(queries), strict=True))
        known = {content: query for content, query in distinct.items() if query.posts or query.choices}
        prompts, rank, most = [], RANKERS["embedding"], self._posts
        for query in known.values():
            nearest = top_choices(query.question, (), query.choices, rank, k=most).positions
            prompts.append(
                with_material(
                    self._template,
                    posts=quoted_history(
                        top_posts(query.question, query.posts, rank, k=most).posts,
                        [query.choices[n] for n in nearest],
                    ),
                    question=quoted_question(query),
                    count="one point" if self._aspects == 1 else f"{self._aspects} points",
                )
            )

        def read(reply: Completion) -> Plan | None:
            aspects = [] if reply.truncated else entries(reply.text)
            return tuple(aspects[: self._aspects]) if 1 <= len(aspects) <= MOST else None

        missing = "no list of aspects"
        replies = ask(self._model, prompts, read, sampling=self._sampling, reminder=REMINDER, missing=missing)
        inferred = dict(zip(known, replies, strict=True))
        plans = [inferred.get(content) for content in contents]
        return [() if plan is None else plan if isinstance(plan, Failure) else plan.value for plan in plans]

    def content(self, query: Query) -> Sequence[str]:
        """All that the plan depends on."""
        posts, choices = [post.text for post in query.posts], map(choice_text, query.choices)
        return [*(turn.text for turn in query.context), query.question, *posts, *choices]


def entries(text: str) -> list[str]:
    """Of a numbered or bulleted list, without markup and repetitions; what is indented deeper belongs to its parent."""
    items = list(_ITEM.finditer(without_thinking(text)))
    outer = [_MARKUP.sub("", item[2]).strip() for item in items if len(item[1]) <= len(items[0][1])]
    return list(dict.fromkeys(filter(None, outer)))
