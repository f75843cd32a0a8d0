"""What the tests of the openai back end have in common."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from prb.llm import Completion, Request, Sampling
from prb.llm.endpoint import Backoff, Endpoint
from prb.types import Failure, Turn
from tests.llm.server import Server

QUICK = Backoff(first=0.001, longest=0.01)


def endpoint(server: Server, **settings: Any) -> Endpoint:
    return Endpoint("m", server.url, **{"backoff": QUICK, "timeout": 30.0, **settings})


def ask(*texts: str, **sampling: Any) -> list[Request]:
    return [Request((Turn("system", "Be brief."), Turn("user", text)), Sampling(**sampling)) for text in texts]


def one(llm: Endpoint, **sampling: Any) -> Completion | Failure:
    (result,) = llm.complete(ask("hello", **sampling))
    return result


def text(result: Completion | Failure) -> str:
    assert isinstance(result, Completion), result
    return result.text


@dataclass(frozen=True)
class NoWait(Backoff):
    """Remembers what servers asked for and does not wait."""

    asked: list[float] = field(default_factory=list)

    def wait(self, tries: int, rng: random.Random, asked: float = 0.0) -> float:
        self.asked.append(asked)
        return 0.0
