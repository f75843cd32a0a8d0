"""Calls, replies, and the one loop that asks models what has no reply yet.

A run is a function of its rows and of what the models replied. A verb *plans* calls, each with a key: the digest of the
model's fingerprint and of exactly what it is shown and asked. `ask_missing` leaves out keys that have a reply, asks the
rest batch by batch, and appends the replies of a batch to `replies.jsonl` in one write. What the verb reports is then
*derived* from rows and replies. So a run that was killed resumes with the batches that were under way, a line that
cannot be read costs one call, and several shards are merged by reading all of their replies.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from prb.cache import Cache
from prb.errors import Unreachable
from prb.failures import ENDPOINT, RESUME, Breaker, ask_model, unanswered
from prb.progress import Progress
from prb.runs import REPLIES, writing
from prb.types import Ask, Duel, Failure, FailureKind, Query, Reward, Verdict, is_remote

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
LARGEST_REWARD = 1e100
"""Beyond it sums and squares of margins overflow; no model means such a reward."""


def checked_reward(reward: float | Failure) -> float | Failure:
    """A reward that can be computed with, or a failure."""
    if isinstance(reward, Failure) or abs(reward) <= LARGEST_REWARD:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))


class Call(NamedTuple):
    """One thing to ask a model."""

    key: bytes
    ask: Any


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came back, and what it took. A failure is a reason, never a number."""

    value: float | str | list[float | str] | None = None
    """A score, a verdict or a text; grades by aspect; the entries of a plan."""
    failure: str | None = None
    kind: FailureKind | None = None
    text: list[str] = []
    """What an LLM wrote on the way to the value, one entry per call."""
    log_odds: float | None = None
    """Of a verdict: of the first answer against the second."""
    tokens: int = 0
    """Prompt and completion together."""
    spoken: int = 0
    """Of these, those of the completion."""
    cut: int = 0
    truncated: bool = False
    cost: float = 0.0
    seconds: float = 0.0

    @property
    def answer_failed(self) -> Failure | None:
        """The failure as a value, with what it took."""
        if self.failure is None:
            return None
        reason, _, detail = self.failure.partition(": ")
        used = {"prompt_tokens": self.tokens - self.spoken, "completion_tokens": self.spoken, "cost": self.cost}
        return Failure(reason, detail, kind=self.kind or "row", **used)  # type: ignore[arg-type]

    @property
    def readable(self) -> bool:
        """Whether it is what this module writes: either a usable value or a failure."""
        numbers = [number for number in (self.value, self.log_odds) if isinstance(number, float)]
        amounts = (self.tokens, self.spoken, self.cut, self.cost, self.seconds)
        return (
            (self.value is None) == (self.failure is not None)
            and all(abs(number) <= LARGEST_REWARD for number in numbers)
            and all(math.isfinite(amount) and amount >= 0 for amount in amounts)
        )

    @classmethod
    def of(cls, answer: Any, seconds: float = 0.0) -> Self:
        """From what a model returns; types of other packages say themselves what to store (`as_reply`)."""
        if isinstance(answer, Real):
            answer = checked_reward(answer)  # type: ignore[arg-type]
        match answer:
            case Failure():
                spoken = answer.completion_tokens
                used: dict[str, Any] = {"tokens": answer.prompt_tokens + spoken, "spoken": spoken, "cost": answer.cost}
                return cls(failure=str(answer), kind=answer.kind, **used, seconds=seconds)
            case Verdict():
                text = [answer.text] if answer.text else []
                used = {"tokens": answer.tokens, "cut": answer.cut, "cost": answer.cost}
                return cls(value=answer.choice, log_odds=answer.log_odds, text=text, **used, seconds=seconds)
            case Reward():
                text = [answer.text] if answer.text else []
                used = {"tokens": answer.tokens, "spoken": answer.spoken, "cut": answer.cut, "cost": answer.cost}
                return cls(value=float(answer), text=text, **used, seconds=seconds)
            case Real():
                return cls(value=float(answer), seconds=seconds)
            case tuple() | list():
                return cls(value=list(answer), seconds=seconds)
            case _:
                return cls(**answer.as_reply(), seconds=seconds)


class _Line(Reply, frozen=True, omit_defaults=True):
    """A reply as a line of `replies.jsonl`."""

    key: str = ""
    model: str = ""
    """Who replied, for people who read the file."""


_LINE, _REPLY = msgspec.json.Decoder(_Line), msgspec.json.Decoder(Reply)
_ENCODER = msgspec.json.Encoder()


class Replies:
    """Replies by key, in a file that only grows; the last line of a key counts.

    A line that cannot be read, torn by a crash or changed by hand, is owed again. Settled replies are shared with other
    runs through `cache`. Of a reply that was taken only what can be taken again is kept, mostly one number: a run may
    have millions.
    """

    def __init__(self, path: Path, cache: Cache | None = None) -> None:
        self.path, self._cache = path, cache
        self._by_key: dict[bytes, Reply | float] = {}
        self._retried: set[bytes] = set()
        """Failures that earlier processes stored and that may be asked about again."""
        self._lock = threading.Lock()
        self.unreadable = 0
        """Lines that could not be read."""
        with writing(path):
            torn = self._read() if path.exists() else False
            self._file = path.open("ab", buffering=0)
            if torn:
                self._write(b"\n")

    def _read(self) -> bool:
        torn = False
        with self.path.open("rb") as file:
            for line in file:
                torn = not line.endswith(b"\n")
                if line == b"\n":
                    continue
                try:
                    stored = _LINE.decode(line)
                    key = bytes.fromhex(stored.key)
                except (msgspec.DecodeError, ValueError, RecursionError):
                    self.unreadable += 1
                    continue
                if torn or not key or not stored.readable:
                    self.unreadable += 1
                    continue
                self._keep(key, Reply(**{name: getattr(stored, name) for name in Reply.__struct_fields__}))
                owed = stored.failure is not None and stored.kind in ENDPOINT
                (self._retried.add if owed else self._retried.discard)(key)
        return torn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._by_key)

    def __getitem__(self, key: bytes) -> Reply:
        kept = self._by_key[key]
        return Reply(value=kept) if isinstance(kept, float) else kept

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def take(self, key: bytes) -> Reply:
        """The reply; if it is taken again, without what it took, so that nothing is counted twice."""
        reply = self[key]
        rest = msgspec.structs.replace(reply, tokens=0, spoken=0, cost=0.0, seconds=0.0)
        plain = isinstance(rest.value, float) and not (rest.text or rest.cut)
        self._by_key[key] = rest.value if plain else rest  # type: ignore[assignment]
        return reply

    def owed(self, calls: Iterable[Call]) -> list[Call]:
        """The calls that have no settled reply, here or in the cache; each key once."""
        missing = {call.key: call for call in calls if call.key not in self._by_key or call.key in self._retried}
        if self._cache and missing:
            known: dict[bytes, Reply] = {}
            for key, stored in self._cache.get_raw(list(missing)).items():
                with suppress(msgspec.DecodeError):
                    known[key] = msgspec.structs.replace(_REPLY.decode(stored), cost=0.0, seconds=0.0)
                    del missing[key]
            if known:
                self.add(known, "cache")
        return list(missing.values())

    def add(self, replies: Mapping[bytes, Reply], model: str = "") -> None:
        """One write for a batch: after a crash it is there or it is not."""
        lines = [_line(key, model, reply) for key, reply in replies.items()]
        with self._lock:
            with writing(self.path):
                self._write(b"".join(lines))
            for key, reply in replies.items():
                self._keep(key, reply)
                self._retried.discard(key)

    def _write(self, content: bytes) -> None:
        while content:  # a disk that is nearly full takes a part, and refuses the next
            content = content[self._file.write(content) :]

    def share(self, replies: Mapping[bytes, Reply], model: str) -> None:
        """Let other runs find these, if there is a cache."""
        if self._cache and replies:
            self._cache.put_raw(model, {key: _ENCODER.encode(reply) for key, reply in replies.items()})

    def _keep(self, key: bytes, reply: Reply) -> None:
        earlier = self._by_key.get(key)
        if isinstance(earlier, Reply) and earlier.failure is not None:  # it was charged all the same
            reply = msgspec.structs.replace(
                reply,
                text=[*earlier.text, *reply.text],
                tokens=earlier.tokens + reply.tokens,
                spoken=earlier.spoken + reply.spoken,
                cost=earlier.cost + reply.cost,
                seconds=earlier.seconds + reply.seconds,
            )
        self._by_key[key] = reply


def open_replies(folder: Path, progress: Progress, *, cache: bool = True) -> Replies:
    """The replies of a run folder; with `cache`, those of other runs are used too."""
    shared = Cache() if cache else None
    replies = Replies(folder / REPLIES, shared)
    if shared and shared.problem:
        progress.note(f"{shared.problem}; continuing without it")
    if replies.unreadable:
        lines = "1 line" if replies.unreadable == 1 else f"{replies.unreadable} lines"
        progress.note(f"{lines} of {REPLIES} cannot be read; what they replied to is asked again")
    if len(replies):
        progress.note(f"resuming: {len(replies):,} replies are there")
    return replies


def _line(key: bytes, model: str, reply: Reply) -> bytes:
    fields = {name: getattr(reply, name) for name in Reply.__struct_fields__}
    return _ENCODER.encode(_Line(key=key.hex(), model=model, **fields)) + b"\n"


# --- keys ---


def key_start(fingerprint: str, method: str) -> hashlib.blake2b:
    """What all keys of a model begin with; copy it and update the copy."""
    start = hashlib.blake2b(digest_size=16)
    start.update(_netstring([fingerprint, method]))
    return start


def query_parts(query: Query) -> list[str]:
    """Everything that a query shows, each kind of thing preceded by how many there are."""
    parts = ["" if query.user is None else f"user {query.user}", query.question, str(len(query.plan)), *query.plan]
    for things in (query.posts, query.choices, query.context):
        parts.append(str(len(things)))
        for thing in things:
            parts += thing
    return parts


def call_key(start: hashlib.blake2b, *parts: str) -> bytes:
    """Texts as a key; no two lists of texts have the same, whatever the texts are."""
    keyed = start.copy()
    keyed.update(_netstring(parts))
    return keyed.digest()


def calls_of(start: hashlib.blake2b, asks: Sequence[Ask | Duel]) -> list[Call]:
    """Asks about one query as calls; the query is digested once."""
    if not asks:
        return []
    shown = start.copy()
    shown.update(_netstring(query_parts(asks[0].query)))
    return [Call(call_key(shown, *ask[1:]), ask) for ask in asks]


def _netstring(parts: Iterable[str]) -> bytes:
    return "".join([f"{len(part)}:{part}" for part in parts]).encode("utf-8", "surrogatepass")


# --- the loop ---


class Asked(NamedTuple):
    """Whom the calls of a plan are for."""

    name: str
    """As messages and files show it."""
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    """One result per ask, in order."""
    identity: str
    """What its keys begin with: the fingerprint of a model that was made from a spec."""
    remote: bool = False
    workers: int = 1
    """How many batches it computes at a time: one on this machine, one per replica of a cluster."""
    method: str = ""
    given: bool = False
    """Whether it is an object of the caller's."""
    at_once: int | None = None
    """How many calls of a batch a slow model computes and stores together, so that a crash loses no more."""

    @classmethod
    def of(cls, name: str, model: Any, method: str, *, given: bool = False) -> Self:
        """`given` is an object of the caller's own. Nothing keeps two of them from having the same fingerprint, so its
        keys have its name too, and only what was sent to another machine goes to the cache."""
        identity = f"{name}\n{model.fingerprint}" if given else str(model.fingerprint)
        workers, at_once = int(getattr(model, "workers", 1)), getattr(model, "at_once", None)
        return cls(name, partial(ask_model, model, method), identity, is_remote(model), workers, method, given, at_once)

    def key_start(self) -> hashlib.blake2b:
        return key_start(self.identity, self.method)


def ask_missing(
    plan: Iterable[tuple[T, Sequence[Call]]],
    replies: Replies,
    asked: Asked,
    breaker: Breaker,
    *,
    afford: Callable[[Sequence[Call]], int] = len,
    max_transient: int | None = None,
    pace: Callable[[float], None] = lambda _: None,
) -> Iterator[T]:
    """Every batch of a plan, in order, once all its calls have a reply.

    What several calls ask is asked once. With several workers, batches are computed in threads and stored as they
    finish. `afford` says how many of some calls may be made at once; it raises if not even one may be.
    `max_transient` is how many failures of the endpoint, without a reply in between, stop the run. Each time some calls
    were made, `pace` is told how many seconds one took.

    If the model cannot be reached or the budget is used up, this raises, and what was answered is kept.
    """
    under_way: set[bytes] = set()
    batches = _Batches(replies, asked, breaker, max_transient)

    def owed() -> Iterator[tuple[T, list[Call]]]:
        for batch, calls in plan:
            if (planned := _planned.get()) is not None:
                planned.setdefault(asked.name, Planned()).keys.update(call.key for call in calls)
            unique = [call for call in replies.owed(calls) if not (call.key in under_way or call.key in batches.failed)]
            under_way.update(call.key for call in unique)
            yield batch, unique

    def ask(planned: tuple[T, list[Call]]) -> None:
        calls = planned[1]
        while calls:
            size = min(afford(calls), asked.at_once or len(calls))
            pace(batches.compute(calls[:size]))
            calls = calls[size:]

    for (batch, calls), _ in in_order(owed(), ask, asked.workers):
        under_way.difference_update(call.key for call in calls)
        yield batch


# --- dry runs ---


@dataclass
class Planned:
    """Calls to one model that a run would make."""

    keys: set[bytes] = field(default_factory=set)
    """Of all calls, those that have a reply included."""
    owed: int = 0
    characters: int = 0
    """Of the texts that owed calls would send, without instructions that the model adds."""


_planned: ContextVar[dict[str, Planned] | None] = ContextVar("planned", default=None)


@contextmanager
def asking_nothing() -> Iterator[dict[str, Planned]]:
    """Within it, calls without a reply are counted by model instead of made, and get a stand-in for a reply: what
    depends on it can be counted too. For folders that are thrown away; the cache is only read."""
    planned: dict[str, Planned] = {}
    token = _planned.set(planned)
    try:
        yield planned
    finally:
        _planned.reset(token)


def _stand_in(ask: object, number: int) -> Reply:
    match ask:
        case Ask() | str():
            return Reply(value=0.0)
        case Duel():
            return Reply(value="tie")
        case Query():
            return Reply(value=[f"plan {number}"])
    if hasattr(ask, "chat"):
        return Reply(value=f"answer {number}")  # no two the same, so that what comes after is not underestimated
    return Reply(failure="not asked", kind="unmeasured")


def _characters(ask: Any) -> int:
    if isinstance(ask, Ask | Duel):
        return sum(map(len, [*query_parts(ask.query), *ask[1:]]))
    if isinstance(ask, Query):
        return sum(map(len, query_parts(ask)))
    return sum(len(turn.text) for turn in ask.chat) if hasattr(ask, "chat") else len(str(ask))


def in_order(items: Iterable[A], compute: Callable[[A], B], workers: int) -> Iterator[tuple[A, B]]:
    """Every item with its result, in the order of the items, while `workers` threads compute."""
    if workers == 1:
        yield from ((item, compute(item)) for item in items)
        return
    pool = ThreadPoolExecutor(workers, "prb-work")
    pending: deque[tuple[A, Future[B]]] = deque()
    try:
        for item in items:
            pending.append((item, pool.submit(copy_context().run, compute, item)))
            if len(pending) > 2 * workers:
                first, future = pending.popleft()
                yield first, future.result()
        yield from ((item, future.result()) for item, future in pending)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def ask_all(calls: Sequence[Call], replies: Replies, asked: Asked, breaker: Breaker) -> list[Reply]:
    """One batch at once, for what later calls depend on."""
    list(ask_missing([((), calls)], replies, asked, breaker))
    return [replies[call.key] for call in calls]


class _Batches:
    """Computes and stores batches, and notices when a run should stop."""

    def __init__(self, replies: Replies, asked: Asked, breaker: Breaker, max_transient: int | None) -> None:
        self._replies, self._asked, self._breaker, self._max_transient = replies, asked, breaker, max_transient
        self._lock = threading.Lock()
        self._transient = 0
        self.failed: set[bytes] = set()
        """Keys that failed in this process: not worth asking about twice in one run."""

    def compute(self, calls: Sequence[Call]) -> float:
        """The seconds that a call took."""
        if (planned := _planned.get()) is not None:
            self._count(planned[self._asked.name], calls)
            return 0.0
        start = time.perf_counter()
        answers = self._asked.answer([call.ask for call in calls])
        seconds = round((time.perf_counter() - start) / len(calls), 6)
        with self._lock:
            error = self._breaker.error(answers, self._asked.name)
            answered = {
                call.key: Reply.of(answer, seconds)
                for call, answer in zip(calls, answers, strict=True)
                if not (error and unanswered(answer))
            }
            self._replies.add(answered, self._asked.name)
            if error:
                raise error
            self.failed.update(key for key, reply in answered.items() if reply.failure is not None)
            lost = [answer for answer in answers if unanswered(answer)]
            self._transient = self._transient + len(lost) if len(lost) == len(answers) else 0
        # what costs nothing to compute again is not worth a place in the cache
        asked = self._asked
        worth = {k: r for k, r in answered.items() if asked.remote or (r.tokens and not asked.given)}
        self._replies.share({k: r for k, r in worth.items() if r.failure is None}, asked.identity)
        if self._max_transient is not None and self._transient >= self._max_transient:
            raise Unreachable(f"{self._asked.name}: {lost[0]}; {RESUME}")
        return seconds

    def _count(self, planned: Planned, calls: Sequence[Call]) -> None:
        with self._lock:
            planned.characters += sum(_characters(call.ask) for call in calls)
            self._replies.add({call.key: _stand_in(call.ask, planned.owed + n) for n, call in enumerate(calls)})
            planned.owed += len(calls)
