"""Reward heads behind a server: `classifier?url=…`. Chats are rendered and tokenized here, logits come from there.

vLLM, SGLang and `prb serve` are known. When a model is made, the server says what it is and
scores a few short texts; a tokenizer that is not the server's is refused. Replies are read strictly: a list of another
length, a missing index, or another number of logits than before is no reply at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from prb.config import Positive, Size
from prb.engine.chat import Text
from prb.engine.load import Loading, fingerprint
from prb.errors import BadInput, BadSpec, Unreachable
from prb.llm.endpoint import Client, Concurrency, Response, Retry, clean, parse, refusal
from prb.types import Ask, Failure, Query, Reward
from prb.work import chunks

A = TypeVar("A")
Logits = list[float]

BATCH = 64
"""Texts per request."""
MAX_VERSION = 64
"""Characters of a version that are read; builds from a checkout have long ones."""
PROBES = (
    ("Name a color.", "Blue."),
    ("How do I cook rice?", "Rinse it, add twice as much water, and simmer it for twelve minutes."),
    ("Which is better, tea or coffee?", "!!!! no no no no"),
)
"""Short texts that a server scores first."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Where a served model is, and how it is asked."""

    url: str | None = None
    """http://host:port"""
    model: str = ""
    """The name it is served under; may be left out where there is only one."""
    tokenizer: str | None = None
    """Folder or hub id; default what the server says it uses."""
    key_env: str | None = None
    """Environment variable that holds the server's key."""
    concurrency: Concurrency = 32
    """Requests in flight, each with all answers to a query."""
    timeout: Positive = 120.0
    retries: Size = 6


NOT_SERVED = Serving()


@dataclass(frozen=True, kw_only=True)
class About:
    """What a server says about itself."""

    kind: Literal["vllm", "sglang", "prb"]
    model: str
    version: str = ""
    dtype: str = ""
    weights: str = ""
    """A commit or fingerprint, where the server knows it."""
    source: str = ""
    """Where the server got the weights: a folder, perhaps of another machine, or a hub id."""
    tokenizer: str = ""
    """Where it got the tokenizer, if elsewhere."""
    max_length: int | None = None

    @property
    def identity(self) -> str:
        """Server, version, model and dtype. Weights on this machine are known by their content, others by their
        name."""
        folder = Path(self.source)
        here = folder.is_dir() and any(folder.glob("*.safetensors"))
        model = fingerprint(str(folder)) if here else self.model.rstrip("/")
        name = Path(model).name if model.startswith("/") else model
        return "-".join(filter(None, ("served", self.kind, self.version, name, self.weights, self.dtype)))


class Call(NamedTuple):
    """One request and how its reply is read; `None` is a reply that cannot be read."""

    path: str
    body: dict[str, Any]
    read: Callable[[Any], list[Any] | Failure | None]


UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""What reading a reply of no shape we know raises."""


class Server:
    """A client of one server, which has said what it is."""

    def __init__(self, serving: Serving, loading: Loading) -> None:
        ours = ("revision", "max_length", "trust_remote_code")  # all other options of loading are the server's own
        given = [f.name for f in fields(loading) if f.name not in ours and getattr(loading, f.name) != f.default]
        if given:
            raise BadSpec(f"classifier: {', '.join(given)} cannot be set for a served model; tell its server")
        self.client = Client(
            serving.url or "",
            use="classifier",
            key_env=serving.key_env,
            concurrency=serving.concurrency,
            timeout=serving.timeout,
            retries=serving.retries,
        )
        try:
            about = self.client.run(self._describe(serving.model))
        except UNREADABLE as error:
            why = clean(repr(error))
            raise BadInput(f"{self.client.address} describes itself in an unknown way: {why}") from None
        if about is None:
            raise BadInput(f"what answers at {self.client.address} is not vLLM, SGLang or prb serve")
        if serving.model and serving.model not in (about.model, about.source):
            raise BadInput(f"the server serves {about.model}, not {serving.model}")
        self.about = about

    async def _describe(self, model: str) -> About | None:
        """What answers there; `None` if it is none of these servers."""

        async def get(path: str) -> Any:
            """Its JSON object, or `None` where the server has no such route."""
            response = await self.client.exchange("GET", path)
            if not isinstance(response, Response):
                why = response.why if isinstance(response, Retry) else str(response)
                raise Unreachable(f"{self.client.address} cannot be reached: {why}")
            if response.status in (401, 403):
                raise BadInput(f"{self.client.address} needs a key (HTTP {response.status}); see key_env")
            if response.status >= 500:
                raise Unreachable(f"{self.client.address} cannot be reached: HTTP {response.status}")
            body = parse(response.content) if response.status == 200 else None
            return body if isinstance(body, dict) else None

        def limit(value: Any) -> int | None:
            return value if isinstance(value, int) and value > 0 else None

        if (reply := await get("/version")) and isinstance(reply.get("version"), str):
            cards = {str(card["id"]): card for card in (await get("/v1/models") or {})["data"]}
            if not cards:
                raise BadInput("the server serves no model")
            card = cards.get(model) or next(iter(cards.values()))
            return About(
                kind="vllm",
                version=reply["version"][:MAX_VERSION],
                model=str(card["id"]),
                source=str(card.get("root") or card["id"]),
                max_length=limit(card.get("max_model_len")),
            )
        about = await get("/model_info") or await get("/get_model_info")
        if about and "model_path" in about:
            settings = await get("/server_info") or await get("/get_server_info") or {}
            return About(
                kind="sglang",
                version=str(settings.get("version") or "")[:MAX_VERSION],
                model=str(settings.get("served_model_name") or about["model_path"]),
                dtype=str(settings.get("dtype") or ""),
                source=str(about["model_path"]),
                tokenizer=str(about.get("tokenizer_path") or ""),
                max_length=limit(settings.get("context_length") or settings.get("max_req_input_len")),
            )
        if (info := await get("/info")) and info.get("server") == "prb":
            version = str(info["version"])[:MAX_VERSION]
            return About(kind="prb", model=str(info["model"]), version=version, weights=str(info["fingerprint"]))
        return None

    def ask(self, calls: Sequence[Call]) -> list[list[Any] | Failure]:
        """One result per call, in order; they are sent in this order, too."""

        async def attempt(call: Call) -> list[Any] | Failure | Retry:
            response = await self.client.exchange("POST", call.path, call.body)
            if not isinstance(response, Response):
                return response
            if response.status != 200:
                return refusal(response)
            value = None
            with suppress(*UNREADABLE):
                value = call.read(parse(response.content))
            start = response.content[:200].decode("utf-8", "replace")
            return Retry(clean(f"unreadable reply: {start}")) if value is None else value

        return self.client.ask(calls, attempt)

    def ask_each(self, groups: Iterable[Sequence[A]], call: Callable[[Sequence[A]], Call]) -> list[Any]:
        """A result for every item of the groups, or why there is none. Up to `BATCH` items of a group are one request;
        if it is refused, each is asked about alone, to find the one to blame."""
        parts = [part for group in groups for part in chunks(group, BATCH)]
        results: list[Any] = []
        for part, reply in zip(parts, self.ask([call(part) for part in parts]), strict=True):
            if not isinstance(reply, Failure):
                results += reply
            elif len(part) > 1 and (reply.kind == "row" or "HTTP 500" in reply.detail):
                results += self.ask_each([[item] for item in part], call)  # some say 500 if a score is not a number
            else:
                results += [reply] * len(part)
        return results


@dataclass
class ServedHead:
    """Groups of texts → rewards. The answers to a query are one request, and requests are sent in the order of their
    tokens, so that equal beginnings follow one another in the server's prefix cache."""

    server: Server
    reward: Callable[[Logits], float]
    """Makes one number of a head's logits."""
    width: int | None = None
    """How many logits the head has; a server that changes it has changed the model."""

    def rewards(self, groups: Sequence[Sequence[Text]]) -> list[list[float | Failure]]:
        order = sorted(range(len(groups)), key=lambda n: list(groups[n][0].ids))
        results = iter(self.server.ask_each([groups[n] for n in order], self._call))
        rewards: dict[int, list[float | Failure]] = {}
        for n in order:
            of_group = islice(results, len(groups[n]))
            rewards[n] = [logits if isinstance(logits, Failure) else self.reward(logits) for logits in of_group]
        return [rewards[n] for n in range(len(groups))]

    def _call(self, texts: Sequence[Text]) -> Call:
        """Asks for the raw logits of several texts. A reply that is not about these texts, or of another model, is
        none."""
        about = self.server.about
        ids = [list(text.ids) for text in texts]
        body = {"model": about.model, "input": ids, "use_activation": False}
        if about.kind == "sglang":
            body = {"input_ids": ids}

        def read(reply: Any) -> list[Logits] | None:
            if about.kind == "sglang":
                rows = [row["embedding"] for row in (reply if isinstance(reply, list) else [reply])]
            elif reply.get("model", about.model) != about.model:
                return None
            else:
                by_index = {row["index"]: row["probs"] for row in reply["data"]}
                rows = [by_index[n] for n in range(len(reply["data"]))]
            logits = [numbers for row in rows if (numbers := _numbers(row))]
            widths = {len(row) for row in logits}
            return logits if len(logits) == len(texts) and widths == {self.width or len(logits[0])} else None

        return Call("/classify", body, read)

    def check(self, texts: Sequence[Text], tokenizer: Any) -> None:
        """Whether the server gives logits for a few texts, of the same tokens as ours. vLLM says how it tokenizes;
        SGLang is trusted."""
        for reply in self.server.ask([self._call([text]) for text in texts]):
            if isinstance(reply, Failure):
                raise BadInput(f"{self.server.client.address} cannot be used: {reply}")
            self.width = len(reply[0])
        if self.server.about.kind != "vllm":
            return
        text = " ".join(part for probe in PROBES for part in probe)
        body = {"model": self.server.about.model, "prompt": text, "add_special_tokens": False}
        (tokens,) = self.server.ask([Call("/tokenize", body, lambda reply: list(reply.get("tokens") or []))])
        ours = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokens and not isinstance(tokens, Failure) and tokens != ours:
            raise BadInput("the tokenizer is not the server's; tokenizer=… names the right one")


def _numbers(value: Any) -> Logits | None:
    """One or several logits; servers write null for what is not a number."""
    match value:
        case [[*inner]]:
            return _numbers(inner)
        case [*items] if items and all(item is None or type(item) in (int, float) for item in items):
            return [float("nan") if item is None else float(item) for item in items]
    return None


class PrbServer:
    """The model behind a `prb serve`, which reads queries itself."""

    def __init__(self, server: Server) -> None:
        self.remote = server.client.remote
        self.fingerprint = f"served-{server.about.weights}"
        self._server = server

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        positions: dict[Query, list[int]] = {}
        for n, ask in enumerate(asks):
            positions.setdefault(ask.query, []).append(n)
        rewards = self._server.ask_each([[asks[n] for n in places] for places in positions.values()], self._call)
        results = dict(zip(chain(*positions.values()), rewards, strict=True))
        return [results[n] for n in range(len(asks))]

    def _call(self, asks: Sequence[Ask]) -> Call:
        query = asks[0].query
        fields = {
            "user": query.user,
            "context": [turn._asdict() for turn in query.context],
            "posts": [post._asdict() for post in query.posts],
            "choices": [choice._asdict() for choice in query.choices],
            "plan": list(query.plan),
        }
        body = {"question": query.question} | {name: value for name, value in fields.items() if value}

        def read(reply: Any) -> list[float | Failure] | Failure | None:
            match reply:
                case {"fingerprint": str(other)} if other != self._server.about.weights:
                    return Failure("the server has changed", f"it serves {clean(other)} now", kind="fatal")
                case {"scores": [*scores], "failures": [*why], "cut": [*cut], "fingerprint": _}:
                    if len(scores) == len(why) == len(cut) == len(asks):
                        rows = zip(scores, why, cut, strict=True)
                        return [Failure(clean(str(w))) if s is None else Reward(s, cut=int(c)) for s, w, c in rows]
            return None

        return Call("/v1/score", {"query": body, "answers": [ask.answer for ask in asks], "partial": True}, read)
