"""From a config to a running server, and from a signal to its end."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from prb.errors import BadInput, MissingExtra, PrbError
from prb.models import MODELS, is_remote
from prb.registry import Spec
from prb.serving.batching import Batcher, Limits, Score
from prb.serving.config import ServeConfig
from prb.text.pii import mask_query
from prb.types import Ask, Failure, RewardModel, Scorer

TOKEN = "PRB_SERVE_TOKEN"  # noqa: S105 - the variable's name
LAST_REPLIES = 10
"""Seconds that clients have to take the last replies."""


@dataclass(frozen=True)
class Ready:
    """What a server says of itself when it listens."""

    url: str
    model: str
    fingerprint: str


@dataclass(frozen=True)
class Served:
    """What it says when it has stopped."""

    scored: int
    failed: int


def serve(config: ServeConfig, *, model: RewardModel | None = None, ready: Callable[[Ready], None]) -> Served:
    """Listen until SIGINT or SIGTERM; `model` may be one of your own, called `config.model`."""
    uvicorn = _uvicorn()
    token = check(config, own=model is not None)
    with bind(config.host, config.port) as listener:
        address = listener.getsockname()
        if token is None and not ipaddress.ip_address(address[0]).is_loopback:
            raise BadInput(f"--host {config.host} can be reached from elsewhere: set {TOKEN} or --token-file")
        scorer = scorer_of(config, model or MODELS.make(config.model))
        from prb.serving.app import Metrics, Service, make_app

        metrics = Metrics()
        limits = Limits(
            window=config.window_ms / 1000, batch=config.batch, tokens=config.batch_tokens, queue=config.queue
        )
        batcher = Batcher(masking(scorer) if _masks(config, scorer) else scorer.score, limits, metrics.batch)
        service = Service(
            model=config.model,
            fingerprint=scorer.fingerprint,
            batcher=batcher,
            metrics=metrics,
            max_answers=config.max_answers,
            max_chars=config.max_chars,
        )
        at_once = config.queue + config.batch + 256
        app = make_app(service, token=token, max_body=config.max_body, at_once=at_once, docs=config.docs)
        told = Ready(_url(address), config.model, scorer.fingerprint)
        _run(uvicorn, app, listener, batcher, ready=lambda: ready(told))
    return Served(metrics.scored, metrics.failed)


def check(config: ServeConfig, *, own: bool = False) -> str | None:
    """Everything that can be wrong before a model is loaded; the token, if there is one."""
    for setting, least in (("batch", 1), ("batch_tokens", 1), ("max_answers", 1), ("max_chars", 1), ("max_body", 1)):
        if getattr(config, setting) < least:
            raise BadInput(f"--{setting.replace('_', '-')} {getattr(config, setting)}: wants {least} or more")
    if not 0 <= config.port <= 65_535:
        raise BadInput(f"--port {config.port}: wants 0 to 65535")
    if config.window_ms < 0:
        raise BadInput(f"--window-ms {config.window_ms}: wants 0 or more")
    if config.queue < config.max_answers:
        raise BadInput(f"--queue {config.queue} has no room for one request of --max-answers {config.max_answers}")
    if not own:
        MODELS.check(Spec.parse(config.model))
    return token_of(config)


def token_of(config: ServeConfig) -> str | None:
    if config.token_file is None:
        return os.environ.get(TOKEN, "").strip() or None
    try:
        token = config.token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file {config.token_file} cannot be read: {type(error).__name__}") from None
    if not token or any(c.isspace() for c in token):
        raise BadInput(f"--token-file {config.token_file} does not hold one token")
    return token


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its port and does not listen yet: a taken port is known before a model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return made


def scorer_of(config: ServeConfig, model: RewardModel) -> Scorer:
    if not isinstance(model, Scorer):
        raise BadInput(f"{config.model!r} only compares answers; a reward server needs a model that scores them")
    return model


def masking(model: Scorer) -> Score:
    """The model behind a mask for personal data, each query masked once a batch."""

    def score(asks: Sequence[Ask]) -> Sequence[float | Failure]:
        masked = {query: mask_query(query) for query in {ask.query for ask in asks}}
        return model.score([Ask(masked[ask.query], ask.answer) for ask in asks])

    return score


def _masks(config: ServeConfig, model: Scorer) -> bool:
    return config.mask_pii == "on" or (config.mask_pii == "auto" and is_remote(model))


def _run(uvicorn: Any, app: Any, listener: socket.socket, batcher: Batcher, *, ready: Callable[[], None]) -> None:
    class Server(uvicorn.Server):  # type: ignore[misc]
        """Stops in two steps: on a signal nothing new is accepted (503), and when all is answered it ends."""

        stopping = False

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()  # it listens, and a signal from now on is handled

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
            if self.stopping:  # twice: now
                self.force_exit = self.should_exit = True
            self.stopping = True

        async def on_tick(self, counter: int) -> bool:
            if self.stopping:
                batcher.close()
                self.should_exit = self.should_exit or batcher.idle
            stop: bool = await super().on_tick(counter)
            return stop

    settings = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=LAST_REPLIES,
    )
    server = Server(settings)
    server.run(sockets=[listener])
    if server.force_exit and not batcher.idle:
        raise PrbError("stopped at once: accepted requests were not answered")


def _url(address: Sequence[Any]) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError:
        raise MissingExtra("the reward server", "serve") from None
    return uvicorn
