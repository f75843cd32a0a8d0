"""llama.cpp in this process, on a GGUF file: no server to start, no torch, any laptop.

Requests run one after the other in one slot. A prompt is read afresh into it, and every reply to that prompt starts by
reading its last token once more: N samples read their prompt once, and still each depends on its own request alone.
Shared batches and prompt caches would be faster but change the last digits.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from prb.config import Count
from prb.engine.chat import PLAIN_STOP, PLAIN_TEMPLATE
from prb.errors import BadInput, MissingExtra
from prb.llm import LLM, LLMS, Completion, Request
from prb.llm.asking import answer_token
from prb.types import Failure
from prb.weights import file_sha256, has_chat_template, resolve_gguf


@LLMS.register("llamacpp")
def llamacpp(model: str, threads: Count | None = None, context: Count = 4096, gpu_layers: int = -1) -> LLM:
    """llama.cpp on a GGUF: a path, or a pulled name such as smollm2.

    `threads` defaults to one fewer than the cores: waiting threads spin, and with every core taken all slow down by an
    order of magnitude as soon as anything else runs. A prompt that does not fit `context` is a failure, never cut.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores - 1)
    return _load_shared(resolve_gguf(model), threads, context, gpu_layers)


@cache
def _load_shared(path: Path, threads: int, context: int, gpu_layers: int) -> LLM:
    """Several models of a run may use the same weights."""
    return LlamaCpp(path, threads=threads, context=context, gpu_layers=gpu_layers)


class LlamaCpp:
    remote = False

    def __init__(self, path: Path, *, threads: int, context: int, gpu_layers: int = -1) -> None:
        templated = has_chat_template(path)
        self._server = _server(path, threads, context, gpu_layers, template="" if templated else PLAIN_TEMPLATE)
        self._stop = () if templated else PLAIN_STOP
        self.fingerprint = f"llamacpp-{file_sha256(path)[:16]}-{context}"

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return [
            reply for _, same in groupby(requests, lambda request: request.chat) for reply in self._replies([*same])
        ]

    def _replies(self, requests: list[Request]) -> Iterator[Completion | Failure]:
        """To requests with the same prompt."""
        if not requests[0].chat:
            yield from [Failure("empty chat")] * len(requests)
            return
        read = self._call({**_body(requests[0], self._stop), "max_tokens": 1, "cache_prompt": False})
        for request in requests:
            reply = read
            if not isinstance(read, Failure):
                reply = self._call({**_body(request, self._stop), "cache_prompt": True})
            yield reply if isinstance(reply, Failure) else _completion(reply, request)

    def _call(self, body: dict[str, Any]) -> Mapping[str, Any] | Failure:
        try:
            reply: Mapping[str, Any] = self._server.handle_chat_completions(body)
        except (RuntimeError, TypeError, ValueError) as error:
            return Failure("llama.cpp failed", str(error))
        refusal = reply.get("error")
        if refusal is None:
            return reply
        if refusal.get("type") == "exceed_context_size_error":
            sizes = f"{refusal.get('n_prompt_tokens')} tokens, context {refusal.get('n_ctx')}"
            return Failure("prompt longer than the context", sizes)
        return Failure("llama.cpp refused the request", str(refusal.get("message", refusal)))


def _body(request: Request, stop: tuple[str, ...]) -> dict[str, Any]:
    sampling = request.sampling
    body = {
        "messages": [{"role": message.role, "content": message.text} for message in request.chat],
        "max_tokens": sampling.max_tokens,
        "stop": [*sampling.stop, *stop],
        "samplers": ["temperature", "top_p"],  # and none of the other filters that llama.cpp applies by default
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % 0xFFFFFFFF,  # the one seed left out means "a new one each time"
    }
    return {**body, "logprobs": True, "top_logprobs": sampling.top_logprobs} if sampling.top_logprobs else body


def _completion(reply: Mapping[str, Any], request: Request) -> Completion:
    (choice,) = reply["choices"]
    text = choice["message"].get("content") or ""
    if request.chat[-1].role == "assistant":  # an answer that the request has begun is repeated in the reply
        text = text.removeprefix(request.chat[-1].text)
    return Completion(
        text=text,
        prompt_tokens=reply["usage"]["prompt_tokens"],
        completion_tokens=reply["usage"]["completion_tokens"],
        first=_first_token(choice.get("logprobs"), text),
        truncated=choice["finish_reason"] == "length",
    )


def _first_token(logprobs: Mapping[str, Any] | None, text: str) -> dict[str, float]:
    """Of the answer. Tokens that are part of a character are left out of the list, so its first is not always the
    text's first."""
    tokens = (logprobs or {}).get("content") or []
    if not tokens:
        return {}
    token, start = bytes(tokens[0]["bytes"]), text.encode()
    at = answer_token([entry["token"] for entry in tokens])
    if at is None or not (token.startswith(start) or start.startswith(token)):
        return {}
    first: dict[str, float] = {}
    for candidate in tokens[at]["top_logprobs"]:
        first.setdefault(candidate["token"], candidate["logprob"])  # parts of characters read alike; keep the likelier
    return first


def _server(path: Path, threads: int, context: int, gpu_layers: int, template: str) -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise MissingExtra("llama.cpp", "llamacpp") from None
    params: Any = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.chat_template = template
    params.n_ctx = context
    params.n_gpu_layers = gpu_layers
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    params.cache_prompt = params.cache_idle_slots = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    params.verbosity = -1
    # it also listens on a local port, which nobody else should use
    params.api_keys = [secrets.token_hex(32)]
    params.ui = params.endpoint_slots = False
    try:
        return xllamacpp.Server(params)
    except RuntimeError:
        raise BadInput(f"llama.cpp cannot load {path}; is it a GGUF file of an LLM?") from None
