"""The planner that asks a language model what this person would want from an answer to this question."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from prb.cache import Cache
from prb.data.retrieve import ranker, top_posts
from prb.errors import BadSpec
from prb.evaluation.planners import PLANNERS, CachedPlanner, Plan, PlanAsk, Planner
from prb.llm import LLM, Completion, Sampling, make_llm
from prb.llm.asking import ask, without_reasoning
from prb.prompts import load, quote, with_material
from prb.types import Failure

MOST = 8
REMINDER = "Your whole reply must be a numbered list, one short sentence a line: no heading, no introduction."
_ITEM = re.compile(r"^([ \t]*)(?:[0-9]{1,2}[.)]|[-*•–])[ \t]+(\S.*)", re.MULTILINE)
_MARKUP = re.compile(r"\*\*|__|`")


@PLANNERS.register("llm")
def llm(llm: str, aspects: int = 4, posts: int = 20, max_tokens: int = 1024) -> Planner:
    """A language model infers, from the posts nearest the question, what this person would want of an answer."""
    if not 1 <= aspects <= MOST or posts < 1 or max_tokens < 1:
        raise BadSpec(f"planner 'llm': aspects is 1 to {MOST}, posts and max_tokens are 1 or more")
    return by_llm(make_llm(llm), aspects=aspects, posts=posts, max_tokens=max_tokens, cache=Cache())


def by_llm(
    model: LLM, *, aspects: int = 4, posts: int = 20, max_tokens: int = 1024, cache: Cache | None = None
) -> CachedPlanner:
    settings = (load("material"), load("plan_aspects"), REMINDER, aspects, posts, max_tokens)
    return CachedPlanner(
        Aspects(model, aspects, posts, Sampling(max_tokens=max_tokens)),
        lambda wanted: [wanted.question, *(post.text for post in wanted.posts)],
        fingerprint=f"llm-{brief(settings)}-{model.fingerprint}",
        remote=model.remote,
        cache=cache,
    )


class Aspects:
    """One call a question and person. Of somebody without posts nothing can be inferred, so nothing is asked."""

    def __init__(self, model: LLM, aspects: int, posts: int, sampling: Sampling) -> None:
        self._model, self._aspects, self._posts, self._sampling = model, aspects, posts, sampling
        self._rank = ranker("embedding")

    def __call__(self, asks: Sequence[PlanAsk]) -> list[Plan | Failure]:
        known = [n for n, wanted in enumerate(asks) if wanted.posts]
        prompts = [self._prompt(asks[n]) for n in known]
        missing = "no list of aspects"
        replies = ask(self._model, prompts, self._read, sampling=self._sampling, reminder=REMINDER, missing=missing)
        plans: list[Plan | Failure] = [()] * len(asks)
        for n, reply in zip(known, replies, strict=True):
            plans[n] = reply if isinstance(reply, Failure) else reply.value
        return plans

    def _prompt(self, wanted: PlanAsk) -> str:
        shown = top_posts(wanted.question, wanted.posts, self._rank, k=self._posts).posts
        return with_material(
            load("plan_aspects"),
            posts=quote("earlier posts of this person, oldest first", "\n\n".join(post.text for post in shown)),
            question=quote("question", wanted.question),
            count="one point" if self._aspects == 1 else f"{self._aspects} points",
        )

    def _read(self, said: Completion) -> Plan | None:
        found = [] if said.truncated else entries(said.text)
        return tuple(found[: self._aspects]) if 1 <= len(found) <= MOST else None


def entries(text: str) -> list[str]:
    """Of a numbered or bulleted list, without markup and repetitions; what is indented deeper belongs to its parent."""
    found = list(_ITEM.finditer(without_reasoning(text)))
    outer = [_MARKUP.sub("", item[2]).strip() for item in found if len(item[1]) <= len(found[0][1])]
    return list(dict.fromkeys(filter(None, outer)))


def brief(settings: object) -> str:
    """A short digest of what a planner's words depend on."""
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
