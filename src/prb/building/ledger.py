"""What a build costs: the estimate before it begins, and a log of every call, which also answers repeated calls.

A build is a function of its input and of the models' replies, so the log of calls is all that has to be kept. A build
that was stopped, by Ctrl-C, a crash, an endpoint or the budget, runs again from the beginning and finds its calls in
the log until it gets to where it was stopped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from prb.building.config import PROMPTS, ROLES, STAGES, BuildConfig, Role, Stage
from prb.building.records import UserRecord
from prb.building.stages import propose_couples
from prb.config import NonNegative, Size
from prb.errors import BadInput, BudgetUsedUp, Unreachable
from prb.failures import RESUME, Breaker, unanswered
from prb.hashing import digest
from prb.llm import LLM, Completion, Request, make_llm, parse_llm
from prb.llm.endpoint import Prices, tokens_of
from prb.progress import SILENT, Progress
from prb.prompts import load
from prb.runs import Journal
from prb.text.encoders import ENCODERS
from prb.types import Failure, FailureKind

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


@dataclass(frozen=True, kw_only=True)
class LoggedCall:
    """What is read of a line of the log."""

    key: str
    stage: Stage
    prompt_tokens: Size
    completion_tokens: Size
    usd: NonNegative
    reply: str | None = None
    truncated: bool = False
    failure: str | None = None
    failure_kind: FailureKind = "row"


_CALL = TypeAdapter(LoggedCall)


class Ledger:
    """Answers requests from the log, or sends them, in batches that fit the budget, and logs them."""

    def __init__(
        self,
        journal: Journal,
        *,
        max_usd: float | None = None,
        max_tokens: int | None = None,
        batch: int = 64,
        retry_failed: bool = False,
        breaker: Breaker | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self._journal, self._batch, self._progress = journal, batch, progress
        self._max_usd, self._max_tokens = max_usd, max_tokens
        self._retry_failed, self._breaker = retry_failed, breaker or Breaker()
        self._known: dict[str, Completion | Failure] = {}
        self._transient = 0
        self.asked = 0
        """Requests of this process, whether the log or an LLM answered them."""
        self.failures: Counter[str] = Counter()
        """Of these, the failed ones by reason."""
        self.usage: dict[Stage, Usage] = defaultdict(Usage)
        for number, line in enumerate(journal.lines(), 1):
            try:
                self._book(line)
            except ValueError as error:
                reason = str(error)
                if isinstance(error, ValidationError):
                    first = error.errors()[0]
                    reason = f"`{first['loc'][0]}`: {first['msg']}"
                advice = "delete the line and run again to repeat the call"
                raise BadInput(f"{journal.path}:{number} is not a valid line: {reason}; {advice}") from None

    @property
    def usd(self) -> float:
        return sum(usage.usd for usage in self.usage.values())

    @property
    def tokens(self) -> int:
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in self.usage.values())

    def complete(self, llm: LoggedLLM, requests: Sequence[Request]) -> list[Completion | Failure]:
        keys = [
            digest(llm.fingerprint, [list(message) for message in request.chat], asdict(request.sampling)).hex()
            for request in requests
        ]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._known}
        failed: dict[str, Failure] = {}
        todo = list(missing.items())
        if todo:
            self._progress.begin(llm.stage, total=len(keys), done=len(keys) - len(todo))
        while todo:
            size = self._affordable(llm, [request for _, request in todo[: self._batch]])
            failed |= self._send(llm, todo[:size])
            todo = todo[size:]
            self._progress.advance(size)
            self._progress.status(f"${self.usd:.4f}" if self.usd else f"{self.tokens:,} tokens")
        replies = [self._known[key] if key in self._known else failed[key] for key in keys]
        self.asked += len(replies)
        self.failures.update(reply.reason for reply in replies if isinstance(reply, Failure))
        return replies

    def _send(self, llm: LoggedLLM, batch: Sequence[tuple[str, Request]]) -> dict[str, Failure]:
        replies = llm.inner.complete([request for _, request in batch])
        error = self._breaker.error(replies, llm.fingerprint)
        answered = [
            _line(llm, key, request, reply)
            for (key, request), reply in zip(batch, replies, strict=True)
            if not (error and unanswered(reply))
        ]
        self._journal.append(answered)
        for line in answered:
            self._book(line)
        if error:
            raise error
        failed = {key: reply for (key, _), reply in zip(batch, replies, strict=True) if isinstance(reply, Failure)}
        transient = [failure for failure in failed.values() if unanswered(failure)]
        self._transient = self._transient + len(transient) if len(transient) == len(batch) else 0
        if self._transient >= MAX_TRANSIENT:
            raise Unreachable(f"{llm.fingerprint}: {transient[0]}; {RESUME}")
        return failed

    def _book(self, line: dict[str, Any]) -> None:
        """Raises `ValueError` if the line is not a call that could have been made."""
        call = _CALL.validate_json(orjson.dumps(line), strict=True)
        if isinstance(self._known.get(call.key), Completion):
            raise ValueError("a call that was answered is never made again")
        usage = self.usage[call.stage]
        usage.calls += 1
        usage.prompt_tokens += call.prompt_tokens
        usage.completion_tokens += call.completion_tokens
        usage.usd += call.usd
        if call.failure is not None:
            usage.failed += 1
            failure = Failure.parse(call.failure, call.failure_kind)
            # otherwise the same request would fail again, and be charged again
            if not (unanswered(failure) or self._retry_failed):
                self._known[call.key] = failure
            return
        if call.reply is None:
            raise ValueError("it has neither a reply nor a failure")
        self._known[call.key] = Completion(
            text=call.reply,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
            cost=call.usd,
            truncated=call.truncated,
        )

    def _affordable(self, llm: LoggedLLM, requests: Sequence[Request]) -> int:
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


class LoggedLLM:
    """An LLM in one stage whose calls go through the ledger. It is an `LLM` itself."""

    def __init__(self, inner: LLM, stage: Stage, prices: Prices, ledger: Ledger) -> None:
        self.inner, self.stage, self.prices, self.ledger = inner, stage, prices, ledger
        self.fingerprint, self.remote = inner.fingerprint, inner.remote

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return self.ledger.complete(self, requests)


def _line(llm: LoggedLLM, key: str, request: Request, reply: Completion | Failure) -> dict[str, Any]:
    line: dict[str, Any] = {
        "key": key,
        "stage": llm.stage,
        "llm": llm.fingerprint,
        "sampling": asdict(request.sampling),
        "prompt": "\n\n".join(message.text for message in request.chat),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "usd": reply.cost,
    }
    if isinstance(reply, Failure):
        return {**line, "failure": str(reply), "failure_kind": reply.kind}
    return {**line, "reply": reply.text, "truncated": reply.truncated}


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
