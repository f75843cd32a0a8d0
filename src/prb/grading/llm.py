"""A language model that grades: all aspects in one call, or one aspect a call with the narrative and its evidence.

The first is the way of Personalized RewardBench (arXiv 2604.07343), the second that of LaMP-QA (arXiv 2506.00137);
the wording is ours. Only the reply is read, and every text by others is quoted, so an answer cannot grade itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

from prb.cache import Cache
from prb.errors import BadSpec
from prb.grading import GRADERS, Answered, Grader, Grades, ungradable
from prb.grading.parse import read_all, read_one
from prb.llm import LLM, Sampling, make_llm
from prb.llm.asking import Reply, ask
from prb.prompts import load, quote, with_material
from prb.types import Aspect, Failure

Way = Literal["all", "each"]
Read = tuple[int, ...]

GREEDY = Sampling(max_tokens=1024)
REMINDERS: dict[Way, str] = {
    "all": 'Your whole reply must be a JSON list, for each aspect {"aspect": number, "why": text, "grade": 0, 1 or 2}.',
    "each": 'Your whole reply must be one JSON object: {"why": text, "grade": 0, 1 or 2}.',
}


class Call(NamedTuple):
    prompt: str
    aspects: tuple[str, ...]
    """Whose grades it asks for."""


class LLMGrader:
    """Asks all calls of a batch together; what could be read is kept in the cache, failures never are."""

    def __init__(self, llm: LLM, way: Way = "all", *, cache: Cache | None = None, sampling: Sampling = GREEDY) -> None:
        self._llm, self._way, self._cache, self._sampling = llm, way, cache, sampling
        self.remote = llm.remote
        settings = (load(f"grade_{way}"), load("material"), REMINDERS[way], sampling)
        self.fingerprint = f"grade-{way}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:12]}-{llm.fingerprint}"

    def reseeded(self, seed: int) -> LLMGrader:
        """The same judge under another seed; what it said under this one is no answer to that."""
        sampling = replace(self._sampling, seed=self._sampling.seed + seed)
        return LLMGrader(self._llm, self._way, cache=self._cache, sampling=sampling)

    def grade(self, answers: Sequence[Answered]) -> list[Grades | Failure]:
        make = _one_call if self._way == "all" else _call_an_aspect
        calls = [ungradable(answered) or make(answered) for answered in answers]
        replies = self._replies(dict.fromkeys(call for own in calls if not isinstance(own, Failure) for call in own))
        return [own if isinstance(own, Failure) else _grades([replies[call] for call in own]) for own in calls]

    def _replies(self, calls: Iterable[Call]) -> dict[Call, Reply[Read] | Failure]:
        keys = {call: self._key(call.prompt) for call in calls}
        kept = self._cache.get(list(keys.values())) if self._cache else {}
        known = {call: _from_cache(kept[key]) for call, key in keys.items() if key in kept}
        missing = [call for call in keys if call not in known]
        fresh = self._ask(missing) if missing else {}
        sound = {keys[call]: _to_cache(reply) for call, reply in fresh.items() if isinstance(reply, Reply)}
        if self._cache and sound:
            self._cache.put(self.fingerprint, sound)
        return {**known, **fresh}

    def _ask(self, calls: Sequence[Call]) -> dict[Call, Reply[Read] | Failure]:
        said = ask(
            self._llm,
            [call.prompt for call in calls],
            [read_one if self._way == "each" else partial(read_all, aspects=call.aspects) for call in calls],
            sampling=self._sampling,
            reminder=REMINDERS[self._way],
            missing="no grades",
        )
        return dict(zip(calls, said, strict=True))

    def _key(self, prompt: str) -> bytes:
        text = f"{self.fingerprint}\0{prompt}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=20).digest()


def _one_call(answered: Answered) -> list[Call]:
    numbered = enumerate(answered.rubric, 1)
    aspects = [quote(f"aspect {n}", _lines(aspect.aspect, aspect.reason)) for n, aspect in numbered]
    prompt = with_material(
        load("grade_all"),
        count="one aspect" if len(aspects) == 1 else f"{len(aspects)} aspects",
        question=quote("question", answered.question),
        aspects="\n\n".join(aspects),
        answer=quote("answer", answered.answer),
    )
    return [Call(prompt, tuple(aspect.aspect for aspect in answered.rubric))]


def _call_an_aspect(answered: Answered) -> list[Call]:
    template = load("grade_each")
    if not answered.narrative.strip():
        template = re.sub(r"\{narrative\}\s*", "", template)
    material = {
        "question": quote("question", answered.question),
        "narrative": quote("what this person said in private", answered.narrative),
        "answer": quote("answer", answered.answer),
    }
    aspects = [(aspect.aspect, quote("aspect", _explained(aspect))) for aspect in answered.rubric]
    return [Call(with_material(template, **material, aspect=text), (name,)) for name, text in aspects]


def _explained(aspect: Aspect) -> str:
    evidence = aspect.evidence and f"In their own words: {aspect.evidence}"
    return _lines(aspect.aspect, aspect.reason, evidence)


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part.strip())


def _grades(replies: Sequence[Reply[Read] | Failure]) -> Grades | Failure:
    """One that is missing makes the whole answer a failure: a mean over the others would be another rubric's."""
    read = [reply for reply in replies if isinstance(reply, Reply)]
    failed = [reply for reply in replies if isinstance(reply, Failure)]
    if failed:  # what was charged for the other aspects was charged
        return replace(
            failed[0],
            prompt_tokens=sum(f.prompt_tokens for f in failed) + sum(reply.tokens for reply in read),
            completion_tokens=sum(f.completion_tokens for f in failed),
            cost=sum(reply.cost for reply in replies),
        )
    return Grades(
        aspects=tuple([float(grade) for reply in read for grade in reply.value]),
        tokens=sum(reply.tokens for reply in read),
        cost=sum(reply.cost for reply in read),
        text=tuple([reply.text for reply in read]),
    )


def _to_cache(reply: Reply[Read]) -> dict[str, Any]:
    return {"grades": reply.value, "text": reply.text, "tokens": reply.tokens, "cost": reply.cost}


def _from_cache(kept: dict[str, Any]) -> Reply[Read]:
    """With what it took when it was said, so that a run that was interrupted books the same as one that was not."""
    return Reply(tuple(kept["grades"]), kept["text"], kept["tokens"], kept["cost"])


@GRADERS.register("llm")
def llm(llm: str, way: Way = "all", max_tokens: int = 1024, temperature: float = 0.0, seed: int = 0) -> Grader:
    """A language model grades each aspect 0, 1 or 2: way=all in one call, way=each one aspect a call."""
    if max_tokens < 1 or temperature < 0:
        raise BadSpec(f"max_tokens={max_tokens}, temperature={temperature}: wants 1 or more, 0 or more")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    return LLMGrader(make_llm(llm), way, cache=Cache(), sampling=sampling)
