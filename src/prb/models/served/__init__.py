"""Reward heads behind a server: `classifier?url=…`. Chats are rendered and tokenized here, logits come from there.

When a model is made, every server says what it is and scores a few short texts. Servers that disagree are refused, and
so are a tokenizer that is not the server's and a server that answers with probabilities although logits were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from prb.batches import chunks
from prb.cache import Cache
from prb.engine.chat import AnswerScorer, Chat, Text, TwoTexts
from prb.engine.load import UNSTATED_LENGTH, Loading, fingerprint
from prb.errors import BadInput, BadSpec, first_line
from prb.hashing import digest, short_digest
from prb.models.served.fleet import Call, Fleet, Serving
from prb.models.served.protocols import About, Dialect, Input, Logits, dialect_of
from prb.types import Ask, Failure, Query, Reward, Scorer
from prb.weights import resolve_weights

PROBES = (
    ("Name a color.", "Blue."),
    ("How do I cook rice?", "Rinse it, add twice as much water, and simmer it for twelve minutes."),
    ("Which is better, tea or coffee?", "!!!! no no no no"),
)
"""Short texts that every server scores first."""
Layout = Literal["chat", "pair"]
"""Chat turns through the template, or prompt and answer as two texts."""
ROUNDING = 0.02
"""Logits of the same weights agree within this share of their size, in 16 bits and on different hardware, too."""


def open_fleet(serving: Serving, loading: Loading) -> Fleet:
    """The servers, each of which has said what it is."""
    ours = ("revision", "max_length", "trust_remote_code")  # all other options of loading are the server's own
    given = [f.name for f in fields(loading) if f.name not in ours and getattr(loading, f.name) != f.default]
    if given:
        raise BadSpec(f"classifier: {', '.join(given)} cannot be set for a served model; tell its server")
    fleet = Fleet(serving)
    fleet.connect()
    return fleet


def served_classifier(
    fleet: Fleet,
    serving: Serving,
    loading: Loading,
    *,
    layout: Layout,
    reward: Callable[[Logits], float],
    name: str,
    system: str | None,
    cache: Cache | None,
) -> Scorer:
    """`reward` makes one number of a head's logits, and `name` says how."""
    about = fleet.about
    tokenizer = load_tokenizer(serving.tokenizer or about.tokenizer or about.source, loading)
    reader = reader_of(tokenizer, layout, system)
    head = ServedHead(fleet, dialect_of(about, serving.api), tokenizer, reward)
    probes = head.check([reader.text(Query(question=question), answer) for question, answer in PROBES])
    tokens = short_digest([tokenizer.chat_template, len(tokenizer)])
    model = f"{identity(about)}-{tokens}-{layout}-{name}-{system or ''}"
    if cache:
        check_cache(cache, model, probes)
    limits = [about.max_length, loading.max_length, stated_length(tokenizer)]
    limit = min([n for n in limits if n], default=UNSTATED_LENGTH)
    scorer = AnswerScorer(reader, head.rewards, fingerprint=model, limit=limit, cache=cache)
    scorer.remote = fleet.remote
    return scorer


def identity(about: About) -> str:
    """Server, version, model and dtype. Weights on this machine are known by their content, others by their name."""
    folder = Path(about.source)
    here = folder.is_dir() and any(folder.glob("*.safetensors"))
    model = fingerprint(str(folder)) if here else about.model.rstrip("/")
    name = Path(model).name if model.startswith("/") else model
    return "-".join(filter(None, ("served", about.kind, about.version, name, about.weights, about.dtype)))


def load_tokenizer(source: str, loading: Loading) -> Any:
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(
            resolve_weights(source), revision=loading.revision, trust_remote_code=loading.trust_remote_code
        )
    except Exception as error:  # damaged or unusual files raise whatever their reader meets first
        why = first_line(error)
        raise BadInput(f"cannot load the tokenizer of {source}: {why}; tokenizer=… names a folder or hub id") from None


def reader_of(tokenizer: Any, layout: Layout, system: str | None) -> Chat | TwoTexts:
    return TwoTexts(tokenizer) if layout == "pair" else Chat(tokenizer, system=system)


def stated_length(tokenizer: Any) -> int | None:
    length = getattr(tokenizer, "model_max_length", None)
    return int(length) if length and length < 10**9 else None


@dataclass(frozen=True)
class Part:
    """Answers to one query that go into one request."""

    key: str
    """Of the query; decides the server."""
    places: Sequence[tuple[int, int]]
    """Number of the group and of the text in it."""
    inputs: Sequence[Input]

    def split(self, size: int) -> list[Part]:
        starts = range(0, len(self.places), size)
        return [Part(self.key, self.places[at : at + size], self.inputs[at : at + size]) for at in starts]


class ServedHead:
    """Groups of texts → rewards. The answers to a query are one request, and requests are sent in the order of their
    tokens, so that equal beginnings follow one another in the server's prefix cache."""

    def __init__(self, fleet: Fleet, dialect: Dialect, tokenizer: Any, reward: Callable[[Logits], float]) -> None:
        self._fleet, self._dialect, self._tokenizer, self._reward = fleet, dialect, tokenizer, reward

    def rewards(self, groups: Sequence[Sequence[Text]]) -> list[list[float | Failure]]:
        results: list[list[float | Failure]] = [
            [Failure("the server would read other tokens")] * len(g) for g in groups
        ]
        parts: list[Part] = []
        for n, group in sorted(enumerate(groups), key=lambda entry: list(entry[1][0].ids)):
            before_answers = group[0].ids[: min(text.start for text in group)] or group[0].ids
            inputs = {(n, i): sent for i, text in enumerate(group) if (sent := self._input(text)) is not None}
            part = Part(digest(list(before_answers)).hex(), list(inputs), list(inputs.values()))
            parts += part.split(self._fleet.about.batch)
        while parts:
            replies = self._fleet.ask([self._call(part) for part in parts])
            again: list[Part] = []
            for part, reply in zip(parts, replies, strict=True):
                if not isinstance(reply, Failure):
                    rewards: list[float | Failure] = [self._reward(logits) for logits in reply]
                elif len(part.places) > 1 and (reply.kind == "row" or "HTTP 500" in reply.detail):
                    again += part.split(1)  # to find the text to blame; some answer 500 if a score is not a number
                    continue
                else:
                    rewards = [reply] * len(part.places)
                for (n, i), reward in zip(part.places, rewards, strict=True):
                    results[n][i] = reward
            parts = again
        return results

    def _call(self, part: Part, *, raw: bool = True) -> Call:
        body = self._dialect.write(part.inputs, raw)
        return Call(part.key, self._dialect.path, body, lambda reply: self._dialect.logits(reply, len(part.inputs)))

    def _input(self, text: Text) -> Input | None:
        return as_texts(self._tokenizer, text) if self._dialect.takes_text else list(text.ids)

    def check(self, texts: Sequence[Text]) -> list[Logits]:
        """The logits of a few texts, on which all servers agree, and which are logits."""
        inputs = [sent for text in texts if (sent := self._input(text)) is not None]
        if len(inputs) < len(texts):
            raise BadInput(
                "this server tokenizes by itself, and its tokenizer cannot write what the chat template does"
            )
        parts = [Part("", [(0, 0)], [one]) for one in inputs]
        calls = [self._call(part) for part in parts]
        first, *others = self._fleet.live
        logits = self._probe(first, calls)
        self._check_tokenizer(first)
        if self._dialect.has_switch and not self._dialect.trusted:
            soft = self._probe(first, [self._call(part, raw=False) for part in parts])
            if soft == logits and all(0 <= x <= 1 for row in logits for x in row):
                raise BadInput("the server answers with probabilities although it was asked for logits; use vLLM 0.16+")

        def accepts(n: int) -> Failure | None:
            try:
                return None if agree(self._probe(n, calls), logits) else Failure("scores differently")
            except BadInput as error:
                return Failure("does not answer", str(error))

        for n in others:
            if failure := accepts(n):
                raise BadInput(
                    f"{self._fleet.servers[n].address}, unlike {self._fleet.servers[first].address}: {failure}"
                )
        self._fleet.accepts = accepts
        return logits

    def _probe(self, n: int, calls: Sequence[Call]) -> list[Logits]:
        replies = self._fleet.ask_server(n, calls)
        for reply in replies:
            if isinstance(reply, Failure):
                raise BadInput(f"{self._fleet.servers[n].address} cannot be used: {reply}")
        return [row for reply in replies if not isinstance(reply, Failure) for row in reply]

    def _check_tokenizer(self, n: int) -> None:
        """vLLM says how it tokenizes; a server that does not is believed."""
        if self._fleet.about.kind != "vllm":
            return
        text = " ".join(part for probe in PROBES for part in probe)
        body = {"model": self._fleet.about.model, "prompt": text, "add_special_tokens": False}

        def read(reply: Any) -> list[int]:
            return list(reply.get("tokens") or []) if isinstance(reply, dict) else []

        (reply,) = self._fleet.ask_server(n, [Call("", "/tokenize", body, read)])
        if isinstance(reply, list) and reply and reply != self._tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise BadInput("the tokenizer is not the server's; tokenizer=… names the right one")


def agree(logits: Sequence[Logits], others: Sequence[Logits]) -> bool:
    """Equal up to rounding; what is not a number agrees with the same."""
    pairs = [pair for row, other in zip(logits, others, strict=True) for pair in zip(row, other, strict=False)]
    largest = max([abs(x) for pair in pairs for x in pair if math.isfinite(x)], default=0.0)
    same_shape = [len(row) for row in logits] == [len(row) for row in others]
    return same_shape and all(
        abs(x - y) <= ROUNDING * max(largest, 0.1) if math.isfinite(x) and math.isfinite(y) else repr(x) == repr(y)
        for x, y in pairs
    )


def check_cache(cache: Cache, model: str, probes: Sequence[Logits]) -> None:
    """A server may give any weights any name. Cached scores are used only if it still scores the probes as then."""
    if not all(math.isfinite(x) for row in probes for x in row):
        return
    key = digest(model, "probes")
    known = cache.get([key]).get(key)
    if known is None:
        cache.put(model, {key: probes})
    elif not agree(probes, known):
        clear = f"`prb cache clear --model '{model}'` forgets them, cache=false ignores them"
        raise BadInput(f"the cache has scores of another model that was served under this name; {clear}")


def as_texts(tokenizer: Any, text: Text) -> Sequence[str] | None:
    """One text, or two, that a tokenizer which adds its special tokens reads as exactly these ids; else `None`."""
    ids = list(text.ids)
    bare, whole = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    at = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
    before, after = at, len(whole) - at - len(bare)

    def decode(part: Sequence[int]) -> str:
        return str(tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    if text.types and 1 in text.types:
        second = list(text.types).index(1)
        parts = [decode(ids[before : second - after]), decode(ids[second : len(ids) - after])]
    else:
        parts = [decode(ids[before : len(ids) - after])]
    return parts if list(tokenizer(*parts)["input_ids"]) == ids else None


class PrbServer:
    """The model behind a `prb serve`, which reads queries itself."""

    def __init__(self, fleet: Fleet) -> None:
        self.remote = fleet.remote
        self.fingerprint = f"served-{fleet.about.weights}"
        self._fleet = fleet

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        positions: dict[Query, list[int]] = {}
        for n, ask in enumerate(asks):
            positions.setdefault(ask.query, []).append(n)
        size = self._fleet.about.batch
        parts = [(query, part) for query, places in positions.items() for part in chunks(places, size)]
        replies = self._fleet.ask([self._call(query, [asks[n].answer for n in part]) for query, part in parts])
        results: dict[int, float | Failure] = {}
        for (_, part), reply in zip(parts, replies, strict=True):
            values = [reply] * len(part) if isinstance(reply, Failure) else reply
            results.update(zip(part, values, strict=True))
        return [results[n] for n in range(len(asks))]

    def _call(self, query: Query, answers: Sequence[str]) -> Call:
        def read(reply: Any) -> list[float | Failure] | None:
            match reply:
                case {"scores": [*scores], "failures": [*why], "cut": [*cut], "fingerprint": self._fleet.about.weights}:
                    if len(scores) == len(why) == len(cut) == len(answers):
                        rows = zip(scores, why, cut, strict=True)
                        return [Failure(str(w)) if s is None else Reward(s, cut=c) for s, w, c in rows]
            return None

        body = query_body(query)
        return Call(digest(body).hex(), "/v1/score", {"query": body, "answers": list(answers), "partial": True}, read)


def query_body(query: Query) -> dict[str, Any]:
    """A query as `/v1/score` reads it, without what is empty."""
    fields = {
        "user": query.user,
        "context": [{"role": turn.role, "text": turn.text} for turn in query.context],
        "posts": [{"id": post.id, "category": post.category, "text": post.text} for post in query.posts],
        "choices": [{"question": c.question, "chosen": c.chosen, "rejected": c.rejected} for c in query.choices],
        "plan": list(query.plan),
    }
    return {"question": query.question} | {name: value for name, value in fields.items() if value}
