"""The reward server's HTTP interface: `/v1/score`, `/get_reward` (OpenRLHF), `/classify` (vLLM), and metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, field_validator, model_validator
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prb import __version__
from prb.serving.http import LOOPBACK_NAMES, BodyLimit, SecurityHeaders, has_token, host_name
from prb.serving.server import MODEL_ERROR, Batcher, Limits, Overloaded, place_of, query_length
from prb.types import Ask, Choice, Failure, Post, Query, Reward, Role, Turn

log = logging.getLogger("prb.serving")

CLIENT_LEFT = 499
"""Seen only in metrics."""
OPENRLHF_PATIENCE = 120.0
"""Seconds that its requests wait for room in the queue. OpenRLHF retries only five times, a second apart, before it
aborts the training, but waits three minutes for a reply. Other clients get status 429 with Retry-After."""
ROUTES = ("/v1/score", "/get_reward", "/classify", "/info", "/healthz", "/metrics")
MOST_ANSWERS = 100_000
"""Entries of a list of answers that are read at all, before they are counted."""
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Refused(Exception):
    """Ends a request without scores."""

    def __init__(
        self,
        status: int,
        reason: str,
        headers: Mapping[str, str] | None = None,
        failures: Sequence[str | None] | None = None,
    ) -> None:
        super().__init__(reason)
        self.status, self.headers = status, headers
        self.content = {"error": reason} | ({"failures": failures} if failures else {})


class Metrics:
    """For Prometheus; no label holds text from a request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        histogram = partial(Histogram, registry=registry)
        self.requests = Counter("prb_requests", "Requests by route and status", ["route", "status"], registry=registry)
        self.request_seconds = histogram(
            "prb_request_seconds", "From first byte to reply", ["route"], buckets=SECONDS_BUCKETS
        )
        self.answers = Counter("prb_answers", "Answers that went through the model", ["result"], registry=registry)
        self.batch_answers = histogram("prb_batch_answers", "Answers per batch", buckets=SIZE_BUCKETS)
        self.batch_queries = histogram("prb_batch_queries", "Queries per batch", buckets=SIZE_BUCKETS)
        self.batch_seconds = histogram("prb_batch_seconds", "The model's time per batch", buckets=SECONDS_BUCKETS)
        self.waiting = Gauge("prb_waiting_answers", "Answers in the queue", registry=registry)
        self.scored = self.failed = 0

    def count_batch(self, *, answers: int, queries: int, failed: int, seconds: float) -> None:
        self.scored += answers - failed
        self.failed += failed
        self.answers.labels("scored").inc(answers - failed)
        self.answers.labels("failed").inc(failed)
        self.batch_answers.observe(answers)
        self.batch_queries.observe(queries)
        self.batch_seconds.observe(seconds)


@dataclass(frozen=True)
class Service:
    model: str
    fingerprint: str
    batcher: Batcher
    metrics: Metrics
    limits: Limits

    async def read(self, kind: type[Body], request: Request) -> tuple[Body, list[Ask]]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "send JSON, with the header Content-Type: application/json")
        # in a thread: a large body must not block the event loop
        return await run_in_threadpool(read_body, kind, await request.body(), self.limits)

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
        except asyncio.CancelledError:  # a second signal: the server ends without waiting
            raise Refused(503, "the server is stopping") from None
        finally:
            leaving.cancel()
            scoring.cancel()


def make_app(service: Service, *, token: str | None, hosts: Sequence[str] = ()) -> ASGIApp:
    """The app; without a token, only requests that name one of `hosts` or this machine are served."""
    app = FastAPI(title="prb serve", version=__version__, docs_url=None, redoc_url=None)

    @app.post("/v1/score", openapi_extra=described("/v1/score", ScoreRequest))
    async def score(request: Request) -> ScoreReply:
        """How good each answer is for this user: higher is better; null and a reason where there is no score."""
        body, asks = await service.read(ScoreRequest, request)
        results = await service.score(asks, request)
        if not body.partial:
            all_scores(results)
        return ScoreReply(
            scores=[None if isinstance(result, Failure) else float(result) for result in results],
            failures=reasons(results),
            cut=cuts(results),
            model=service.model,
            fingerprint=service.fingerprint,
        )

    @app.post("/get_reward", openapi_extra=described("/get_reward", RewardRequest))
    async def get_reward(request: Request) -> dict[str, Any]:
        """The same for OpenRLHF's `--remote_rm_url`."""
        _, asks = await service.read(RewardRequest, request)
        results = await service.score(asks, request, OPENRLHF_PATIENCE)
        scores = all_scores(results)
        return {"rewards": scores, "scores": scores, "extra_logs": {"cut": [float(cut) for cut in cuts(results)]}}

    @app.post("/classify", openapi_extra=described("/classify", ClassifyRequest))
    async def classify(request: Request) -> dict[str, Any]:
        """The same in the format of vLLM's `/classify`, for clients written for it."""
        body, asks = await service.read(ClassifyRequest, request)
        results = await service.score(asks, request)
        scores = all_scores(results)
        if body.use_activation:
            scores = [1 / (1 + math.exp(-score)) if score > -700 else 0.0 for score in scores]
        tokens = sum(result.tokens for result in results if isinstance(result, Reward))
        return {
            "id": f"classify-{uuid4().hex[:16]}",
            "object": "list",
            "created": int(time.time()),
            "model": service.model,
            "data": [
                {"index": n, "label": "LABEL_0", "probs": [score], "num_classes": 1} for n, score in enumerate(scores)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        }

    @app.get("/info")
    async def info() -> dict[str, str]:
        """What is served; models with equal fingerprints give equal scores."""
        model = {"model": service.model, "fingerprint": service.fingerprint}
        return {"server": "prb", "version": __version__, **model}

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        service.metrics.waiting.set(service.batcher.waiting)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for kind in (Refused, ValidationError, Overloaded, ClientDisconnect, HTTPException, Exception):
        app.add_exception_handler(kind, explain)
    return SecurityHeaders(Guard(app, service, token=token, hosts=hosts))


def described(route: str, body: type[BaseModel]) -> dict[str, Any]:
    """The body of a route in the API description. As a parameter, FastAPI would validate it in the event loop."""
    reference = f"#/paths/{route.replace('/', '~1')}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    schema = body.model_json_schema(ref_template=reference)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def explain(_: Request, error: Exception) -> Response:
    """Every error as a reply that says what is wrong and, where it helps, when to retry."""
    match error:
        case Refused():
            refusal = error
        case ValidationError():
            problem = error.errors(include_url=False, include_input=False)[0]
            refusal = Refused(400 if problem["type"] == "json_invalid" else 422, place_and_reason(problem))
        case Overloaded():
            refusal = Refused(429, str(error), {"Retry-After": str(error.seconds)})
        case ClientDisconnect():
            return Response(status_code=CLIENT_LEFT)
        case HTTPException():
            refusal = Refused(error.status_code, str(error.detail), error.headers)
        case _:
            refusal = Refused(500, "internal error")
    return JSONResponse(refusal.content, refusal.status, refusal.headers)


class Guard:
    """Checks host, token and headers before a body is read; counts every request."""

    def __init__(self, app: ASGIApp, service: Service, *, token: str | None, hosts: Sequence[str]) -> None:
        self._app, self._metrics = BodyLimit(app, max_bytes=service.limits.body), service.metrics
        self._token = token.encode() if token else None
        self._hosts = {*LOOPBACK_NAMES, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started, status = time.perf_counter(), 500
        headers, route = Headers(scope=scope), scope["path"] if scope["path"] in ROUTES else "other"

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if self._token is None and host_name(headers.get("host", "")) not in self._hosts:
                # a web page whose name was pointed at this machine (DNS rebinding) sends its own name
                raise Refused(403, "this Host is not served; use 127.0.0.1, or start the server with a token")
            authorization = headers.get("authorization", "").encode("latin-1")
            if route != "/healthz" and not has_token(authorization, self._token):
                raise Refused(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})
            if "content-length" in headers and "transfer-encoding" in headers:  # proxies disagree on where it ends
                reason = "send either Content-Length or Transfer-Encoding, not both"
                raise Refused(400, reason, {"Connection": "close"})
            await self._app(scope, receive, note_status)
        except Refused as refusal:
            await JSONResponse(refusal.content, refusal.status, refusal.headers)(scope, receive, note_status)
        except Exception as error:
            # the client has its reply; the message may quote users' texts and stays out of the log
            log.error("a request failed: %s", place_of(error))
        finally:
            self._metrics.requests.labels(route, status).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - started)


# --- requests and replies of the three formats: ours, OpenRLHF's and vLLM's ---
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
ENDING_REVERSED = re.compile(rf"(?:\s++|{'|'.join(re.escape(marker[::-1]) for marker in END_MARKERS)})*+")
"""Matched against a reversed answer, so that any number of markers takes one pass."""
TURNS = (
    ("<|im_start|>", "\n", "<|im_end|>"),
    ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<start_of_turn>", "\n", "<end_of_turn>"),
)
"""What chat templates put before a turn's role, before its text and after it: ChatML, Llama 3, Gemma."""
BETWEEN_TURNS = re.compile(r"(?:\s++|<\|begin_of_text\|>|<bos>|<s>|</s>|<\|endoftext\|>|<\|end_of_text\|>|<eos>)*+")
EMPTY_THINKING = re.compile(r"\A\s*+<think>\s*+</think>")
"""Templates of reasoning models put this before an answer that was given without reasoning."""
T = TypeVar("T")
Many = Annotated[list[T], FailFast()]
"""Only the first invalid entry is reported; collecting millions of errors would take gigabytes."""
Answers = Annotated[Many[str], Field(min_length=1, max_length=MOST_ANSWERS)]


class Strict(BaseModel):
    """A misspelled field would silently hide the user from the model. No field holds a rubric or narrative."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def report_one_unknown_field(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        unknown = next(name for name in value if name not in cls.model_fields)
        return {name: value[name] for name in (*cls.model_fields, unknown) if name in value}


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
    context: Many[TurnIn] = Field(default=[], max_length=1_000)
    """The turns before the question, oldest first."""
    choices: Many[ChoiceIn] = Field(default=[], max_length=1_000)
    """What the user preferred before, oldest first."""
    posts: Many[PostIn | str] = Field(default=[], max_length=10_000)
    """The user's past posts, oldest first, as strings or as objects with a `text`."""
    plan: Many[str] = Field(default=[], max_length=1_000)
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


class RewardRequest(BaseModel):
    """OpenRLHF's: whole texts, the prompts they begin with, and the dataset's label column."""

    query: Answers
    prompts: Many[str]
    labels: Many[str | dict[str, Any]]
    """A query of `/v1/score`, as JSON text or an object."""

    def asks(self) -> list[Ask]:
        if not len(self.query) == len(self.prompts) == len(self.labels):
            raise Refused(422, "query, prompts and labels must have the same length")
        asks = []
        for n, (text, prompt, label) in enumerate(zip(self.query, self.prompts, self.labels, strict=True)):
            if not text.startswith(prompt):
                raise Refused(422, f"query.{n} does not begin with prompts.{n}, so the answer cannot be separated")
            answer = text.removeprefix(prompt)
            ending = ENDING_REVERSED.match(answer[::-1])
            answer = answer[: len(answer) - (ending.end() if ending else 0)]
            try:  # an invalid label is an error: without the user it would be a different question
                query = QueryIn.model_validate_json(label) if isinstance(label, str) else QueryIn.model_validate(label)
            except ValidationError as error:
                raise Refused(422, f"labels.{n} is not a query: {place_and_reason(error.errors()[0])}") from None
            asks.append(Ask(query.query(), answer))
        return asks


class MessageIn(BaseModel):
    role: Role
    content: str


class ClassifyRequest(BaseModel):
    """vLLM's `/classify`: chats rendered by a chat template, or one chat as messages. The last turn is the answer.
    vLLM's other fields are ignored."""

    input: Many[str] = Field(default=[], max_length=MOST_ANSWERS)
    messages: Many[MessageIn] = Field(default=[], max_length=1_000)
    query: QueryIn | None = None
    """An extension: what the model may see instead of the turns before the answer, as in `/v1/score`."""
    use_activation: bool = False
    """Whether scores go through a sigmoid."""

    @field_validator("input", mode="before")
    @classmethod
    def several_texts(cls, value: Any) -> Any:
        if isinstance(value, list) and value and not isinstance(value[0], str):
            raise ValueError("token ids depend on the tokenizer; send texts or messages")
        return [value] if isinstance(value, str) else value

    def asks(self) -> list[Ask]:
        if bool(self.input) == bool(self.messages):
            raise Refused(422, "send either input or messages")
        if self.messages:
            chats = {"messages": [Turn(message.role, message.content) for message in self.messages]}
        else:
            chats = {f"input.{n}": _turns(n, text) for n, text in enumerate(self.input)}
        asks = []
        for place, (*before, answer) in chats.items():
            if answer.role != "assistant" or not before or before[-1].role != "user":
                raise Refused(422, f"{place} must end with a user's turn and the assistant's answer to it")
            chat = Query(question=before[-1].text, context=tuple(before[:-1]))
            asks.append(Ask(self.query.query() if self.query else chat, answer.text))
        return asks


def _turns(n: int, text: str) -> list[Turn]:
    """The turns of a chat that a known template rendered."""
    roles: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
    for start, middle, end in TURNS:
        before, *pieces = text.split(start)
        parts = [(role, *rest.partition(end)) for role, _, rest in (piece.partition(middle) for piece in pieces)]
        whole = all(role in roles and ended and BETWEEN_TURNS.fullmatch(after) for role, _, ended, after in parts)
        if parts and whole and BETWEEN_TURNS.fullmatch(before):
            return [Turn(roles[role], EMPTY_THINKING.sub("", content, 1).strip()) for role, content, *_ in parts]
    raise Refused(422, f"input.{n} is not a chat as the templates of Qwen, Llama 3 or Gemma write it; send messages")


Body = TypeVar("Body", ScoreRequest, RewardRequest, ClassifyRequest)


def place_and_reason(problem: Mapping[str, Any]) -> str:
    """What is wrong with a body, without repeating its content."""
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "json_invalid":
        return f"not JSON: {problem['ctx']['error']}"
    return f"{place or 'body'}: {problem['msg']}"


def read_body(kind: type[Body], content: bytes, limits: Limits) -> tuple[Body, list[Ask]]:
    """A request and its asks."""
    body = kind.model_validate_json(content)
    asks = body.asks()
    if len(asks) > limits.answers:
        raise Refused(413, f"{len(asks)} answers in one request; at most {limits.answers}")
    query_chars = max(query_length(query) for query in {ask.query for ask in asks})
    answer_chars = max(len(ask.answer) for ask in asks)
    for what, length in (("a query", query_chars), ("an answer", answer_chars)):
        if length > limits.chars:
            raise Refused(413, f"{what} of {length} characters; at most {limits.chars}")
    return body, asks


def all_scores(results: Sequence[float | Failure]) -> list[float]:
    """The scores, if none is missing. 422: the model has no score for this text. 502: the model raised."""
    failures = [result for result in results if isinstance(result, Failure)]
    if failures:
        status = 502 if any(failure.reason == MODEL_ERROR for failure in failures) else 422
        reason = f"no score for {len(failures)} of {len(results)} answers: {failures[0]}"
        raise Refused(status, reason, failures=reasons(results))
    return [float(result) for result in results if not isinstance(result, Failure)]


def reasons(results: Sequence[float | Failure]) -> list[str | None]:
    return [str(result) if isinstance(result, Failure) else None for result in results]


def cuts(results: Sequence[float | Failure]) -> list[int]:
    return [result.cut if isinstance(result, Reward) else 0 for result in results]


class ScoreReply(BaseModel):
    scores: list[float | None]
    failures: list[str | None]
    """Why there is no score; null where there is one."""
    cut: list[int]
    """How many posts, choices and turns were left out because they did not fit the model's context."""
    model: str
    fingerprint: str
