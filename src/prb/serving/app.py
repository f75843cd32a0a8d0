"""The reward server's HTTP interface: `/v1/score`, `/get_reward` (OpenRLHF), `/info`, `/healthz` and metrics."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb import __version__
from prb.serving.http import LOOPBACK_NAMES, BodyLimit, SecurityHeaders
from prb.serving.server import MODEL_ERROR, Batcher, Limits, Overloaded, place_of, query_length
from prb.types import Ask, Choice, Failure, Post, Query, Reward, Role, Turn

log = logging.getLogger("prb.serving")

OPENRLHF_PATIENCE = 120.0
"""Seconds that its requests wait for room in the queue. OpenRLHF retries only five times, a second apart, before it
aborts the training, but waits three minutes for a reply. Other clients get status 429 with Retry-After."""
ROUTES = ("/v1/score", "/get_reward", "/info", "/healthz", "/metrics")


# --- requests and replies: ours and OpenRLHF's ---
END_MARKERS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "<|end|>",
    "</s>",
)
"""Special tokens after an answer; OpenRLHF does not strip them."""
T = TypeVar("T")
Many = Annotated[list[T], msgspec.Meta(max_length=10_000)]
Answers = Annotated[list[str], msgspec.Meta(min_length=1)]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A misspelled field would silently hide the user from the model. No field holds a rubric or narrative."""


class PostIn(Strict):
    text: str
    id: str | None = None
    category: str = ""


class ChoiceIn(Strict):
    question: str
    chosen: str
    rejected: str


class TurnIn(Strict):
    role: Role
    text: str


class QueryIn(Strict):
    """All that the model may see."""

    question: str
    user: str | None = None
    context: Many[TurnIn] = []
    """The turns before the question, oldest first."""
    choices: Many[ChoiceIn] = []
    """What the user preferred before, oldest first."""
    posts: Many[PostIn | str] = []
    """The user's past posts, oldest first, as strings or as objects with a `text`."""
    plan: Many[str] = []
    """What this user probably wants, one aspect per entry."""

    def query(self) -> Query:
        posts = [PostIn(text=post) if isinstance(post, str) else post for post in self.posts]
        numbered = tuple(Post(str(n) if p.id is None else p.id, p.category, p.text) for n, p in enumerate(posts, 1))
        return Query(
            question=self.question,
            user=self.user,
            context=tuple(Turn(turn.role, turn.text) for turn in self.context),
            posts=numbered,
            choices=tuple(Choice(c.question, c.chosen, c.rejected) for c in self.choices),
            plan=tuple(self.plan),
        )


class ScoreRequest(Strict):
    query: QueryIn
    answers: Answers
    partial: bool = False
    """Return the scores there are, with a reason where one is missing; otherwise one failure fails the request."""

    def asks(self) -> list[Ask]:
        query = self.query.query()
        return [Ask(query, answer) for answer in self.answers]


class RewardRequest(msgspec.Struct):
    """OpenRLHF's: whole texts, the prompts they begin with, and the dataset's label column."""

    query: Answers
    prompts: list[str]
    labels: list[str]
    """Queries of `/v1/score`, as JSON text."""

    def asks(self) -> list[Ask]:
        if not len(self.query) == len(self.prompts) == len(self.labels):
            raise HTTPException(422, "query, prompts and labels must have the same length")
        asks = []
        for n, (text, prompt, label) in enumerate(zip(self.query, self.prompts, self.labels, strict=True)):
            if not text.startswith(prompt):
                raise HTTPException(422, f"query.{n} does not begin with prompts.{n}")
            try:  # an invalid label is an error: without the user it would be a different question
                query = msgspec.json.decode(label, type=QueryIn)
            except msgspec.DecodeError as error:
                raise HTTPException(422, f"labels.{n} is not a query: {error}") from None
            asks.append(Ask(query.query(), without_end(text.removeprefix(prompt))))
        return asks


def without_end(answer: str) -> str:
    """An answer without the markers and blanks it ends with, however many there are."""
    end = len(answer)
    while end:
        if answer[end - 1].isspace():
            end -= 1
        elif marker := next((marker for marker in END_MARKERS if answer.endswith(marker, 0, end)), ""):
            end -= len(marker)
        else:
            break
    return answer[:end]


Body = TypeVar("Body", ScoreRequest, RewardRequest)


async def read_body(kind: type[Body], request: Request, limits: Limits) -> tuple[Body, list[Ask]]:
    """A request and its asks."""
    # a web page may send other types to any address without asking first
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON, with the header Content-Type: application/json")
    content = await request.body()
    try:
        body = msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise HTTPException(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"not JSON: {error}") from None
    asks = body.asks()
    if len(asks) > limits.answers:
        raise HTTPException(413, f"{len(asks)} answers in one request; at most {limits.answers}")
    query_chars = max(query_length(query) for query in {ask.query for ask in asks})
    answer_chars = max(len(ask.answer) for ask in asks)
    for what, length in (("a query", query_chars), ("an answer", answer_chars)):
        if length > limits.chars:
            raise HTTPException(413, f"{what} of {length} characters; at most {limits.chars}")
    return body, asks


def all_scores(results: Sequence[float | Failure]) -> list[float]:
    """The scores, if none is missing. 422: the model has no score for this text. 502: the model raised."""
    failures = [result for result in results if isinstance(result, Failure)]
    if failures:
        status = 502 if any(failure.reason == MODEL_ERROR for failure in failures) else 422
        reason = f"no score for {len(failures)} of {len(results)} answers: {failures[0]}"
        raise HTTPException(status, {"error": reason, "failures": reasons(results)})  # type: ignore[arg-type]
    return [float(result) for result in results if not isinstance(result, Failure)]


def reasons(results: Sequence[float | Failure]) -> list[str | None]:
    return [str(result) if isinstance(result, Failure) else None for result in results]


def cuts(results: Sequence[float | Failure]) -> list[int]:
    """How many posts, choices and turns were left out because they did not fit the model's context."""
    return [result.cut if isinstance(result, Reward) else 0 for result in results]


# --- the app ---
class Metrics:
    """For Prometheus; no label holds text from a request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("prb_requests", "Requests by route and status", ["route", "status"], registry=registry)
        self.answers = Counter("prb_answers", "Answers that went through the model", ["result"], registry=registry)
        self.batch_seconds = Histogram("prb_batch_seconds", "The model's time per batch", registry=registry)
        self.waiting = Gauge("prb_waiting_answers", "Answers in the queue", registry=registry)

    def count_batch(self, answers: int, failed: int, seconds: float) -> None:
        self.answers.labels("scored").inc(answers - failed)
        self.answers.labels("failed").inc(failed)
        self.batch_seconds.observe(seconds)


@dataclass(frozen=True)
class Service:
    model: str
    fingerprint: str
    batcher: Batcher
    metrics: Metrics
    limits: Limits

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
                raise ClientDisconnect
            return scoring.result()
        except Overloaded as error:
            raise HTTPException(429, str(error), {"Retry-After": str(error.seconds)}) from None
        except asyncio.CancelledError:  # a second signal: the server ends without waiting
            raise HTTPException(503, "the server is stopping") from None
        finally:
            leaving.cancel()
            scoring.cancel()


def make_app(service: Service, *, token: str | None, hosts: Sequence[str] = ()) -> ASGIApp:
    """The app; without a token, only requests that name one of `hosts` or this machine are served."""
    app = FastAPI(title="prb serve", openapi_url=None)
    about = {"model": service.model, "fingerprint": service.fingerprint}

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        """How good each answer is for this user: higher is better; null and a reason where there is no score."""
        body, asks = await read_body(ScoreRequest, request, service.limits)
        results = await service.score(asks, request)
        if not body.partial:
            all_scores(results)
        scores = [None if isinstance(result, Failure) else float(result) for result in results]
        return JSONResponse({"scores": scores, "failures": reasons(results), "cut": cuts(results), **about})

    @app.post("/get_reward")
    async def get_reward(request: Request) -> Response:
        """The same for OpenRLHF's `--remote_rm_url`."""
        _, asks = await read_body(RewardRequest, request, service.limits)
        results = await service.score(asks, request, OPENRLHF_PATIENCE)
        scores = all_scores(results)
        extra_logs = {"cut": [float(cut) for cut in cuts(results)]}
        return JSONResponse({"rewards": scores, "scores": scores, "extra_logs": extra_logs})

    @app.get("/info")
    async def info() -> dict[str, str]:
        """What is served; models with equal fingerprints give equal scores."""
        return {"server": "prb", "version": __version__, **about}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        service.metrics.waiting.set(service.batcher.waiting)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for kind in (ClientDisconnect, HTTPException, Exception):
        app.add_exception_handler(kind, explain)
    return SecurityHeaders(Guard(app, service, token=token, hosts=hosts))


async def explain(_: Request, error: Exception) -> Response:
    """Every error as a reply that says what is wrong and, where it helps, when to retry."""
    match error:
        case HTTPException():
            return refusal(error.status_code, error.detail, error.headers)
        case ClientDisconnect():
            return Response(status_code=499)  # seen only in metrics
    return refusal(500, "internal error")


def refusal(status: int, reason: Any, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(reason if isinstance(reason, dict) else {"error": reason}, status, headers)


class Guard:
    """Checks host, token and headers before a body is read; counts every request."""

    def __init__(self, app: ASGIApp, service: Service, *, token: str | None, hosts: Sequence[str]) -> None:
        self._app, self._metrics = BodyLimit(app, max_bytes=service.limits.body), service.metrics
        self._token = token.encode() if token else None
        self._hosts = {*LOOPBACK_NAMES, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 500
        route = scope["path"] if scope["path"] in ROUTES else "other"

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            refused = self._refused(Headers(scope=scope), route)
            await (refused or self._app)(scope, receive, note_status)
        except Exception as error:
            # the client has its reply; the message may quote users' texts and stays out of the log
            log.error("a request failed: %s", place_of(error))
        finally:
            self._metrics.requests.labels(route, status).inc()

    def _refused(self, headers: Headers, route: str) -> Response | None:
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname  # without the port
        except ValueError:
            host = None
        if self._token is None and host not in self._hosts:
            # a web page whose name was pointed at this machine (DNS rebinding) sends its own name
            return refusal(403, "this Host is not served; use 127.0.0.1, or start the server with a token")
        authorization = headers.get("authorization", "").encode("latin-1")
        if route != "/healthz" and not has_token(authorization, self._token):
            return refusal(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})
        if "content-length" in headers and "transfer-encoding" in headers:  # proxies disagree on where it ends
            return refusal(400, "send either Content-Length or Transfer-Encoding, not both", {"Connection": "close"})
        return None


def has_token(authorization: bytes, token: bytes | None) -> bool:
    """`Bearer TOKEN`, or Basic with the token as password, which clients send for URLs like `http://prb:TOKEN@host`."""
    if token is None:
        return True
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), token)
