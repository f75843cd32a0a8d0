"""Several servers of one model: requests by hash, retries, and what happens when a server dies.

A request goes to the server that its query's hash prefers (rendezvous hashing), so the same query always meets the same
warm prefix cache, and when a server is gone only its own queries move. Retries and concurrency are those of the LLM
endpoints (`prb.llm.endpoint`), per server. A server that cannot be reached is taken out and its requests go to the
others; the last one stays, and its failures are the run's. One that comes back is used again if it is still the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from prb.config import Positive, Size
from prb.errors import BadInput, MissingExtra, Unreachable
from prb.failures import Breaker, unanswered
from prb.hashing import draw
from prb.llm.endpoint import (
    FATAL,
    Background,
    Limiter,
    Retry,
    address_of,
    answer_all,
    check_url,
    cleaner,
    is_loopback,
    message_of,
    parse,
    persist,
    read_key,
    retry_status,
)
from prb.llm.openai import Concurrency
from prb.models.served.protocols import About, Api, describe
from prb.types import Failure, FailureKind

Values = list[Any]
"""What was read from a reply, one entry per answer."""

STRIKES = 3
"""Requests in a row that a server fails, each after all its retries, before it is taken out."""
REST = 30.0
"""Seconds until a server that was taken out is looked at again."""
CONNECT, DESCRIBE = 10.0, 30.0
"""Seconds to connect, and to say what it is."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where a served model is, and how it is asked."""

    url: str | None = None
    """http://host:port; several, separated by `|`, share the queries."""
    model: str = ""
    """The name it is served under; may be left out where there is only one."""
    api: Api = "auto"
    tokenizer: str | None = None
    """Folder or hub id; default what the server says it uses."""
    key_env: str | None = None
    """Environment variable that holds the server's key."""
    concurrency: Concurrency = 32
    """Requests in flight per server, each with all answers to a query."""
    timeout: Positive = 120.0
    retries: Size = 6


NOT_SERVED = Serving()


class Call(NamedTuple):
    """One request and how its reply is read; `None` is a reply that cannot be read."""

    key: str
    """What decides the server."""
    path: str
    body: dict[str, Any]
    read: Callable[[Any], Values | None]


@dataclass
class Server:
    address: str
    local: bool
    out: Failure | None = None
    """Why it is not used."""
    since: float = 0.0
    strikes: int = 0


@dataclass(frozen=True)
class Connections:
    """What lives on the event loop: a client and a limiter per server."""

    clients: Sequence[Any]
    limiters: Sequence[Limiter]
    rng: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()


class Fleet:
    about: About
    """What all servers are."""

    def __init__(self, serving: Serving) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingExtra("a served model", "serve") from None
        self._httpx: Any = httpx
        urls = [url for url in (serving.url or "").split("|") if url]
        parts = [check_url(url, "classifier: url", "http://localhost:8000") for url in urls]
        self.servers = [Server(address_of(part), is_loopback(str(part.hostname))) for part in parts]
        if len({server.address for server in self.servers}) < len(self.servers):
            raise BadInput("classifier: a url is given twice")
        self.remote = not all(server.local for server in self.servers)
        self._serving = serving
        key = read_key(serving.key_env, needed=True, use="classifier") if serving.key_env else ""
        self._clean = cleaner(key)
        self.accepts: Callable[[int], Failure | None] = lambda _: None
        """Whether a server that came back scores as before."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        addresses = [(server.address, server.local) for server in self.servers]

        def connect() -> Connections:  # without a reference to self, so that the thread ends with its last user
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=serving.concurrency)
            clients = [
                # to this machine without proxies, and nowhere along redirects, so that texts do not leave it that way
                httpx.AsyncClient(
                    base_url=address,
                    headers=headers,
                    timeout=httpx.Timeout(serving.timeout, connect=min(serving.timeout, CONNECT)),
                    limits=limits,
                    trust_env=not local,
                    verify=address.startswith("https:"),  # certificates take a while to load
                )
                for address, local in addresses
            ]
            return Connections(clients, [Limiter(serving.concurrency) for _ in clients])

        self._background = Background("prb-served", connect)

    def connect(self) -> About:
        """Ask every server what it is. One that cannot be reached is left out; all others must be the same."""
        answers = self._background.run(self._describe_all(range(len(self.servers))))
        described = {n: answer for n, answer in answers.items() if isinstance(answer, About)}
        for n, answer in answers.items():
            if isinstance(answer, Failure):
                self._take_out(n, answer)
        if not described:
            raise Unreachable("; ".join(f"{server.address}: {server.out}" for server in self.servers))
        (first, self.about), *others = described.items()
        for n, about in others:
            if about != self.about:
                where = f"{self.servers[first].address} and {self.servers[n].address}"
                raise BadInput(f"{where} do not serve the same model: {difference(self.about, about)}")
        return self.about

    @property
    def live(self) -> list[int]:
        return [n for n, server in enumerate(self.servers) if server.out is None]

    def ask(self, calls: Sequence[Call]) -> list[Values | Failure]:
        """One result per call, in order; they are sent in this order, too."""
        self._readmit()
        breaker = Breaker()
        slots = self._serving.concurrency * len(self.servers)
        return self._background.run(answer_all(calls, lambda call: self._answer(call, breaker), slots, breaker))

    def ask_server(self, n: int, calls: Sequence[Call]) -> list[Values | Failure]:
        """As `ask`, of one server whatever the keys."""

        async def each() -> list[Values | Failure]:
            return [await self._persist(n, call, Breaker()) for call in calls]

        return self._background.run(each())

    async def _answer(self, call: Call, breaker: Breaker) -> Values | Failure:
        """From the preferred server; from the next only after a failure that says nothing about the text."""
        order = sorted(range(len(self.servers)), key=lambda n: draw(call.key, self.servers[n].address), reverse=True)
        failure: Failure | None = None
        for n in order:
            if self.servers[n].out is None:
                reply = await self._persist(n, call, breaker)
                if not (isinstance(reply, Failure) and unanswered(reply)):
                    self.servers[n].strikes = 0
                    return reply
                failure = reply
                self.servers[n].strikes += 1
                if self._others(n) and (reply.kind == "fatal" or self.servers[n].strikes >= STRIKES):
                    self._take_out(n, reply)
        return failure or Failure("no server answers", kind="fatal")

    def _take_out(self, n: int, failure: Failure) -> None:
        self.servers[n].out, self.servers[n].since = failure, time.monotonic()

    def _others(self, n: int) -> bool:
        return any(live != n for live in self.live)

    async def _persist(self, n: int, call: Call, breaker: Breaker) -> Values | Failure:
        """As often as the settings allow; a dead server only once if others can take over."""
        made = self._background.made

        async def attempt(_: int) -> Values | Failure | Retry:
            return await made.limiters[n].send(lambda: self._send(n, call), breaker)

        return await persist(
            attempt,
            reason="server failed",
            retries=self._serving.retries,
            rng=made.rng,
            hopeless=lambda reply: reply.kind == "fatal" and self._others(n),
        )

    async def _send(self, n: int, call: Call) -> Values | Failure | Retry:
        try:
            body = orjson.dumps(call.body)
        except TypeError as error:  # such as a lone surrogate
            return Failure("request cannot be sent", str(error))
        response = await self._request(n, "POST", call.path, body)
        if isinstance(response, Retry):
            return response
        if response.status_code >= 300:
            return self._refused(response)
        try:
            value = call.read(parse(response.content))
        except (AttributeError, KeyError, TypeError, ValueError):  # in no shape we know
            value = None
        if value is None:
            return Retry(self._clean(f"unreadable reply: {response.text[:200]}"))
        return value

    async def _request(self, n: int, method: str, path: str, body: bytes | None = None) -> Any:
        client = self._background.made.clients[n]
        try:
            # httpx's own timeout only limits silence
            async with asyncio.timeout(2 * self._serving.timeout if method == "POST" else DESCRIBE):
                return await client.request(method, path, content=body)
        except self._httpx.ConnectTimeout:
            return Retry("no connection in time", kind="fatal")
        except self._httpx.TimeoutException:
            return Retry(f"no reply within {self._serving.timeout:g} s", overloaded=True)
        except TimeoutError:
            return Retry(f"no whole reply within {2 * self._serving.timeout:g} s", overloaded=True)
        except self._httpx.HTTPError as error:
            refused = isinstance(error, self._httpx.ConnectError)
            why = self._clean(f"connection: {str(error) or type(error).__name__}")
            return Retry(why, kind="fatal" if refused else "transient")

    def _refused(self, response: Any) -> Retry | Failure:
        status = response.status_code
        kind: FailureKind = "fatal" if status in FATAL or status < 400 else "row"
        body = parse(response.content)
        message = self._clean(message_of(body) if body is not None else response.text)
        failure = Failure(f"HTTP {status}", message, kind=kind)
        return retry_status(status, str(failure), response.headers.get("retry-after"), time.time()) or failure

    async def _describe_all(self, servers: Sequence[int]) -> dict[int, About | Failure]:
        return dict(zip(servers, await asyncio.gather(*map(self._describe, servers)), strict=True))

    async def _describe(self, n: int) -> About | Failure:
        async def get(path: str) -> Any:
            response = await self._request(n, "GET", path)
            if isinstance(response, Retry):
                raise Unreachable(response.why)
            if response.status_code in (401, 403):
                raise BadInput(f"{self.servers[n].address} needs a key (HTTP {response.status_code}); see key_env")
            if response.status_code >= 500:
                raise Unreachable(f"HTTP {response.status_code}")
            body = parse(response.content) if response.status_code == 200 else None
            return body if isinstance(body, dict) else None

        try:
            about = await describe(get, self._serving.api, self._serving.model)
        except Unreachable as error:
            return Failure("cannot be reached", str(error), kind="fatal")
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # of replies in no shape we know
            raise BadInput(f"{self.servers[n].address} describes itself in an unknown way: {error!r}") from None
        if about is None:
            api = self._serving.api
            expected = "vLLM, SGLang, text-embeddings-inference or prb serve" if api == "auto" else api
            raise BadInput(f"what answers at {self.servers[n].address} is not {expected}")
        return about

    def _readmit(self) -> None:
        """Servers that were taken out a while ago come back if they are what they were."""
        now = time.monotonic()
        resting = [n for n, s in enumerate(self.servers) if s.out is not None and now - s.since > REST]
        if not resting:
            return
        try:
            answers = self._background.run(self._describe_all(resting))
        except BadInput as error:  # another kind of server has taken its place
            answers = dict.fromkeys(resting, Failure("another server", str(error)))
        for n, answer in answers.items():
            same = answer == self.about
            failure = self.accepts(n) if same else answer if isinstance(answer, Failure) else Failure("another model")
            if failure:
                self._take_out(n, failure)
            else:
                self.servers[n].out, self.servers[n].strikes = None, 0


def difference(one: About, other: About) -> str:
    """The first thing in which two servers differ."""
    names = ("kind", "version", "model", "dtype", "weights", "max_length", "labels", "batch")
    name = next(name for name in names if getattr(one, name) != getattr(other, name))
    return f"{name} {getattr(one, name)!r} and {getattr(other, name)!r}"
