"""llama.cpp in this process, on a GGUF file: no server to start, no torch, any laptop.

Requests run one after the other in one slot. What a prompt has in common with the one before it is not read again;
requests are sorted so that equal beginnings follow each other. Still a reply depends on its own request alone: prompts
are read in blocks of a fixed size and only whole blocks are kept, so every block is computed in the same way each time,
and every reply starts by reading the last token of its prompt once more.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prb.config import Count
from prb.engine.chat import PLAIN_STOP, PLAIN_TEMPLATE, common_prefix
from prb.errors import BadInput, MissingExtra
from prb.llm import LLM, LLMS, Chat, Completion, Request
from prb.llm.asking import top_logprobs
from prb.types import Failure
from prb.weights import file_sha256, has_chat_template, resolve_gguf

BLOCK = 64
"""Tokens of a prompt that are computed together; larger blocks are not faster on a CPU."""
COMPLETIONS = "/v1/completions"


@LLMS.register("llamacpp")
def llamacpp(model: str, threads: Count | None = None, context: Count = 4096) -> LLM:
    """llama.cpp on a GGUF: a path, or a pulled name such as smollm2.

    `threads` defaults to one fewer than the cores: waiting threads spin, and with every core taken all slow down by an
    order of magnitude as soon as anything else runs. A prompt that does not fit `context` is a failure, never cut.
    """
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores - 1)
    return shared(resolve_gguf(model), threads=threads, context=context)


class LlamaCpp:
    remote = False
    at_once = 16
    """So slow that more calls than this are too many to lose."""

    def __init__(self, path: Path, *, threads: int, context: int) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingExtra("llama.cpp", "llamacpp") from None
        templated, self._key = has_chat_template(path), secrets.token_hex(32)
        self._stop = () if templated else PLAIN_STOP
        params: Any = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.chat_template = "" if templated else PLAIN_TEMPLATE
        params.n_ctx, params.n_parallel = context, 1
        params.n_batch = params.n_ubatch = BLOCK
        params.swa_full = True  # with a sliding window too, what was read is kept
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = params.cache_idle_slots = False
        params.cache_ram_mib = params.n_ctx_checkpoints = 0
        params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        params.verbosity = -1
        # it listens on a local port, which nobody else should use
        params.api_keys = [self._key]
        params.ui = params.endpoint_slots = False
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError:
            raise BadInput(f"llama.cpp cannot load {path}; is it a GGUF file of an LLM?") from None
        self.fingerprint = f"llamacpp-{file_sha256(path)[:16]}-{context}"
        self._held: list[int] = []
        """The prompt that was read last."""
        self.tokens_read = self.tokens_kept = 0
        """Tokens of prompts that were computed so far, and those that were not because the slot had them."""

    def complete(self, requests: Sequence[Request]) -> list[Completion | Failure]:
        prompts = {chat: self._tokens(chat) for chat in {request.chat for request in requests}}
        failures = {chat: tokens for chat, tokens in prompts.items() if isinstance(tokens, Failure)}
        readable = {chat: tokens for chat, tokens in prompts.items() if not isinstance(tokens, Failure)}
        order = sorted((readable[request.chat], n) for n, request in enumerate(requests) if request.chat in readable)
        replies = {n: self._reply(tokens, requests[n]) for tokens, n in order}
        return [replies[n] if n in replies else failures[request.chat] for n, request in enumerate(requests)]

    def _tokens(self, chat: Chat) -> list[int] | Failure:
        if not chat:
            return Failure("empty chat")
        messages = [{"role": message.role, "content": message.text} for message in chat]
        prompt = self._post("/apply-template", {"messages": messages})
        if isinstance(prompt, Failure):
            return prompt
        tokens = self._post("/tokenize", {"content": prompt["prompt"], "add_special": True, "parse_special": True})
        return tokens if isinstance(tokens, Failure) else tokens["tokens"]

    def _reply(self, tokens: list[int], request: Request) -> Completion | Failure:
        if tokens != self._held and (failure := self._read(tokens)):
            return failure
        sampling = request.sampling
        body = {
            "prompt": tokens,
            "cache_prompt": True,
            "max_tokens": sampling.max_tokens,
            "stop": [*sampling.stop, *self._stop],
            "samplers": ["temperature", "top_p"],  # and none of the other filters that llama.cpp applies by default
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed % 0xFFFFFFFF,  # the one seed left out means "a new one each time"
        }
        reply = self._post(COMPLETIONS, {**body, "logprobs": sampling.top_logprobs} if sampling.top_logprobs else body)
        if isinstance(reply, Failure):
            return reply
        (choice,) = reply["choices"]
        listed, start = (choice.get("logprobs") or {}).get("content") or [], choice["text"].encode()
        # tokens that are part of a character are left out of the list, so its first is not always the text's first
        first = bytes(listed[0]["bytes"]) if listed else b""
        aligned = first.startswith(start) or start.startswith(first)
        return Completion(
            text=choice["text"],
            prompt_tokens=reply["usage"]["prompt_tokens"],
            completion_tokens=reply["usage"]["completion_tokens"],
            first=top_logprobs(listed[0]) if listed and aligned else {},
            truncated=choice["finish_reason"] == "length",
        )

    def _read(self, tokens: list[int]) -> Failure | None:
        """Into the slot, except for whole blocks that are there already."""
        common = common_prefix([self._held, tokens])
        kept, self._held = min(common, len(tokens) - 1) // BLOCK * BLOCK, []
        if kept:  # another token after the last whole block: the rest of the slot is forgotten
            another = (tokens[kept] or 2) - 1
            forgotten = self._post(
                COMPLETIONS, {"prompt": [*tokens[:kept], another], "max_tokens": 1, "cache_prompt": True}
            )
            if isinstance(forgotten, Failure):
                return forgotten
        reply = self._post(COMPLETIONS, {"prompt": tokens, "max_tokens": 1, "cache_prompt": bool(kept)})
        if isinstance(reply, Failure):
            return reply
        self._held = tokens
        self.tokens_read += reply["timings"]["prompt_n"]
        self.tokens_kept += reply["timings"]["cache_n"]
        return None

    def _post(self, path: str, body: dict[str, Any]) -> Mapping[str, Any] | Failure:
        with closing(HTTPConnection(urlsplit(self._server.listening_address).netloc)) as connection:
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            reply: Mapping[str, Any] = json.loads(connection.getresponse().read())
        match reply.get("error"):
            case None:
                return reply
            case {"type": "exceed_context_size_error", "n_prompt_tokens": tokens, "n_ctx": context}:
                return Failure("prompt longer than the context", f"{tokens} tokens, context {context}")
            case refusal:
                return Failure("llama.cpp refused the request", str(refusal.get("message", refusal)))


shared = cache(LlamaCpp)
"""Several models of a run may use the same weights."""
