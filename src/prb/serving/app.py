"""The HTTP side: routes, the guard before them, and numbers about both."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb import __version__
from prb.serving.batching import Batch, Batcher, Closing, Overloaded, where
from prb.serving.contracts import (
    Refused,
    RewardReply,
    RewardRequest,
    ScoreReply,
    ScoreRequest,
    explained,
    reply,
    reward_reply,
    within,
)
from prb.types import Ask, Failure

log = logging.getLogger("prb.serving")

GONE = 499
"""Nobody reads it: the client has left."""
BODY_SECONDS = 60.0
ROUTES = ("/v1/score", "/get_reward", "/healthz", "/metrics")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Gone(Exception):
    pass


class Metrics:
    """What Prometheus reads; no label holds a text."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("prb_requests", "Requests by route and status", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "prb_request_seconds", "From first byte to reply", ["route"], buckets=SECONDS, registry=registry
        )
        self.answers = Counter("prb_answers", "Answers that went through the model", ["result"], registry=registry)
        self.batch_answers = Histogram("prb_batch_answers", "Answers a batch", buckets=SIZES, registry=registry)
        self.batch_queries = Histogram("prb_batch_queries", "Queries a batch", buckets=SIZES, registry=registry)
        self.batch_seconds = Histogram(
            "prb_batch_seconds", "The model's time a batch", buckets=SECONDS, registry=registry
        )
        self.waiting = Gauge("prb_waiting_answers", "Answers in the queue", registry=registry)
        self.scored = self.failed = 0

    def batch(self, batch: Batch) -> None:
        self.scored += batch.answers - batch.failed
        self.failed += batch.failed
        self.answers.labels("scored").inc(batch.answers - batch.failed)
        self.answers.labels("failed").inc(batch.failed)
        self.batch_answers.observe(batch.answers)
        self.batch_queries.observe(batch.queries)
        self.batch_seconds.observe(batch.seconds)

    def request(self, path: str, status: int, seconds: float) -> None:
        route = path if path in ROUTES else "other"
        self.requests.labels(route, status).inc()
        self.request_seconds.labels(route).observe(seconds)


@dataclass(frozen=True, kw_only=True)
class Service:
    """All that the routes need."""

    model: str
    fingerprint: str
    batcher: Batcher
    metrics: Metrics
    max_answers: int
    max_chars: int

    async def said(self, asks: Sequence[Ask], request: Request) -> list[float | Failure]:
        """The model's word, unless the client leaves before; then what still waits is taken out."""
        asks = within(asks, answers=self.max_answers, chars=self.max_chars)
        scoring = asyncio.ensure_future(self.batcher.score(asks))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({scoring, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not scoring.done():
                raise Gone
            return scoring.result()
        except asyncio.CancelledError:  # the server ends without waiting
            raise Closing from None
        finally:
            leaving.cancel()
            scoring.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(service: Service, *, token: str | None, max_body: int, at_once: int, docs: bool = False) -> ASGIApp:
    shown: dict[str, Any] = {} if docs else {"docs_url": None, "openapi_url": None}
    app = FastAPI(title="prb serve", version=__version__, redoc_url=None, **shown)
    _add_routes(app, service)
    _add_errors(app)
    return Guard(app, service, token=token, max_body=max_body, at_once=at_once)


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/score")
    async def score(body: ScoreRequest, request: Request) -> ScoreReply:
        """How good each answer is for this person: higher is better, null and a reason where there is no score."""
        said = await service.said(body.asks(), request)
        return reply(said, partial=body.partial, model=service.model, fingerprint=service.fingerprint)

    @app.post("/get_reward")
    async def get_reward(body: RewardRequest, request: Request) -> RewardReply:
        """The same for OpenRLHF's `--remote_rm_url`."""
        return reward_reply(await service.said(body.asks(), request))

    @app.get("/healthz")
    async def healthz() -> Response:
        closing = service.batcher.closing
        return JSONResponse({"status": "stopping" if closing else "ok"}, 503 if closing else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        service.metrics.waiting.set(service.batcher.waiting)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return problem(error.status, error.reason, failures=error.failures)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        if "json" not in request.headers.get("content-type", ""):
            return problem(415, "send JSON, with the header Content-Type: application/json")
        unreadable = error.errors()[0]["type"] == "json_invalid"
        return problem(400 if unreadable else 422, explained(error.errors()))

    @app.exception_handler(Overloaded)
    async def overloaded(_: Request, error: Overloaded) -> Response:
        return problem(429, str(error), {"Retry-After": str(error.seconds)})

    @app.exception_handler(Closing)
    async def closing(_: Request, error: Closing) -> Response:
        return problem(503, str(error), {"Retry-After": "5", "Connection": "close"})

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> Response:
        return problem(500, "internal error")

    @app.exception_handler(AnyHTTPException)
    async def other(_: Request, error: AnyHTTPException) -> Response:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))


def problem(
    status: int, reason: str, headers: dict[str, str] | None = None, failures: Sequence[str | None] | None = None
) -> Response:
    return JSONResponse({"error": reason} | ({"failures": failures} if failures else {}), status, headers)


class Guard:
    """Before every route: the token, a free place, a body of bearable size that comes in time; after it: the count."""

    def __init__(self, app: ASGIApp, service: Service, *, token: str | None, max_body: int, at_once: int) -> None:
        self._app, self._service, self._max_body = app, service, max_body
        self._at_once, self._under_way = at_once, 0  # bodies that are still coming are in no queue yet
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._under_way += 1
        try:
            app = self._refusal(scope) or self._app
            await app(scope, Body(receive, self._max_body), noting)
        except Exception as error:
            # the reply is already made; the message may hold texts and stays out of the log
            log.error("a request failed: %s", where(error))
        finally:
            self._under_way -= 1
            self._service.metrics.request(scope["path"], status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why this request is not even read."""
        headers = dict(scope["headers"])
        if scope["path"] != "/healthz" and not authorized(headers.get(b"authorization", b""), self._token):
            return problem(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        size = headers.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self._max_body:
            return problem(413, f"a body of {int(size)} bytes; at most {self._max_body}")
        if scope["method"] == "POST":
            try:
                self._service.batcher.check(1)
                if self._under_way > self._at_once:
                    raise Overloaded(1)
            except Overloaded as error:
                return problem(429, str(error), {"Retry-After": str(error.seconds)})
            except Closing as error:
                return problem(503, str(error), {"Retry-After": "5", "Connection": "close"})
        return None


class Body:
    """The receiving end of a request that counts what comes and does not wait forever."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._size, self._complete = 0, False
        self._end = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Message:
        if self._complete:  # what comes now is that the client leaves
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time", {"Connection": "close"}) from None
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size > self._limit:
            raise HTTPException(413, f"a body of more than {self._limit} bytes", {"Connection": "close"})
        return message


def authorized(header: bytes, token: bytes | None) -> bool:
    """`Bearer TOKEN`, or Basic with the token as password: what clients send whose URL is `http://prb:TOKEN@host`."""
    if token is None:
        return True
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), token)
