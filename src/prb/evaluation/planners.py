"""Planners infer what a user probably wants from an answer, given question and history.

`extractive` quotes the user. The others ask an LLM: for aspects, for a checklist, or for a persona that it tests.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from prb.config import Count
from prb.data.retrieve import RANKERS, top_choices, top_posts
from prb.hashing import settings_digest
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import Reader, T, ask, without_thinking
from prb.prompts import choice_text, load, quote, quoted_history, quoted_question, with_material
from prb.registry import Registry
from prb.text.encoders import ENCODERS
from prb.text.words import sentences
from prb.types import Failure, Query, is_remote
from prb.work import Asked, Breaker, Call, Replies, ask_all, call_key, key_start, query_parts

Plan = tuple[str, ...]


class Planner(Protocol):
    """Planners that send texts to another machine have `remote = True`. None of them ever sees a rubric."""

    fingerprint: str

    def plan(self, query: Query) -> Plan | Failure:
        """`query` holds the whole history, not only what a reward model would be shown of it."""
        ...


PLANNERS: Registry[Planner] = Registry("planner", package="prb.evaluation.planners", group="prb.planners")


class LLMPlanner(ABC):
    """A planner that asks an LLM about many users at once; queries of the same content have the same plan."""

    def __init__(self, model: LLM, kind: str, settings: Sequence[object], max_tokens: int) -> None:
        self._model, self._sampling, self.remote = model, Sampling(max_tokens=max_tokens), model.remote
        self.fingerprint = f"{kind}-{settings_digest((*settings, max_tokens))}-{model.fingerprint}"

    def plan(self, query: Query) -> Plan | Failure:
        return self.plans([query])[0]

    def plans(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        contents = [tuple(self.content(query)) for query in queries]
        distinct = dict(zip(reversed(contents), reversed(queries), strict=True))
        inferred = dict(zip(distinct, self._infer(list(distinct.values())), strict=True))
        return [inferred[content] for content in contents]

    @abstractmethod
    def content(self, query: Query) -> Sequence[str]:
        """All that the plan depends on."""

    @abstractmethod
    def _infer(self, queries: Sequence[Query]) -> Sequence[Plan | Failure]: ...

    def _ask(self, prompts: Sequence[str], read: Reader[T], reminder: str, missing: str) -> list[T | Failure]:
        replies = ask(self._model, prompts, read, sampling=self._sampling, reminder=reminder, missing=missing)
        return [reply if isinstance(reply, Failure) else reply.value for reply in replies]


def plan_all(planner: Planner, queries: Sequence[Query]) -> list[Plan | Failure]:
    """One plan per query; planners that can infer many at once get all of them together."""
    if isinstance(planner, LLMPlanner):
        return planner.plans(queries)
    return [planner.plan(query) for query in queries]


def infer_plans(
    planner: Planner, queries: Sequence[Query], replies: Replies, breaker: Breaker | None
) -> list[Plan | Failure]:
    """The same, asking only for what has no reply yet."""
    start = key_start(planner.fingerprint, "plan")
    content = planner.content if isinstance(planner, LLMPlanner) else query_parts
    calls = [Call(call_key(start, *content(query)), query) for query in queries]
    asked = Asked("planner", partial(plan_all, planner), planner.fingerprint, is_remote(planner))
    inferred = ask_all(calls, replies, asked, breaker or Breaker())
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
    return Aspects(make_llm(llm), aspects, posts, max_tokens)


@PLANNERS.register("checklist")
def checklist(llm: str, items: Most = 6, posts: Count = 20, max_tokens: Count = 1024) -> Planner:
    """An LLM writes a checklist of yes-or-no questions for this user; `judge?style=checklist` checks each item."""
    return Aspects(make_llm(llm), items, posts, max_tokens, prompt="plan_checklist")


class Aspects(LLMPlanner):
    """One call per question and user. Nothing can be inferred about a user without a history, so nothing is asked."""

    def __init__(
        self, model: LLM, aspects: int = 4, posts: int = 20, max_tokens: int = 1024, prompt: str = "plan_aspects"
    ) -> None:
        self._template, self._aspects, self._posts = load(prompt), aspects, posts
        self._rank = RANKERS["embedding"]
        super().__init__(model, "llm", (load("material"), self._template, REMINDER, aspects, posts), max_tokens)

    def content(self, query: Query) -> Sequence[str]:
        posts, choices = [post.text for post in query.posts], map(choice_text, query.choices)
        return [*(turn.text for turn in query.context), query.question, *posts, *choices]

    def _infer(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        known = [n for n, query in enumerate(queries) if query.posts or query.choices]
        replies = self._ask([self._prompt(queries[n]) for n in known], self._read, REMINDER, "no list of aspects")
        plans: list[Plan | Failure] = [()] * len(queries)
        for n, plan in zip(known, replies, strict=True):
            plans[n] = plan
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


Finding = Literal["consistent", "refuted", "silent"]
HELD_OUT = 3
"""Every third post is kept for the test."""
PROMPTS = ("material", "persona_hypotheses", "persona_verify", "persona_write")
REMIND_LIST = "Your whole reply must be a numbered list; every line ends with its posts, like [posts 2, 5]."
REMIND_FINDING = "Your reply must finish with one line: Finding: consistent, Finding: refuted or Finding: silent."
REMIND_PERSONA = 'Your reply must begin with the word "Persona:" and hold at most five sentences.'
_CITED = re.compile(
    r"\s*(?:\[\s*(?:posts?[\s:#]*)?|\(\s*posts?[\s:#]*)([0-9][0-9,;&\s–-]*(?:and\s*[0-9]+\s*)?)[\])][\s.]*$",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\bfinding\b[\s*_`\"']*:[\s*_`\"']*(consistent|refuted|silent)\b(?!\s*(?:or\b|[,/|]))", re.IGNORECASE
)
_PERSONA = re.compile(r"\bpersona\b[*_]*\s*:[*_]*\s*(\S.*)", re.IGNORECASE | re.DOTALL)


@PLANNERS.register("persona")
def persona(llm: str, hypotheses: Most = 6, posts: Count = 40, max_tokens: Count = 1024) -> Planner:
    """An LLM forms hypotheses about the user, tests them on held-out posts and choices, and writes a short persona."""
    return Personas(make_llm(llm), hypotheses, posts, max_tokens)


class Hypothesis(NamedTuple):
    text: str
    posts: tuple[int, ...]


class Personas(LLMPlanner):
    """Three rounds of calls for all users at once: hypotheses, tests, personas. A user who fails in one leaves it."""

    def __init__(self, model: LLM, hypotheses: int = 6, posts: int = 40, max_tokens: int = 1024) -> None:
        self._hypotheses, self._posts = hypotheses, posts
        reminders, words = (REMIND_LIST, REMIND_FINDING, REMIND_PERSONA), [load(name) for name in PROMPTS]
        super().__init__(model, "persona", (words, *reminders, HELD_OUT, hypotheses, posts), max_tokens)

    def content(self, query: Query) -> list[str]:
        """The user's past choices and posts, each as a text that can be cited."""
        return [*map(choice_text, query.choices), *(post.text for post in query.posts)]

    def _infer(self, queries: Sequence[Query]) -> list[Plan | Failure]:
        items = {n: self.content(query)[-self._posts :] for n, query in enumerate(queries)}
        plans: dict[int, Plan | Failure] = {n: () for n in items if not items[n]}
        held_out = {n: texts[HELD_OUT - 1 :: HELD_OUT] for n, texts in items.items() if texts}
        seen = {n: [text for k, text in enumerate(items[n], 1) if k % HELD_OUT] for n in held_out}

        # hypotheses that cite existing posts; without evidence a hypothesis does not count
        quoted = ["\n\n".join(quote(f"post {k}", post) for k, post in enumerate(posts, 1)) for posts in seen.values()]
        count = str(self._hypotheses)
        prompts = [with_material(load("persona_hypotheses"), posts=posts, count=count) for posts in quoted]
        replies = self._ask(prompts, lambda reply: read_hypotheses(reply) or None, REMIND_LIST, "no hypotheses")
        kept: dict[int, list[Hypothesis]] = {}
        for (n, posts), reply in zip(seen.items(), replies, strict=True):
            if isinstance(reply, Failure):
                plans[n] = reply
                continue
            kept[n] = [h for h in reply if all(1 <= k <= len(posts) for k in h.posts)][: self._hypotheses]
            if not kept[n]:
                plans[n] = Failure("no hypotheses", "they rest on posts that do not exist")

        # those that the held-out posts do not refute; with no post held out, all
        tests = [(n, h) for n, hypotheses in kept.items() if held_out[n] for h in hypotheses]
        prompts = [
            with_material(
                load("persona_verify"),
                hypothesis=quote("hypothesis", hypothesis.text),
                posts=quote("posts of this person", "\n\n".join(held_out[n])),
            )
            for n, hypothesis in tests
        ]
        findings = self._ask(prompts, read_finding, REMIND_FINDING, "no finding on a hypothesis")
        for (n, hypothesis), finding in zip(tests, findings, strict=True):
            if isinstance(finding, Failure):
                plans.setdefault(n, finding)
            elif finding == "refuted":
                kept[n].remove(hypothesis)

        plans |= {n: () for n, hypotheses in kept.items() if n not in plans and not hypotheses}
        points = {n: "\n".join(f"- {h.text}" for h in kept[n]) for n in kept if n not in plans}
        prompts = [with_material(load("persona_write"), findings=quote("points", text)) for text in points.values()]
        plans |= zip(points, self._ask(prompts, read_persona, REMIND_PERSONA, "no persona"), strict=True)
        return [plans[n] for n in range(len(queries))]


def read_hypotheses(reply: Completion) -> list[Hypothesis]:
    hypotheses = []
    for entry in [] if reply.truncated else entries(reply.text):
        cited = _CITED.search(entry)
        if cited:
            numbers = tuple(int(number) for number in re.findall(r"[0-9]{1,6}", cited[1]))
            hypotheses.append(Hypothesis(entry[: cited.start()].strip(), numbers))
    return [hypothesis for hypothesis in hypotheses if hypothesis.text]


def read_finding(reply: Completion) -> Finding | None:
    findings: list[Finding] = [] if reply.truncated else _FINDING.findall(without_thinking(reply.text).lower())
    return findings[-1] if findings else None


def read_persona(reply: Completion) -> Plan | None:
    match = None if reply.truncated else _PERSONA.search(without_thinking(reply.text))
    return (" ".join(match[1].split()),) if match else None
