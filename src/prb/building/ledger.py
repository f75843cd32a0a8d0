"""What a build costs: the estimate before it begins, and the calls of its stages, each made once.

A build is a function of its input and of the models' replies. One that was stopped, by Ctrl-C, a crash, an endpoint or
the budget, runs again from the beginning and finds its replies until it gets to where it was stopped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, get_args

from prb.building.config import PROMPTS, ROLES, STAGES, BuildConfig, Role, Stage
from prb.building.records import UserRecord
from prb.building.stages import propose_couples
from prb.errors import BadInput, BudgetUsedUp
from prb.failures import RESUME, Breaker
from prb.llm import LLM, Completion, Request, make_llm, parse_llm, request_key
from prb.llm.endpoint import Prices, tokens_of
from prb.progress import SILENT, Progress
from prb.prompts import load
from prb.text.encoders import ENCODERS
from prb.types import Failure
from prb.work import Asked, Call, Replies, ask_missing

MAX_TRANSIENT = 8
"""Failures of the endpoint without a reply in between that stop the build: continuing would only produce rejects."""
BYTES_PER_TOKEN = 3
"""Tokens rarely have fewer bytes, in any script; used for an upper bound of the tokens of a prompt."""


@dataclass(kw_only=True)
class Usage:
    """What the calls of one stage took."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0


class Ledger:
    """Sends the requests that have no reply yet, in batches that fit the budget, and counts what all of them took."""

    def __init__(
        self,
        replies: Replies,
        *,
        max_usd: float | None = None,
        max_tokens: int | None = None,
        batch: int = 64,
        given: bool = False,
        breaker: Breaker | None = None,
        progress: Progress = SILENT,
    ) -> None:
        """`given`: whether the LLMs are objects of the caller's."""
        self._replies, self._batch, self._given, self._progress = replies, batch, given, progress
        self._max_usd, self._max_tokens = max_usd, max_tokens
        self._breaker = breaker or Breaker()
        self._counted: set[bytes] = set()
        self.asked = 0
        """Requests so far, whoever answered them."""
        self.failures: Counter[str] = Counter()
        """Of these, the failed ones by reason."""
        self.usage: dict[Stage, Usage] = defaultdict(Usage)

    @property
    def usd(self) -> float:
        return sum(usage.usd for usage in self.usage.values())

    @property
    def tokens(self) -> int:
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in self.usage.values())

    def complete(self, llm: LedgerLLM, requests: Sequence[Request]) -> list[Completion | Failure]:
        asked = Asked.of(llm.stage, llm.inner, "complete", given=self._given)
        start = asked.key_start()
        calls = [Call(request_key(start, request), request) for request in requests]
        batches = [calls[n : n + self._batch] for n in range(0, len(calls), self._batch)]

        def afford(owed: Sequence[Call]) -> int:
            waiting = {call.key for call in owed}
            for call in calls:  # what was answered a moment ago has been spent
                if call.key in self._replies and call.key not in waiting:
                    self._count(llm.stage, call.key)
            return self._affordable(llm, [call.ask for call in owed])

        self._progress.begin(llm.stage, total=len(calls))
        plan = ((batch, batch) for batch in batches)
        limits: dict[str, Any] = {"afford": afford, "max_transient": MAX_TRANSIENT}
        for batch in ask_missing(plan, self._replies, asked, self._breaker, **limits):
            for call in batch:
                self._count(llm.stage, call.key)
            self._progress.advance(len(batch))
            self._progress.status(f"${self.usd:.4f}" if self.usd else f"{self.tokens:,} tokens")
        answers = [Completion.of(self._replies[call.key]) for call in calls]
        self.asked += len(answers)
        self.failures.update(answer.reason for answer in answers if isinstance(answer, Failure))
        return answers

    def _count(self, stage: Stage, key: bytes) -> None:
        """What a reply took, once, in the stage that asked for it first."""
        if key in self._counted:
            return
        self._counted.add(key)
        reply, usage = self._replies[key], self.usage[stage]
        usage.calls += 1
        usage.failed += reply.failure is not None
        usage.prompt_tokens += reply.tokens - reply.spoken
        usage.completion_tokens += reply.spoken
        usage.usd += reply.cost

    def _affordable(self, llm: LedgerLLM, requests: Sequence[Request]) -> int:
        """How many requests fit the budget even if each uses all its tokens; if not even one does, the build stops."""
        if self._max_usd is None and self._max_tokens is None:
            return len(requests)
        usd, tokens = self.usd, self.tokens
        for n, request in enumerate(requests):
            size = sum(len(message.text.encode("utf-8", "replace")) for message in request.chat)
            prompt = size // BYTES_PER_TOKEN + 1
            usd += llm.prices.cost(prompt, request.sampling.max_tokens)
            tokens += prompt + request.sampling.max_tokens
            exceeded = ""
            if self._max_usd is not None and usd > self._max_usd:
                exceeded = f"${self._max_usd:g} (spent: ${self.usd:.4f})"
            elif self._max_tokens is not None and tokens > self._max_tokens:
                exceeded = f"{self._max_tokens:,} tokens (used: {self.tokens:,})"
            if exceeded and n:
                return n
            if exceeded:
                raise BudgetUsedUp(f"the next call might exceed {exceeded}; {RESUME}, with a larger limit")
        return len(requests)


class LedgerLLM:
    """An LLM in one stage whose calls go through the ledger. It is an `LLM` itself."""

    def __init__(self, inner: LLM, stage: Stage, prices: Prices, ledger: Ledger) -> None:
        self.inner, self.stage, self.prices, self.ledger = inner, stage, prices, ledger
        self.fingerprint, self.remote = inner.fingerprint, inner.remote

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return self.ledger.complete(self, requests)


def prices_of(spec: str) -> Prices:
    options = parse_llm(spec).options
    try:
        prices = float(options.get("usd_in", 0)), float(options.get("usd_out", 0))
    except ValueError:
        prices = (-1.0, -1.0)
    if not all(0 <= price < math.inf for price in prices):
        raise BadInput(f"{spec!r}: usd_in and usd_out must be dollars per million tokens")
    return Prices(prompt=prices[0], completion=prices[1])


def make_llms(config: BuildConfig) -> dict[Role, LLM]:
    """One LLM per role; roles with the same spec share one."""
    by_spec: dict[str, LLM] = {}
    by_role: dict[Role, LLM] = {}
    for role in get_args(Role):
        spec = config.spec_of(role)
        llm = by_role[role] = by_spec.get(spec) or by_spec.setdefault(spec, make_llm(spec))
        priced = parse_llm(spec).options.keys() & {"usd_in", "usd_out"}
        if config.max_usd is not None and llm.remote and not priced:
            raise BadInput(f"--max-usd needs the prices of {spec!r}: add ;usd_in=…;usd_out=… (per million tokens)")
    return by_role


# the estimate

ASPECT_TOKENS, COMMENT_TOKENS, GRADE_TOKENS = 30, 80, 40
"""Of one aspect, of what a judge writes before its verdict, and of the grade of one aspect with its reason."""
TOKENS_PER_WORD = 1.4
"""Of English answers."""


def estimate_cost(config: BuildConfig, records: Sequence[UserRecord]) -> dict[str, Any]:
    """Of a build without a log in which every reply is readable and every pair passes in its first round; further
    rounds would cost as much again. Only the stages up to `config.until`."""
    n = len(records)
    skipped = config.skip_gate
    couples = propose_couples(records, ENCODERS.make("static"), config.similar) if config.mirror else []
    calls: dict[Stage, int] = {
        "rubric": sum(not record.rubric for record in records),
        "couple": len(couples),
        "negative": n if config.mode == "oppose" else 0,
        "answer": 2 * config.candidates * n,
        "grade": 2 * config.candidates * n if "aspects" not in skipped else 0,
        "quality": 2 * n if "quality" not in skipped else 0,
        "blind": 2 * n if "blind-judge" not in skipped else 0,
    }
    given = [len(record.rubric) for record in records if record.rubric]
    aspects = round(mean(given)) if given else sum(config.aspects) // 2
    rubric = aspects * ASPECT_TOKENS
    question = _mean_tokens([record.question for record in records])
    narrative = _mean_tokens([record.narrative for record in records])
    answer = round(config.words * TOKENS_PER_WORD)
    tokens: dict[Stage, tuple[int, int]] = {  # in a prompt beside its template, and in a reply
        "rubric": (question + narrative, 3 * rubric),
        "couple": (2 * (question + rubric), COMMENT_TOKENS),
        "negative": (question + rubric, rubric),
        "answer": (question + rubric, answer),
        "grade": (question + 2 * rubric + answer, aspects * GRADE_TOKENS),
        "quality": (question + 2 * answer, COMMENT_TOKENS),
        "blind": (question + 2 * answer, COMMENT_TOKENS),
    }
    stages: dict[Stage, dict[str, Any]] = {}
    for stage in STAGES[: STAGES.index(config.until) + 1 if config.until else None]:
        template = tokens_of(load("material")) + tokens_of(load(PROMPTS[stage]))
        total_in = calls[stage] * (template + tokens[stage][0])
        total_out = calls[stage] * tokens[stage][1]
        usd = prices_of(config.spec_of(ROLES[stage])).cost(total_in, total_out)
        stages[stage] = {"calls": calls[stage], "tokens_in": total_in, "tokens_out": total_out, "usd": usd}
    return {"records": n, "stages": stages, "usd": sum(stage["usd"] for stage in stages.values())}


def _mean_tokens(texts: Sequence[str]) -> int:
    return round(mean(map(tokens_of, texts))) if texts else 0
