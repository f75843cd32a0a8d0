"""`prb serve`: from a config to a running reward server, and from a signal to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from prb.config import Count, MaskingConfig, Name, NonNegative, config
from prb.errors import BadInput, MissingExtra, PrbError
from prb.models import MODELS
from prb.registry import Spec
from prb.text.pii import mask_query
from prb.types import Ask, Failure, RewardModel, Scorer

TOKEN_VARIABLE = "PRB_SERVE_TOKEN"  # noqa: S105 - the name of a variable
SPARE_REQUESTS = 256
"""Requests beyond queue and batch whose bodies may still be arriving."""
Port = Annotated[int, Field(ge=0, le=65_535)]


@config
class ServeConfig(MaskingConfig):
    """Serve a reward model over HTTP: POST /v1/score, OpenRLHF's /get_reward, GET /healthz and /metrics."""

    verb: ClassVar[str] = "serve"

    model: Name
    """Model spec such as `embedding` or `classifier?path=…`: any model that scores answers, not one that only
    compares them."""
    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach requires a token."""
    port: Port = 8300
    """Port to listen on; 0 picks a free one."""
    token_file: Path | None = None
    """File with the bearer token that clients must send. Default: the environment variable PRB_SERVE_TOKEN."""
    window_ms: NonNegative = 10.0
    """How long a batch waits for more answers. A slow model waits up to a tenth of the batch's own time while more
    keep coming."""
    batch: Count = 256
    """Most answers per call of the model."""
    batch_tokens: Count = 65_536
    """Most tokens per call, estimated as characters / 4; what answers share counts once."""
    queue: Count = 1024
    """Most answers that may wait; further requests get status 429."""
    max_answers: Count = 256
    """Most answers per request."""
    max_chars: Count = 400_000
    """Most characters of a whole query, and of each answer."""
    max_body: Count = 8_000_000
    """Most bytes per request."""
    docs: bool = False
    """Show the API description at /docs and /openapi.json."""
    json: bool = False
    """Print one line of JSON with the URL when ready."""
    quiet: bool = False
    """Print nothing to stderr except errors."""

    @model_validator(mode="after")
    def check_queue(self) -> Self:
        if self.queue < self.max_answers:
            raise BadInput(f"--queue {self.queue} cannot hold one request of --max-answers {self.max_answers}")
        return self


@dataclass(frozen=True)
class Ready:
    """Reported once the server listens."""

    url: str
    model: str
    fingerprint: str


@dataclass(frozen=True)
class Served:
    """Reported when the server has stopped."""

    scored: int
    failed: int


def serve(config: ServeConfig, *, model: RewardModel | None = None, ready: Callable[[Ready], None]) -> Served:
    """Serve until SIGINT or SIGTERM; `model` may be an object of your own, reported as `config.model`."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("the reward server", "serve") from None
    from prb.serving import http
    from prb.serving.app import Metrics, Service, make_app
    from prb.serving.batching import Batcher, Limits

    if model is None:
        MODELS.check(Spec.parse(config.model))
    token = read_token(config)
    with http.bind(config.host, config.port) as listener:
        if token is None and not http.is_loopback(listener):
            raise BadInput(
                f"--host {config.host} can be reached from other machines: set {TOKEN_VARIABLE} or --token-file"
            )
        scorer = model or MODELS.make(config.model)
        if not isinstance(scorer, Scorer):
            raise BadInput(f"{config.model!r} only compares answers; a reward server needs a model that scores them")
        metrics = Metrics()
        limits = Limits(
            window=config.window_ms / 1000, batch=config.batch, tokens=config.batch_tokens, queue=config.queue
        )
        score = masked(scorer) if config.masks(scorer) else scorer.score
        batcher = Batcher(score, limits, metrics.count_batch)
        service = Service(
            model=config.model,
            fingerprint=scorer.fingerprint,
            batcher=batcher,
            metrics=metrics,
            max_answers=config.max_answers,
            max_chars=config.max_chars,
        )
        most_requests = config.queue + config.batch + SPARE_REQUESTS
        app = make_app(service, token=token, max_body=config.max_body, max_requests=most_requests, docs=config.docs)
        started = Ready(http.url_of(listener), config.model, scorer.fingerprint)
        if not http.serve_until_signal(app, listener, ready=lambda: ready(started), drained=batcher.drain):
            raise PrbError("stopped at once: accepted requests were not answered")
    return Served(metrics.scored, metrics.failed)


def read_token(config: ServeConfig) -> str | None:
    if config.token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        token = config.token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file {config.token_file} cannot be read: {type(error).__name__}") from None
    if not token or any(c.isspace() for c in token):
        raise BadInput(f"--token-file {config.token_file} must hold exactly one token")
    return token


def masked(model: Scorer) -> Callable[[Sequence[Ask]], Sequence[float | Failure]]:
    """The model behind a mask for personal data; each query is masked once per batch."""

    def score(asks: Sequence[Ask]) -> Sequence[float | Failure]:
        queries = {query: mask_query(query) for query in {ask.query for ask in asks}}
        return model.score([Ask(queries[ask.query], ask.answer) for ask in asks])

    return score
