"""The reward server's HTTP interface: `/v1/score`, `/get_reward` (OpenRLHF), `/classify` (vLLM), and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb import __version__
from prb.serving.bodies import (
    Body,
    ClassifyReply,
    ClassifyRequest,
    Refused,
    RewardReply,
    RewardRequest,
    ScoreReply,
    ScoreRequest,
    classify_reply,
    first_problem,
    read_body,
    reward_reply,
    score_reply,
)
from prb.serving.http import BodyLimit, SecurityHeaders, has_token
from prb.serving.server import Batcher, BatchReport, Closing, Overloaded, place_of
from prb.types import Ask, Failure

log = logging.getLogger("prb.serving")

CLIENT_LEFT = 499
"""Seen only in metrics."""
PATIENCE = {"/get_reward": 120.0}
"""Seconds that a request waits for room in the queue. OpenRLHF retries only five times, a second apart, before it
aborts the training, but waits three minutes for a reply. Other clients get status 429 with Retry-After."""
ROUTES = ("/v1/score", "/get_reward", "/classify", "/info", "/healthz", "/metrics")
BODY_READERS = ThreadPoolExecutor(4, "body")
"""Parse bodies: a large one does not block the event loop, and only a few are in memory as objects at once."""
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ClientLeft(Exception):
    pass


class Metrics:
    """For Prometheus; no label holds text from a request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self.requests = Counter("prb_requests", "Requests by route and status", ["route", "status"], registry=registry)
        self.request_seconds = histogram("prb_request_seconds", "From first byte to reply", SECONDS_BUCKETS, ["route"])
        self.answers = Counter("prb_answers", "Answers that went through the model", ["result"], registry=registry)
        self.batch_answers = histogram("prb_batch_answers", "Answers per batch", SIZE_BUCKETS)
        self.batch_queries = histogram("prb_batch_queries", "Queries per batch", SIZE_BUCKETS)
        self.batch_seconds = histogram("prb_batch_seconds", "The model's time per batch", SECONDS_BUCKETS)
        self.waiting = Gauge("prb_waiting_answers", "Answers in the queue", registry=registry)
        self.scored = self.failed = 0

    def count_batch(self, batch: BatchReport) -> None:
        self.scored += batch.answers - batch.failed
        self.failed += batch.failed
        self.answers.labels("scored").inc(batch.answers - batch.failed)
        self.answers.labels("failed").inc(batch.failed)
        self.batch_answers.observe(batch.answers)
        self.batch_queries.observe(batch.queries)
        self.batch_seconds.observe(batch.seconds)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        route = path if path in ROUTES else "other"
        self.requests.labels(route, status).inc()
        self.request_seconds.labels(route).observe(seconds)


@dataclass(frozen=True, kw_only=True)
class Service:
    model: str
    fingerprint: str
    batcher: Batcher
    metrics: Metrics
    max_answers: int
    max_chars: int

    async def read(self, kind: type[Body], request: Request) -> tuple[Body, list[Ask]]:
        if "json" not in request.headers.get("content-type", ""):
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        read = partial(read_body, kind, await request.body(), max_answers=self.max_answers, max_chars=self.max_chars)
        return await asyncio.get_running_loop().run_in_executor(BODY_READERS, read)

    async def score(self, asks: Sequence[Ask], request: Request, patience: float = 0.0) -> list[float | Failure]:
        """The model's results. If the client leaves first, its answers are removed from the queue."""

        async def until_client_leaves() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        scoring = asyncio.ensure_future(self.batcher.score(asks, patience))
        leaving = asyncio.ensure_future(until_client_leaves())
        try:
            await asyncio.wait({scoring, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not scoring.done():
                raise ClientLeft
            return scoring.result()
        except asyncio.CancelledError:  # the server ends without waiting
            raise Closing from None
        finally:
            leaving.cancel()
            scoring.cancel()


def make_app(service: Service, *, token: str | None, max_body: int, max_requests: int, docs: bool = False) -> ASGIApp:
    hidden: dict[str, Any] = {} if docs else {"docs_url": None, "openapi_url": None}
    app = FastAPI(title="prb serve", version=__version__, redoc_url=None, **hidden)

    @app.post("/v1/score", openapi_extra=described("/v1/score", ScoreRequest))
    async def score(request: Request) -> ScoreReply:
        """How good each answer is for this user: higher is better; null and a reason where there is no score."""
        body, asks = await service.read(ScoreRequest, request)
        results = await service.score(asks, request)
        return score_reply(results, partial=body.partial, model=service.model, fingerprint=service.fingerprint)

    @app.post("/get_reward", openapi_extra=described("/get_reward", RewardRequest))
    async def get_reward(request: Request) -> RewardReply:
        """The same for OpenRLHF's `--remote_rm_url`."""
        _, asks = await service.read(RewardRequest, request)
        return reward_reply(await service.score(asks, request, PATIENCE["/get_reward"]))

    @app.post("/classify", openapi_extra=described("/classify", ClassifyRequest))
    async def classify(request: Request) -> ClassifyReply:
        """The same in the format of vLLM's `/classify`, for clients written for it."""
        body, asks = await service.read(ClassifyRequest, request)
        results = await service.score(asks, request)
        return classify_reply(results, use_activation=body.use_activation, model=service.model)

    @app.get("/info")
    async def info() -> dict[str, str]:
        """What is served; models with equal fingerprints give equal scores."""
        model = {"model": service.model, "fingerprint": service.fingerprint}
        return {"server": "prb", "version": __version__, **model}

    @app.get("/healthz")
    async def healthz() -> Response:
        closing = service.batcher.closing
        return JSONResponse({"status": "stopping" if closing else "ok"}, 503 if closing else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        service.metrics.waiting.set(service.batcher.waiting)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for kind in (Refused, ValidationError, Overloaded, Closing, ClientLeft, HTTPException, Exception):
        app.add_exception_handler(kind, explain)
    return SecurityHeaders(Guard(app, service, token=token, max_body=max_body, max_requests=max_requests))


def described(route: str, body: type[BaseModel]) -> dict[str, Any]:
    """The body of a route in the API description. As a parameter, FastAPI would validate it in the event loop."""
    reference = f"#/paths/{route.replace('/', '~1')}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    schema = body.model_json_schema(ref_template=reference)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problem(
    status: int, reason: str, headers: dict[str, str] | None = None, failures: Sequence[str | None] | None = None
) -> Response:
    return JSONResponse({"error": reason} | ({"failures": failures} if failures else {}), status, headers)


async def explain(_: Request | None, error: Exception) -> Response:  # noqa: PLR0911 - one per kind of error
    """Every error as a reply that says what is wrong and, where it helps, when to retry."""
    match error:
        case Refused():
            return problem(error.status, error.reason, failures=error.failures)
        case ValidationError():
            errors = error.errors(include_url=False, include_input=False)
            return problem(400 if errors[0]["type"] == "json_invalid" else 422, first_problem(errors))
        case Overloaded():
            return problem(429, str(error), {"Retry-After": str(error.seconds)})
        case Closing():
            return problem(503, str(error), {"Retry-After": "5", "Connection": "close"})
        case ClientLeft():
            return Response(status_code=CLIENT_LEFT)
        case HTTPException():
            return problem(error.status_code, str(error.detail), dict(error.headers or {}))
        case _:
            return problem(500, "internal error")


class Guard:
    """Checks the token, room in the queue and the body's size before every route; counts every request."""

    def __init__(self, app: ASGIApp, service: Service, *, token: str | None, max_body: int, max_requests: int) -> None:
        self._app, self._service = BodyLimit(app, max_bytes=max_body), service
        self._max_body = max_body
        self._max_requests, self._requests = max_requests, 0  # bodies still arriving are in no queue yet
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started, status = time.perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._requests += 1
        try:
            app = await self._refusal(scope) or self._app
            await app(scope, receive, note_status)
        except Exception as error:
            # the client has its reply; the message may quote users' texts and stays out of the log
            log.error("a request failed: %s", place_of(error))
        finally:
            self._requests -= 1
            self._service.metrics.count_request(scope["path"], status, time.perf_counter() - started)

    async def _refusal(self, scope: Scope) -> Response | None:
        """The reply to a request whose body is not read."""
        headers = dict(scope["headers"])
        if scope["path"] != "/healthz" and not has_token(headers.get(b"authorization", b""), self._token):
            return problem(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self._max_body:
            return problem(413, f"a body of {int(size)} bytes; at most {self._max_body}")
        if scope["method"] == "POST":
            try:
                await self._service.batcher.wait_for_room(1, PATIENCE.get(scope["path"], 0.0))
                if self._requests > self._max_requests:
                    raise Overloaded(1)
            except (Overloaded, Closing) as error:
                return await explain(None, error)
        return None
