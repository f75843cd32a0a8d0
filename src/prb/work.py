"""Calls, replies, the one loop that asks models what has no reply yet, and when that loop must stop.

A run is a function of its rows and of what the models replied. A verb *plans* calls, each with a key: the digest of the
model's fingerprint and of exactly what it is shown and asked. `ask_missing` leaves out keys that have a reply, asks the
rest batch by batch, and appends the replies of a batch to `replies.jsonl` in one write. What the verb reports is then
*derived* from rows and replies. So a run that was killed resumes with the batches that were under way, a line that
cannot be read costs one call, and several shards are merged by reading all of their replies.

A model that cannot be reached (wrong key, unknown model, connection refused) fails on every row. So `Breaker` stops a
run after a few such failures in a row, and at once when the budget is used up. Rows without an answer are not recorded
as failed; answers that were paid for are kept.
"""

from __future__ import annotations

import gc
import hashlib
import math
import reprlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_args

import msgspec

from prb.cache import Cache
from prb.config import Rare, Settings, Share, config
from prb.errors import BudgetUsedUp, PrbError, TooManyFailures, Unreachable, first_line
from prb.progress import Progress
from prb.registry import FROM_FILE
from prb.runs import REPLIES, writing
from prb.types import Ask, Duel, Failure, FailureKind, Query, Reward, Verdict, Winner, is_remote

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
V = TypeVar("V")
LARGEST_REWARD = 1e100
"""Beyond it sums and squares of margins overflow; no model means such a reward."""
ENDPOINT: tuple[FailureKind, ...] = ("budget", "fatal", "transient")
"""Kinds of failure that say nothing about a row, most severe first."""
MAX_FATAL = 5
"""Failures in a row that retrying cannot fix, after which a run stops: wrong key, unknown model, no connection."""
OUT_OF_MEMORY = "out of memory"
AT_ONCE, REMOTE_AT_ONCE = 8, 256
"""Answers asked about together, on this machine and elsewhere; a crash costs at most these."""
RESUME = "what is done is kept; run the same command again to resume"


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time; the last list may be shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


# --- calls and replies ---
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
    def as_failure(self) -> Failure | None:
        """The failure, with what it cost; `None` if there is a value."""
        if self.failure is None:
            return None
        prompt_tokens = self.tokens - self.spoken
        failure = Failure.parse(self.failure, self.kind)
        return replace(failure, prompt_tokens=prompt_tokens, completion_tokens=self.spoken, cost=self.cost)

    @classmethod
    def of(cls, answer: Any, seconds: float = 0.0) -> Self:
        """From what a model returns; types of other packages say themselves what to store (`as_reply`)."""
        if isinstance(answer, Real):
            answer = checked_reward(answer)  # type: ignore[arg-type]
        used: dict[str, Any] = {"seconds": seconds}
        if isinstance(answer, Failure | Reward | Verdict):
            used |= {"tokens": answer.tokens, "cost": answer.cost}
        if isinstance(answer, Reward | Verdict):
            used |= {"cut": answer.cut, "text": [answer.text] if answer.text else []}
        match answer:
            case Failure():
                return cls(failure=str(answer), kind=answer.kind, spoken=answer.completion_tokens, **used)
            case Verdict():
                return cls(value=answer.choice, log_odds=answer.log_odds, **used)
            case Real():
                return cls(value=float(answer), spoken=getattr(answer, "spoken", 0), **used)
            case tuple() | list():
                return cls(value=list(answer), **used)
            case _:
                return cls(**answer.as_reply(), **used)


def checked_reward(reward: float | Failure) -> float | Failure:
    """A reward that can be computed with, or a failure."""
    if isinstance(reward, Failure) or abs(reward) <= LARGEST_REWARD:
        return reward
    return Failure("too large a number" if math.isfinite(reward) else "not a finite number", str(float(reward)))


class _Line(Reply, frozen=True, omit_defaults=True):
    """A reply as a line of `replies.jsonl`."""

    key: str = ""
    model: str = ""
    """Who replied, for people who read the file."""


class _Key(msgspec.Struct):
    key: str


_KEY, _REPLY, _ENCODER = msgspec.json.Decoder(_Key), msgspec.json.Decoder(Reply), msgspec.json.Encoder()


class Replies:
    """Replies by key, in a file that only grows; the last line of a key counts.

    The call of a line that cannot be read, torn by a crash or changed by hand, is asked again. Settled replies are
    shared with other runs through `cache`. Of a reply that was taken only what can be taken again is kept, mostly one
    number: a run may have millions.
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
            torn = path.exists() and self._read()
            self._file = path.open("ab", buffering=0)
            if torn:
                self._file.write(b"\n")

    def _read(self) -> bool:
        """Whether the last line is torn."""
        line = b"\n"
        with self.path.open("rb") as file:
            for line in file:
                if line == b"\n":
                    continue
                try:
                    key, reply = bytes.fromhex(_KEY.decode(line).key), _REPLY.decode(line)
                except (msgspec.DecodeError, ValueError, RecursionError):
                    self.unreadable += 1
                    continue
                whole = (reply.value is None) != (reply.failure is None) and line.endswith(b"\n")
                if not whole or (isinstance(reply.value, float) and abs(reply.value) > LARGEST_REWARD):
                    self.unreadable += 1
                    continue
                self._keep(key, reply)
                (self._retried.add if reply.kind in ENDPOINT else self._retried.discard)(key)
        return not line.endswith(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._by_key)

    def __getitem__(self, key: bytes) -> Reply:
        kept = self._by_key[key]
        return Reply(value=kept) if isinstance(kept, float) else kept

    def take(self, key: bytes) -> Reply:
        """The reply; if it is taken again, without what it took, so that nothing is counted twice."""
        reply = self[key]
        rest = msgspec.structs.replace(reply, tokens=0, spoken=0, cost=0.0, seconds=0.0)
        plain = isinstance(rest.value, float) and not (rest.text or rest.cut)
        self._by_key[key] = rest.value if plain else rest  # type: ignore[assignment]
        return reply

    def owed(self, calls: Iterable[Call]) -> list[Call]:
        """The calls that have no settled reply, each key once. Replies found in the cache are added here first."""
        missing = {call.key: call for call in calls if call.key not in self._by_key or call.key in self._retried}
        if self._cache and missing:
            known: dict[bytes, Reply] = {}
            for key, stored in self._cache.get(list(missing)).items():
                with suppress(msgspec.DecodeError):
                    known[key] = msgspec.structs.replace(_REPLY.decode(stored), cost=0.0, seconds=0.0)
                    del missing[key]
            if known:
                self.add(known, "cache")
        return list(missing.values())

    def add(self, replies: Mapping[bytes, Reply], model: str = "") -> None:
        """One write for a batch: after a crash it is there or it is not."""
        lines = [
            _ENCODER.encode(_Line(key=key.hex(), model=model, **msgspec.structs.asdict(reply))) + b"\n"
            for key, reply in replies.items()
        ]
        content = b"".join(lines)
        with self._lock:
            with writing(self.path):
                while content:  # a disk that is nearly full takes a part, and refuses the next
                    content = content[self._file.write(content) :]
            for key, reply in replies.items():
                self._keep(key, reply)
                self._retried.discard(key)

    def share(self, replies: Mapping[bytes, Reply], model: str) -> None:
        """Let other runs find these, if there is a cache."""
        if self._cache and replies:
            self._cache.put(model, {key: _ENCODER.encode(reply) for key, reply in replies.items()})

    def _keep(self, key: bytes, reply: Reply) -> None:
        earlier = self._by_key.get(key)
        if isinstance(earlier, Reply) and earlier.failure is not None:  # it was charged all the same
            names = ("text", "tokens", "spoken", "cost", "seconds")
            both = {name: getattr(earlier, name) + getattr(reply, name) for name in names}
            reply = msgspec.structs.replace(reply, **both)
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


# --- keys ---


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


class CalledModel(NamedTuple):
    """The model that a plan calls."""

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
    from_caller: bool = False
    """Whether it is an object that a caller of Python handed in, not one made from a spec."""
    at_once: int | None = None
    """How many calls of a batch a slow model computes and stores together, so that a crash loses no more."""

    @classmethod
    def of(cls, name: str, model: Any, method: str, *, from_caller: bool = False) -> Self:
        """Nothing keeps two objects of a caller's from having the same fingerprint, so their keys have their name too,
        and only what was sent to another machine goes to the cache."""
        return cls(
            name,
            partial(ask_model, model, method),
            identity=f"{name}\n{model.fingerprint}" if from_caller else str(model.fingerprint),
            remote=is_remote(model),
            workers=int(getattr(model, "workers", 1)),
            method=method,
            from_caller=from_caller,
            at_once=getattr(model, "at_once", None),
        )

    @property
    def batch(self) -> int:
        """How many answers it is asked about together."""
        return REMOTE_AT_ONCE if self.remote else AT_ONCE

    def key_start(self) -> hashlib.blake2b:
        """What all its keys begin with; copy it and update the copy."""
        return hashlib.blake2b(_netstring([self.identity, self.method]), digest_size=16)


def ask_missing(
    plan: Iterable[tuple[T, Sequence[Call]]],
    replies: Replies,
    called: CalledModel,
    breaker: Breaker,
    *,
    max_transient: int | None = None,
) -> Iterator[T]:
    """Every batch of a plan, in order, once all its calls have a reply.

    What several calls ask is asked once. With several workers, batches are computed in threads and stored as they
    finish. `max_transient` is how many failures of the endpoint, without a reply in between, stop the run.

    If the model cannot be reached or the budget is used up, this raises, and what was answered is kept.
    """
    under_way: set[bytes] = set()
    failed: set[bytes] = set()  # in this process: not worth asking about twice in one run
    lock, lost_in_a_row = threading.Lock(), 0

    def owed() -> Iterator[tuple[T, list[Call]]]:
        for batch, calls in plan:
            if (planned := planned_calls.get()) is not None:
                planned.setdefault(called.name, Planned()).keys.update(call.key for call in calls)
            unique = [call for call in replies.owed(calls) if not (call.key in under_way or call.key in failed)]
            under_way.update(call.key for call in unique)
            yield batch, unique

    def ask(of_batch: tuple[T, list[Call]]) -> None:
        for calls in chunks(of_batch[1], called.at_once or max(1, len(of_batch[1]))):
            compute(calls)

    def compute(calls: Sequence[Call]) -> None:
        nonlocal lost_in_a_row
        if (planned := planned_calls.get()) is not None:
            with lock:
                planned[called.name].count(calls, replies)
            return
        start = time.perf_counter()
        answers = called.answer([call.ask for call in calls])
        seconds = round((time.perf_counter() - start) / len(calls), 6)
        lost = [answer for answer in answers if unanswered(answer)]
        with lock:
            error = breaker.error(answers, called.name)
            answered = {
                call.key: Reply.of(answer, seconds)
                for call, answer in zip(calls, answers, strict=True)
                if not (error and unanswered(answer))
            }
            replies.add(answered, called.name)
            if error:
                raise error
            failed.update(key for key, reply in answered.items() if reply.failure is not None)
            lost_in_a_row = lost_in_a_row + len(lost) if len(lost) == len(answers) else 0
        # what costs nothing to compute again is not worth a place in the cache
        settled = {key: reply for key, reply in answered.items() if reply.failure is None}
        worth = {key: r for key, r in settled.items() if called.remote or (r.tokens and not called.from_caller)}
        replies.share(worth, called.identity)
        if max_transient is not None and lost_in_a_row >= max_transient:
            raise Unreachable(f"{called.name}: {lost[0]}; {RESUME}")

    for (batch, calls), _ in in_order(owed(), ask, called.workers):
        under_way.difference_update(call.key for call in calls)
        yield batch


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


# --- dry runs ---
@dataclass
class Planned:
    """Calls to one model that a run would make."""

    keys: set[bytes] = field(default_factory=set)
    """Of all calls, those that have a reply included."""
    owed: int = 0
    characters: int = 0
    """Of the texts that owed calls would send, without instructions that the model adds."""

    def count(self, calls: Sequence[Call], replies: Replies) -> None:
        """Instead of making calls; each gets a stand-in for a reply, so that what depends on it can be counted too."""
        stand_ins = {}
        for n, (key, ask) in enumerate(calls, self.owed):
            match ask:
                case Ask() | Duel():
                    texts, reply = [*query_parts(ask.query), *ask[1:]], Reply(value=0.0)
                    reply = Reply(value="tie") if isinstance(ask, Duel) else reply
                case Query():
                    texts, reply = query_parts(ask), Reply(value=[f"plan {n}"])
                case str():
                    texts, reply = [ask], Reply(value=0.0)
                case _ if hasattr(ask, "chat"):  # no two answers are the same, or what follows is underestimated
                    texts, reply = [turn.text for turn in ask.chat], Reply(value=f"answer {n}")
                case _:
                    texts, reply = [str(ask)], Reply(failure="not asked", kind="unmeasured")
            self.characters += sum(map(len, texts))
            stand_ins[key] = reply
        replies.add(stand_ins)
        self.owed += len(calls)


planned_calls: ContextVar[dict[str, Planned] | None] = ContextVar("planned_calls", default=None)
"""In a dry run, what it would ask, by model: calls without a reply are counted here instead of made, and get a stand-in
for a reply. For folders that are thrown away; the cache is only read."""


# --- failures ---


@config
class FailureConfig(Settings):
    """How models are asked, and what happens when they do not answer."""

    presentation: ClassVar[frozenset[str]] = frozenset({"cache", "max_failed", "fresh", "dry_run"})

    max_failed: Rare[Share] = 0.1
    """Exit 1 if more than this share of a model's rows failed."""
    cache: Rare[bool] = True
    """Use what models replied to the same question in other runs; --no-cache asks again."""
    fresh: bool = False
    """Start the folder over: what failed is asked again, what was answered comes from the cache."""
    dry_run: bool = False
    """Ask nothing and write nothing: only estimate calls, tokens and dollars."""


class Breaker:
    """Counts fatal failures without an answer in between. Endpoints give up on a batch at the same limit, instead of
    trying the rest of it.

    The verb passes the answers of each batch to `error`, keeps those that are not `unanswered`, and raises.
    """

    def __init__(self) -> None:
        self._fatal = 0
        self.tripped: Failure | None = None
        """The failure that reached the limit."""

    def add(self, answer: object) -> None:
        if not isinstance(answer, Failure):
            self._fatal = 0
        elif answer.kind == "fatal":
            self._fatal += 1
            if self._fatal >= MAX_FATAL:
                self.tripped = answer

    def error(self, answers: Iterable[object], name: str) -> PrbError | None:
        """Count these answers; what to raise if the budget is used up or too many fatal failures came in a row."""
        for answer in answers:
            if isinstance(answer, Failure) and answer.kind == "budget":
                return BudgetUsedUp(f"{name}: {answer}; {RESUME} with a fresh budget of the same size")
            self.add(answer)
        if not self.tripped:
            return None
        why = f"no answer in {MAX_FATAL} or more attempts in a row"
        return Unreachable(f"{name}: {self.tripped}; {why}; check key, model name and address; {RESUME}")


def unanswered(answer: object) -> bool:
    """Whether the endpoint failed rather than the row, so that nothing is recorded when the run stops here."""
    return isinstance(answer, Failure) and answer.kind in ENDPOINT


def gravest(failures: Iterable[Failure]) -> Failure:
    """The most severe failure, which stands for all: one of the endpoint rather than of a row, else the first."""
    return min(failures, key=lambda failure: (*ENDPOINT, "row", "unmeasured").index(failure.kind))


Failed = tuple[str, int, int, Mapping[str, int]]
"""Who failed on how many of how many, and why, by reason."""


def refuse_failures(counted: Iterable[Failed], max_failed: float, others: Iterable[str] = ()) -> None:
    """Raise `TooManyFailures` if more than the allowed share failed of any of these, or for other reasons."""
    lines = []
    for what, failed, total, reasons in counted:
        if failed > max_failed * total:
            lines.append(f"{what}: {failed} of {total} failed ({count_reasons(reasons)})")
    if lines := [*lines, *others]:
        raise TooManyFailures(f"too many failures (--max-failed {max_failed:g}):\n  " + "\n  ".join(lines))


def count_reasons(failures: Mapping[str, int]) -> str:
    """The three most frequent reasons with their counts."""
    ordered = sorted(failures.items(), key=lambda entry: (-entry[1], entry[0]))
    more = [f"{len(ordered) - 3} other reasons"] if len(ordered) > 3 else []
    return ", ".join([*(f"{count} × {reason}" for reason, count in ordered[:3]), *more])


# --- a model's call, checked ---
def ask_model(model: object, method: str, batch: Sequence[Any]) -> list[Any]:
    """`model.method(batch)`, in parts where it does not fit in memory, checked: a model may be anybody's plug-in, and
    its mistakes are one line that names its class."""
    name = f"{type(model).__name__}.{method}"
    try:
        replies = halve_if_out_of_memory(getattr(model, method), batch)
    except Exception as error:
        if isinstance(error, PrbError) or not type(model).__module__.startswith(FROM_FILE):
            raise
        where = extract_tb(error.__traceback__)[-1]
        at = f"{Path(where.filename).name}, line {where.lineno}"
        raise PrbError(f"{name} failed: {type(error).__name__}: {first_line(error)} ({at})") from error
    if len(replies) != len(batch):
        raise PrbError(f"{name} returned {len(replies)} results for {len(batch)} inputs; it must return one for each")
    for n, reply in enumerate(replies) if method in ("score", "prefer") else ():
        expected, fits = "numbers", isinstance(reply, float)
        if method == "prefer":
            expected = "Verdict(choice='first', 'second' or 'tie')"
            fits = isinstance(reply, Verdict) and reply.choice in get_args(Winner)
        elif not fits and hasattr(reply, "__float__") and not isinstance(reply, bool):  # an int, a scalar of torch
            with suppress(TypeError, ValueError, RuntimeError, OverflowError):
                replies[n], fits = float(reply), True
        if not (fits or isinstance(reply, Failure)):
            raise PrbError(f"{name} must return {expected} or Failure(reason), not {reprlib.repr(reply)}")
    return replies


def halve_if_out_of_memory(
    compute: Callable[[Sequence[T]], Sequence[V | Failure]], items: Sequence[T]
) -> list[V | Failure]:
    """One result per item. Items that do not fit in memory together are computed in parts; one that does not fit alone
    is a failure. Other errors are raised."""
    return compute_in_halves(
        compute, items, retries=is_out_of_memory, failure=lambda _: Failure(OUT_OF_MEMORY, "it does not fit alone")
    )


def compute_in_halves(
    compute: Callable[[Sequence[T]], Sequence[V | Failure]],
    items: Sequence[T],
    *,
    retries: Callable[[BaseException], bool],
    failure: Callable[[BaseException], Failure],
) -> list[V | Failure]:
    """One result per item. If the computation raises an error for which `retries` holds, halves are tried until the
    item that causes it is alone.

    They are tried outside the except block: the error holds the frames of the failed attempt, and they hold tensors.
    """
    try:
        return list(compute(items))
    except (Exception, SystemExit) as error:
        if not retries(error):
            raise
        if len(items) <= 1:
            return [failure(error) for _ in items]
        out_of_memory = is_out_of_memory(error)
    if out_of_memory:  # give back what nobody holds any more
        gc.collect()
        if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
            torch.cuda.empty_cache()
    middle = len(items) // 2
    parts = (items[:middle], items[middle:])
    return [value for part in parts for value in compute_in_halves(compute, part, retries=retries, failure=failure)]


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own error, torch's for a GPU, or the messages of torch's CPU allocator and of CUDA libraries."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(
        words in message for words in ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    )
