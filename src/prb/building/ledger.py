"""Every call of a build, in a file: answered from it where it was made before, else made, paid and written down.

A build is a function of its input and of what the models said. So the log of calls is all that has to be kept: a
build that was stopped, by Ctrl-C, a crash, an endpoint or the budget, runs again from the beginning, finds its own
words in the log and goes on where they end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prb.building.config import BuildConfig, Role, Stage
from prb.errors import BadInput, PrbError
from prb.hashing import digest
from prb.llm import LLM, Completion, Request, make_llm, parse_llm
from prb.llm.pacing import Prices
from prb.progress import SILENT, Progress
from prb.runs import Journal
from prb.types import Failure

DOWN = ("endpoint failed", "budget used up", "HTTP 401", "HTTP 403", "HTTP 404")
"""Failures of the back end rather than of the request: the same call may go through later."""
DOWN_IN_A_ROW = 8
"""So many of them without a reply in between end the build: going on would only make rejects."""


class Stopped(PrbError):
    """The build ended early; what was paid for is in the log."""


@dataclass(kw_only=True)
class Spent:
    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0


class Ledger:
    def __init__(
        self,
        journal: Journal,
        *,
        max_usd: float | None = None,
        max_tokens: int | None = None,
        batch: int = 64,
        progress: Progress = SILENT,
    ) -> None:
        self._journal, self._batch, self._progress = journal, batch, progress
        self._max_usd, self._max_tokens = max_usd, max_tokens
        self._said: dict[str, Completion | Failure] = {}
        self._down = 0
        self.spent: dict[Stage, Spent] = defaultdict(Spent)
        for line in journal.lines():
            self._book(line)

    @property
    def usd(self) -> float:
        return sum(spent.usd for spent in self.spent.values())

    @property
    def tokens(self) -> int:
        return sum(spent.prompt_tokens + spent.completion_tokens for spent in self.spent.values())

    def answer(self, voice: Voice, requests: Sequence[Request]) -> list[Completion | Failure]:
        keys = [_key(voice, request) for request in requests]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._said}
        failed: dict[str, Failure] = {}
        todo = list(missing.items())
        if todo:
            self._progress.begin(voice.stage, total=len(keys), done=len(keys) - len(todo))
        while todo:
            size = self._affordable(voice, [request for _, request in todo[: self._batch]])
            failed |= self._send(voice, todo[:size])
            todo = todo[size:]
            self._progress.advance(size)
            self._progress.status(f"${self.usd:.4f}" if self.usd else f"{self.tokens:,} tokens")
        return [self._said[key] if key in self._said else failed[key] for key in keys]

    def _send(self, voice: Voice, batch: Sequence[tuple[str, Request]]) -> dict[str, Failure]:
        replies = voice.llm.complete([request for _, request in batch])
        lines = [_line(voice, key, request, reply) for (key, request), reply in zip(batch, replies, strict=True)]
        self._journal.append(lines)
        for line in lines:
            self._book(line)
        failed = {key: reply for (key, _), reply in zip(batch, replies, strict=True) if isinstance(reply, Failure)}
        down = [failure for failure in failed.values() if is_down(failure)]
        self._down = self._down + len(down) if len(down) == len(batch) else 0
        if self._down >= DOWN_IN_A_ROW:
            raise Stopped(f"{voice.llm.fingerprint}: {down[0]}; {KEPT}")
        return failed

    def _book(self, line: dict[str, Any]) -> None:
        spent = self.spent[line["stage"]]
        spent.calls += 1
        spent.prompt_tokens += line["prompt_tokens"]
        spent.completion_tokens += line["completion_tokens"]
        spent.usd += line["usd"]
        if failure := line.get("failure"):
            spent.failed += 1
            reason, _, detail = failure.partition(": ")
            if not is_down(known := Failure(reason, detail)):  # the same request would fail again, and cost again
                self._said[line["key"]] = known
            return
        self._said[line["key"]] = Completion(
            text=line["reply"],
            prompt_tokens=line["prompt_tokens"],
            completion_tokens=line["completion_tokens"],
            cost=line["usd"],
            truncated=line["truncated"],
        )

    def _affordable(self, voice: Voice, requests: Sequence[Request]) -> int:
        """How many of them fit the budget even if each takes all the tokens it may; none of them ends the build."""
        if self._max_usd is None and self._max_tokens is None:
            return len(requests)
        usd, tokens = self.usd, self.tokens
        for n, request in enumerate(requests):
            prompt = sum(len(message.text.encode("utf-8", "replace")) for message in request.chat) // BYTES + 1
            usd += voice.prices.cost(prompt, request.sampling.max_tokens)
            tokens += prompt + request.sampling.max_tokens
            if over := self._over(usd, tokens):
                if n:
                    return n
                raise Stopped(f"the next call might pass {over}; {KEPT}, with a larger limit")
        return len(requests)

    def _over(self, usd: float, tokens: int) -> str:
        if self._max_usd is not None and usd > self._max_usd:
            return f"${self._max_usd:g} (spent: ${self.usd:.4f})"
        if self._max_tokens is not None and tokens > self._max_tokens:
            return f"{self._max_tokens:,} tokens (used: {self.tokens:,})"
        return ""


BYTES = 3
"""A token has seldom fewer bytes than this, in any script."""
KEPT = "what is finished is kept, the same command goes on from there"


def is_down(failure: Failure) -> bool:
    return failure.reason.startswith(DOWN)


class Voice:
    """A language model in one role and stage, through the ledger. It is an `LLM` itself."""

    def __init__(self, llm: LLM, stage: Stage, prices: Prices, ledger: Ledger) -> None:
        self.llm, self.stage, self.prices, self.ledger = llm, stage, prices, ledger
        self.fingerprint, self.remote = llm.fingerprint, llm.remote

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return self.ledger.answer(self, requests)


def _key(voice: Voice, request: Request) -> str:
    return digest(voice.fingerprint, [list(message) for message in request.chat], asdict(request.sampling)).hex()


def _line(voice: Voice, key: str, request: Request, reply: Completion | Failure) -> dict[str, Any]:
    line: dict[str, Any] = {
        "key": key,
        "stage": voice.stage,
        "llm": voice.fingerprint,
        "sampling": asdict(request.sampling),
        "prompt": "\n\n".join(message.text for message in request.chat),
    }
    line |= {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens, "usd": reply.cost}
    if isinstance(reply, Failure):
        return {**line, "failure": str(reply)}
    text = reply.text.encode("utf-8", "replace").decode()  # half a character, as a token limit leaves it
    return {**line, "reply": text, "truncated": reply.truncated}


def prices_of(spec: str) -> Prices:
    options = parse_llm(spec).options
    try:
        prices = float(options.get("usd_in", 0)), float(options.get("usd_out", 0))
    except ValueError:
        prices = (-1.0, -1.0)
    if not all(0 <= price < math.inf for price in prices):
        raise BadInput(f"{spec!r}: usd_in and usd_out are dollars for a million tokens")
    return Prices(prompt=prices[0], completion=prices[1])


def make_roles(config: BuildConfig) -> dict[Role, LLM]:
    """One model a role; roles with the same spec share it."""
    made: dict[str, LLM] = {}
    roles: tuple[Role, ...] = ("write", "grade", "judge")
    for role in roles:
        spec = config.spec_of(role)
        if spec not in made:
            made[spec] = make_llm(spec)
        if (
            config.max_usd is not None
            and made[spec].remote
            and not parse_llm(spec).options.keys() & {"usd_in", "usd_out"}
        ):
            raise BadInput(f"--max-usd needs the prices of {spec!r}: add ;usd_in=…;usd_out=… (for a million tokens)")
    return {role: made[config.spec_of(role)] for role in roles}
