"""An LLM with prepared replies, for tests and plumbing: no weights, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prb.llm import LLM, LLMS, Completion, Request
from prb.types import Failure

Reply = str | Completion | Failure


class ScriptedLLM:
    """Prepared replies in order (the last one repeats), or a function of the request."""

    remote = False

    def __init__(self, replies: Reply | Iterable[Reply] | Callable[[Request], Reply]) -> None:
        self.fingerprint = "scripted"
        self.requests: list[Request] = []
        """All requests so far, for tests to inspect."""
        if callable(replies):
            self._reply = replies
        else:
            script = [replies] if isinstance(replies, str | Completion | Failure) else list(replies)
            self._reply = lambda _: script.pop(0) if len(script) > 1 else script[0]

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        self.requests += requests
        return [Completion(text=r) if isinstance(r, str) else r for r in map(self._reply, requests)]


@LLMS.register("scripted")
def scripted(model: str) -> LLM:
    """Fake: always replies with the text after the slash."""
    llm = ScriptedLLM(model)
    llm.fingerprint = f"scripted-{model}"
    return llm
