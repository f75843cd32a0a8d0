"""The OpenAI chat protocol without the network: what a request holds, and what can be read from a reply."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from prb.llm import Request
from prb.llm.asking import answer_token
from prb.types import Failure

MOST_TOKENS = 10**9
"""No request has more; a larger count in a reply is nonsense."""
ADAPTABLE = ("max_tokens", "temperature", "top_p", "seed", "logprobs", "top_logprobs")
"""Parameters that some models reject; the request is sent again without them, `max_tokens` under its newer name."""
REJECTION = re.compile(
    r"unsupported|n[o']t support|unrecogni[sz]ed|unknown|unexpected|not allowed|not permitted|only the default", re.I
)


def request_body(
    model: str,
    request: Request,
    rejected: frozenset[str] = frozenset(),
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """As JSON, without the parameters the model rejects, and with those of this endpoint alone."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.text} for message in request.chat],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }
    if sampling.top_p != 1.0:
        body["top_p"] = sampling.top_p
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.top_logprobs > 0 and not rejected & {"logprobs", "top_logprobs"}:
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
    if "max_tokens" in rejected:
        body["max_completion_tokens"] = sampling.max_tokens
    return {**extra, **{key: value for key, value in body.items() if key not in rejected}}


def parse(content: bytes) -> Any:
    """JSON, including the NaN and Infinity that some servers write as log-probabilities; `None` if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def first_choice(data: Any) -> Mapping[str, Any] | None:
    match data:
        case {"choices": [{"message": {"content": str() | None} | {"refusal": str()}} as choice, *_]}:
            return dict(choice)
    return None


def text_of(choice: Mapping[str, Any]) -> tuple[str, Failure | None]:
    """The text, and what is wrong with it if it is not an answer."""
    message, reason = choice["message"], choice.get("finish_reason")
    text = message.get("content") or ""
    if message.get("refusal"):
        return text, Failure("refused", str(message["refusal"]))
    if reason == "content_filter":
        return text, Failure("stopped by the endpoint's content filter")
    return text, None if text else Failure("empty reply", f"finish_reason {reason}")


def first_token(choice: Mapping[str, Any]) -> dict[str, float]:
    """Log-probabilities of the answer's first token; a token spelled twice keeps the likelier one.

    Servers that take the thinking out of the text still list its tokens here.
    """
    match choice.get("logprobs"):
        case {"content": [_, *_] as tokens}:
            pass
        case _:
            return {}
    spelled = [str(token.get("token", "")) if isinstance(token, dict) else "" for token in tokens]
    at = answer_token(spelled)
    if thinking_of(choice):
        answer = (choice["message"].get("content") or "").strip()
        places = range(len(spelled)) if answer else ()
        at = next((n for n in places if spelled[n].strip() and "".join(spelled[n:]).strip() == answer), None)
    match None if at is None else tokens[at]:
        case {"top_logprobs": [*top]} as chosen:
            first: dict[str, float] = {}
            for entry in (*top, chosen):
                match entry:
                    case {"token": str(token), "logprob": int() | float() as logprob} if not math.isnan(logprob):
                        first[token] = max(float(logprob), first.get(token, -math.inf))
            return first
    return {}


def thinking_of(choice: Mapping[str, Any]) -> str:
    """The thinking, where the server returns it apart from the text."""
    message = choice["message"]
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def usage_of(data: Any) -> tuple[int, int] | None:
    """Prompt and completion tokens; `None` if they are missing or cannot be true, so that no server sets our costs."""
    match data:
        case {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}:
            if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in (prompt, completion)):
                return prompt, completion
    return None


def message_of(body: Any) -> str:
    """A server's error message, in whichever of the usual shapes."""
    match body:
        case {"error": {"message": str(text)}} | {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case None:
            return ""
    return body if isinstance(body, str) else json.dumps(body)


def rejected_parameter(body: Any, sent: Mapping[str, Any]) -> str | None:
    """Which of the parameters sent an error message says the model rejects."""
    text = body if isinstance(body, str) else json.dumps(body)
    if not REJECTION.search(text):
        return None
    named = body.get("param") if isinstance(body, dict) else None
    mentioned = [name for name in ADAPTABLE if name in sent and re.search(rf"\b{name}\b", text)]
    return named if named in mentioned else next(iter(mentioned), None)
