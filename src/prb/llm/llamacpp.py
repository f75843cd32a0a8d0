"""llama.cpp in this process, on a GGUF file: no server to start, no torch, any laptop.

Requests run one after the other in one slot. A prompt is read afresh into it, and every reply to that prompt begins
with its last token once more: N samples read their prompt once, and still each depends on its own request alone. Shared
batches and caches of what came before would be faster and change the last digits.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from prb.errors import BadInput, BadSpec, MissingExtra
from prb.gguf import file_sha256, has_chat_template
from prb.llm import LLM, LLMS, Chat, Completion, Request, Sampling, plain
from prb.types import Failure
from prb.weights import resolve_gguf


@LLMS.register("llamacpp")
def llamacpp(model: str, threads: int | None = None, context: int = 4096, gpu_layers: int = -1) -> LLM:
    """llama.cpp on a GGUF: a path, or a pulled name such as smollm2.

    `threads` is by default one fewer than the cores: waiting threads spin, and with every core taken all slow down by
    an order of magnitude as soon as anything else runs. A prompt that does not fit `context` is a failure, never cut.
    """
    threads = max(1, _cores() - 1) if threads is None else threads
    if threads < 1 or context < 1:
        raise BadSpec("llamacpp: threads and context are at least 1")
    return _loaded(resolve_gguf(model), threads, context, gpu_layers)


@cache
def _loaded(path: Path, threads: int, context: int, gpu_layers: int) -> LLM:
    """Several models of a run may use the same weights."""
    return LlamaCpp(path, threads=threads, context=context, gpu_layers=gpu_layers)


class LlamaCpp:
    remote = False

    def __init__(self, path: Path, *, threads: int, context: int, gpu_layers: int = -1) -> None:
        templated = has_chat_template(path)
        self._server = _server(path, threads, context, gpu_layers, template="" if templated else plain.TEMPLATE)
        self._stop = () if templated else plain.STOP
        self.fingerprint = f"llamacpp-{path.stem}-{file_sha256(path)[:12]}-{context}"

    def __repr__(self) -> str:
        return f"<{self.fingerprint}>"

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        return [said for _, same in groupby(requests, lambda request: request.chat) for said in self._replies([*same])]

    def _replies(self, requests: list[Request]) -> list[Completion | Failure]:
        """To one prompt."""
        first = requests[0]
        if not first.chat:
            return [Failure("empty chat")] * len(requests)
        read = self._call({**_body(first, self._stop), "max_tokens": 1, "cache_prompt": False})
        if isinstance(read, Failure):
            return [read] * len(requests)
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Completion | Failure:
        said = self._call({**_body(request, self._stop), "cache_prompt": True})
        return said if isinstance(said, Failure) else _completion(said, request)

    def _call(self, body: dict[str, Any]) -> Mapping[str, Any] | Failure:
        try:
            reply: Mapping[str, Any] = self._server.handle_chat_completions(body)
        except (RuntimeError, TypeError, ValueError) as error:
            return Failure("llama.cpp failed", str(error))
        return _failure(reply["error"]) if "error" in reply else reply


def _body(request: Request, stop: tuple[str, ...]) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "messages": [{"role": message.role, "content": message.text} for message in request.chat],
        "max_tokens": sampling.max_tokens,
        "stop": [*sampling.stop, *stop],
        **_sampler(sampling),
        **({"logprobs": True, "top_logprobs": sampling.top_logprobs} if sampling.top_logprobs else {}),
    }


def _sampler(sampling: Sampling) -> dict[str, Any]:
    """Temperature, then top-p, and none of the other filters that llama.cpp applies unasked."""
    return {
        "samplers": ["temperature", "top_p"],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % 0xFFFFFFFF,  # the one seed left out means "a new one each time"
    }


def _completion(reply: Mapping[str, Any], request: Request) -> Completion:
    (choice,) = reply["choices"]
    usage = reply["usage"]
    text = _new_text(choice["message"].get("content") or "", request.chat)
    return Completion(
        text=text,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        first=_first(choice.get("logprobs"), text),
        truncated=choice["finish_reason"] == "length",
    )


def _new_text(text: str, chat: Chat) -> str:
    """An answer that the request has begun is continued, and repeated in the reply."""
    return text.removeprefix(chat[-1].text) if chat[-1].role == "assistant" else text


def _first(logprobs: Mapping[str, Any] | None, text: str) -> dict[str, float]:
    """Tokens that are part of a character are left out of the list, so its first is not always the text's first."""
    tokens = (logprobs or {}).get("content") or []
    if not tokens or not _one_begins_the_other(bytes(tokens[0]["bytes"]), text.encode()):
        return {}
    found: dict[str, float] = {}
    for token in tokens[0]["top_logprobs"]:
        found.setdefault(token["token"], token["logprob"])  # parts of characters read alike; the likelier stays
    return found


def _one_begins_the_other(a: bytes, b: bytes) -> bool:
    return a.startswith(b) or b.startswith(a)


def _failure(error: Mapping[str, Any]) -> Failure:
    if error.get("type") == "exceed_context_size_error":
        sizes = f"{error.get('n_prompt_tokens')} tokens, context {error.get('n_ctx')}"
        return Failure("prompt longer than the context", sizes)
    return Failure("llama.cpp refused the request", str(error.get("message", error)))


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
    # it also listens on a port of this machine: nobody else is to use it
    params.api_keys = [secrets.token_hex(32)]
    params.ui = params.endpoint_slots = False
    try:
        return xllamacpp.Server(params)
    except RuntimeError:
        raise BadInput(f"llama.cpp cannot load {path}; is it a GGUF file of a language model?") from None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
