"""The calls of a build: made once, within a budget, counted by stage; and what they will cost.

A build is a function of its input and of the models' replies. One that was stopped, by Ctrl-C, a crash, an endpoint or
the budget, runs again from the beginning and finds its replies until it gets to where it was stopped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import get_args

from prb.building.config import ASPECTS, CANDIDATES, PROMPTS, ROLES, STAGES, BuildConfig, Role, Stage, gate_limits
from prb.building.stages import UserRecord, propose_couples
from prb.errors import BadInput, BudgetUsedUp
from prb.failures import RESUME, Breaker
from prb.llm import LLM, Completion, Request, Sampling, make_llm, parse_llm, request_key
from prb.llm.endpoint import Prices, tokens_of
from prb.progress import SILENT, Progress
from prb.prompts import load
from prb.text.encoders import ENCODERS
from prb.types import Failure
from prb.work import Asked, Call, Replies, ask_missing

TEMPERATURE = 0.8
"""Of answers, and of a stage that is asked again; everything else is generated at 0."""
MAX_TOKENS = 1024
"""Of one reply."""
REDO_SEED_STEP = 1000
"""How much higher the seed is when a stage is asked again; a reminder raises it by one."""
BATCH = 64
"""Requests whose replies are written together; a crash costs at most these."""
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


@dataclass(kw_only=True)
class Ledger:
    """Sends the requests that have no reply yet, in batches that fit the budget, and counts what all of them took."""

    config: BuildConfig
    llms: Mapping[Role, LLM]
    replies: Replies
    given: bool = False
    """Whether the LLMs are objects of the caller's."""
    breaker: Breaker = field(default_factory=Breaker)
    progress: Progress = SILENT
    asked: int = 0
    """Requests so far, whoever answered them."""
    failures: Counter[str] = field(default_factory=Counter)
    """Of these, the failed ones by reason."""
    usage: dict[Stage, Usage] = field(default_factory=lambda: defaultdict(Usage))
    _counted: set[bytes] = field(default_factory=set)

    def llm(self, stage: Stage) -> StageLLM:
        return StageLLM(stage, self.llms[ROLES[stage]], prices_of(self.config.spec_of(ROLES[stage])), self)

    def sampling(self, stage: Stage) -> Sampling:
        redone = self.config.redo.count(stage)
        temperature = TEMPERATURE if stage == "answer" or redone else 0.0
        seed = self.config.seed + REDO_SEED_STEP * redone
        return Sampling(temperature=temperature, max_tokens=MAX_TOKENS, seed=seed)

    @property
    def usd(self) -> float:
        return sum(usage.usd for usage in self.usage.values())

    def count(self, stage: Stage, key: bytes) -> None:
        """What a reply took, once, in the stage that asked for it first."""
        if key in self._counted:
            return
        self._counted.add(key)
        reply, usage = self.replies[key], self.usage[stage]
        usage.calls += 1
        usage.failed += reply.failure is not None
        usage.prompt_tokens += reply.tokens - reply.spoken
        usage.completion_tokens += reply.spoken
        usage.usd += reply.cost


@dataclass
class StageLLM:
    """An LLM in one stage whose calls go through the ledger. It is an `LLM` itself."""

    stage: Stage
    inner: LLM
    prices: Prices
    ledger: Ledger

    def __post_init__(self) -> None:
        self.fingerprint, self.remote = self.inner.fingerprint, self.inner.remote

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        ledger = self.ledger
        asked = Asked.of(self.stage, self.inner, "complete", given=ledger.given)
        start = asked.key_start()
        calls = [Call(request_key(start, request), request) for request in requests]

        def afford(owed: Sequence[Call]) -> int:
            waiting = {call.key for call in owed}
            for call in calls:  # what was answered a moment ago has been spent
                if call.key in ledger.replies and call.key not in waiting:
                    ledger.count(self.stage, call.key)
            return self._affordable([call.ask for call in owed])

        ledger.progress.begin(self.stage, total=len(calls))
        batches = (calls[n : n + BATCH] for n in range(0, len(calls), BATCH))
        plan = ((batch, batch) for batch in batches)
        for batch in ask_missing(
            plan, ledger.replies, asked, ledger.breaker, afford=afford, max_transient=MAX_TRANSIENT
        ):
            for call in batch:
                ledger.count(self.stage, call.key)
            ledger.progress.advance(len(batch))
            ledger.progress.status(f"${ledger.usd:.4f}")
        answers = [Completion.of(ledger.replies[call.key]) for call in calls]
        ledger.asked += len(answers)
        ledger.failures.update(answer.reason for answer in answers if isinstance(answer, Failure))
        return answers

    def _affordable(self, requests: Sequence[Request]) -> int:
        """How many requests fit the budget even if each uses all its tokens; if not even one does, the build stops."""
        most = self.ledger.config.max_usd
        if most is None:
            return len(requests)
        spent = usd = self.ledger.usd
        for n, request in enumerate(requests):
            size = sum(len(message.text.encode("utf-8", "replace")) for message in request.chat)
            usd += self.prices.cost(size // BYTES_PER_TOKEN + 1, request.sampling.max_tokens)
            if usd > most and n:
                return n
            if usd > most:
                raise BudgetUsedUp(
                    f"the next call might exceed ${most:g} (spent: ${spent:.4f}); {RESUME}, with a larger limit"
                )
        return len(requests)


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


# --- the estimate ---

ASPECT_TOKENS, COMMENT_TOKENS, GRADE_TOKENS = 30, 80, 40
"""Of one aspect, of what a judge writes before its verdict, and of the grade of one aspect with its reason."""
TOKENS_PER_WORD = 1.4
"""Of English answers."""


@dataclass(frozen=True)
class StageCost:
    calls: int
    tokens_in: int
    tokens_out: int
    usd: float


@dataclass(frozen=True)
class Estimate:
    records: int
    stages: dict[Stage, StageCost]
    usd: float


def estimate_cost(config: BuildConfig, records: Sequence[UserRecord]) -> Estimate:
    """Of a build without a log in which every reply is readable and every pair passes in its first round; further
    rounds would cost as much again. Only the stages up to `config.until`."""
    n, gates = len(records), gate_limits(config.gate)
    similar = gates["couple"]["cosine"]
    calls: dict[Stage, int] = {
        "rubric": sum(not record.rubric for record in records),
        "couple": len(propose_couples(records, ENCODERS.make("static"), similar)) if config.mirror else 0,
        "negative": n if config.mode == "oppose" else 0,
        "answer": 2 * CANDIDATES * n,
        "grade": 2 * CANDIDATES * n if "aspects" in gates else 0,
        "quality": 2 * n if "quality" in gates else 0,
        "blind": 2 * n if "blind-judge" in gates else 0,
    }
    given = [len(record.rubric) for record in records if record.rubric]
    aspects = round(mean(given)) if given else sum(ASPECTS) // 2
    rubric = aspects * ASPECT_TOKENS
    question, narrative = (
        round(mean(map(tokens_of, texts))) if texts else 0
        for texts in ([record.question for record in records], [record.narrative for record in records])
    )
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
    stages: dict[Stage, StageCost] = {}
    for stage in STAGES[: STAGES.index(config.until) + 1 if config.until else None]:
        template = tokens_of(load("material")) + tokens_of(load(PROMPTS[stage]))
        total_in = calls[stage] * (template + tokens[stage][0])
        total_out = calls[stage] * tokens[stage][1]
        usd = prices_of(config.spec_of(ROLES[stage])).cost(total_in, total_out)
        stages[stage] = StageCost(calls[stage], total_in, total_out, usd)
    return Estimate(n, stages, sum(cost.usd for cost in stages.values()))
