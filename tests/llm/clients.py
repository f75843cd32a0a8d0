"""What the tests of the back ends have in common."""

from __future__ import annotations

from typing import Any

from prb.llm import LLM, Completion, Request, Sampling
from prb.llm.endpoint import Endpoint
from prb.types import Failure, Turn
from tests.llm.server import Server


def endpoint(server: Server, **settings: Any) -> Endpoint:
    return Endpoint("m", server.url, **{"timeout": 30.0, **settings})


def ask(*texts: str, **sampling: Any) -> list[Request]:
    return [Request((Turn("system", "Be brief."), Turn("user", text)), Sampling(**sampling)) for text in texts]


def one(llm: Endpoint, **sampling: Any) -> Any:
    (result,) = llm.complete(ask("hello", **sampling))
    return result


def text(result: Completion | Failure) -> str:
    assert isinstance(result, Completion), result
    return result.text


def ask_once(text: str, **sampling: Any) -> Request:
    return Request((Turn("user", text),), Sampling(**{"max_tokens": 12, **sampling}))


def said(llm: LLM, request: Request) -> Completion:
    (completion,) = llm.complete([request])
    assert isinstance(completion, Completion), completion
    return completion
