"""A reward server on loopback that answers as vLLM 0.32, SGLang and `prb serve` do.

The replies of vLLM, errors included, were recorded from a real one (`make test-vllm` compares with it); those of SGLang
follow its source. The reward of a text is a function of its token ids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.llm.server import Reply as HttpReply
from tests.llm.server import Seen, Server

Json = dict[str, Any]
Reply = tuple[int, Any]
USAGE = {"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": None}
LIMIT = 512


def worth(ids: Sequence[int]) -> float:
    """Depends on every token and its place, is raw (beyond 0 and 1), and differs between most texts."""
    return sum((n % 13 + 1) * token for n, token in enumerate(ids)) % 9973 / 1000 - 5


@dataclass
class RewardServer:
    kind: str
    source: str
    """Folder of the tokenizer."""
    tokenizer: Any = None
    version: str = "0.32.0"
    model: str = "rm"
    reward: Callable[[Sequence[int]], float] = worth
    fault: Callable[[RewardServer, Json], Reply | None] = lambda *_: None
    """What to reply to a body instead; raising `ConnectionError` hangs up."""
    bodies: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = Server(self.reply)
        self.start, self.stop = self.http.start, self.http.stop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    def reply(self, seen: Seen) -> HttpReply:
        status, body = self.post(seen.path, seen.body) if seen.body else self.get(seen.path)
        return HttpReply(body if isinstance(body, bytes) else json.dumps(body).encode(), status)

    def get(self, path: str) -> Reply:
        known: dict[str, dict[str, Any]] = {
            "vllm": {
                "/version": {"version": self.version},
                "/v1/models": {
                    "object": "list",
                    "data": [{"id": self.model, "object": "model", "root": self.source, "max_model_len": LIMIT}],
                },
            },
            "sglang": {
                "/get_model_info": {"model_path": self.model, "tokenizer_path": self.source, "is_generation": False},
                "/get_server_info": {"version": "0.5.3", "dtype": "bfloat16", "context_length": LIMIT},
            },
            "prb": {"/info": {"server": "prb", "version": "1", "model": self.model, "fingerprint": "worth-1"}},
        }
        return (200, known[self.kind][path]) if path in known[self.kind] else (404, {"detail": "Not Found"})

    def post(self, path: str, body: Json) -> Reply:
        if path == "/tokenize" and self.kind == "vllm":
            return 200, {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        self.bodies.append(body)
        if special := self.fault(self, body):
            return special
        if self.kind == "vllm" and body.get("model") != self.model:
            return error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
        answered: Reply = getattr(self, f"_{self.kind}")(path, body)
        return answered

    def _scores(self, texts: Sequence[Any], *, soft: bool = False) -> list[float]:
        rewards = [self.reward(text) for text in texts]
        return [1 / (1 + 2.718281828459045**-reward) for reward in rewards] if soft else rewards

    def _vllm(self, path: str, body: Json) -> Reply:
        for ids in body["input"]:
            if len(ids) > LIMIT:
                message = f"This model's maximum context length is {LIMIT} tokens. However, your prompt contains more"
                return error(400, message, "BadRequestError")
        scores = self._scores(body["input"], soft=body.get("use_activation", True))
        if any(map(math.isnan, scores)):
            return error(400, "Out of range float values are not JSON compliant", "BadRequestError")
        rows: list[Json] = [
            {"index": n, "label": "LABEL_0", "probs": [x], "num_classes": 1} for n, x in enumerate(scores)
        ]
        return 200, {"id": "x", "object": "list", "created": 0, "model": self.model, "data": rows, "usage": USAGE}

    def _sglang(self, path: str, body: Json) -> Reply:
        scores = [None if math.isnan(x) else x for x in self._scores(inputs(body))]
        return 200, [{"embedding": [x], "meta_info": {"id": "x", "prompt_tokens": 5}} for x in scores]

    def _prb(self, path: str, body: Json) -> Reply:
        scores = [self.reward(list(answer.encode())) if answer.strip() else None for answer in body["answers"]]
        failures = ["empty answer" if score is None else None for score in scores]
        more = {"cut": [0] * len(scores), "model": self.model, "fingerprint": "worth-1"}
        return 200, {"scores": scores, "failures": failures, **more}


def inputs(body: Json) -> list[Any]:
    return next(body[name] for name in ("input", "input_ids", "answers") if name in body)


def error(status: int, message: str, kind: str) -> Reply:
    return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}


@contextmanager
def serve_rewards(server: RewardServer) -> Iterator[str]:
    """On a free port; yields its URL."""
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
