"""When a run should stop instead of collecting failures, and which failures are worth asking about again.

A model that cannot be reached (wrong key, unknown model, connection refused) fails on every row. So `Breaker` stops a
run after a few such failures in a row, and at once when the budget is used up. Rows without an answer are not recorded
as failed; answers that were paid for are kept by the verb that got them.
"""

from __future__ import annotations

import gc
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar, TypeVar, get_args

from prb.config import Rare, Settings, Share, config
from prb.errors import BudgetUsedUp, PrbError, TooManyFailures, Unreachable, first_line
from prb.registry import FROM_FILE
from prb.types import Failure, FailureKind, Verdict, Winner

T = TypeVar("T")
V = TypeVar("V")

ENDPOINT: tuple[FailureKind, ...] = ("budget", "fatal", "transient")
"""Kinds of failure that say nothing about a row, most severe first."""
MAX_FATAL = 5
"""Failures in a row that retrying cannot fix, after which a run stops: wrong key, unknown model, no connection."""
OUT_OF_MEMORY = "out of memory"
RESUME = "what is done is kept; run the same command again to resume"


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
    """Ask nothing and write nothing: only estimate calls, tokens, dollars and time."""


class Breaker:
    """Counts fatal failures without an answer in between. Endpoints give up on a batch at the same limit, instead of
    trying the rest of it.

    The verb passes the answers of each batch to `error`, keeps those that are not `unanswered`, and raises.
    """

    def __init__(self, limit: int = MAX_FATAL) -> None:
        self.limit = limit
        self._fatal = 0
        self.tripped: Failure | None = None
        """The failure that reached the limit."""

    def add(self, answer: object) -> None:
        if not isinstance(answer, Failure):
            self._fatal = 0
        elif answer.kind == "fatal":
            self._fatal += 1
            if self._fatal >= self.limit:
                self.tripped = answer

    def error(self, answers: Iterable[object], name: str) -> PrbError | None:
        """What to raise if the budget is used up, or if too many fatal failures have come in a row."""
        for answer in answers:
            if isinstance(answer, Failure) and answer.kind == "budget":
                return BudgetUsedUp(f"{name}: {answer}; {RESUME} with a fresh budget of the same size")
            self.add(answer)
        if not self.tripped:
            return None
        why = f"no answer in {self.limit} or more attempts in a row"
        return Unreachable(f"{name}: {self.tripped}; {why}; check key, model name and address; {RESUME}")


def unanswered(answer: object) -> bool:
    """Whether the endpoint failed rather than the row, so that nothing is recorded when the run stops here."""
    return isinstance(answer, Failure) and answer.kind in ENDPOINT


def gravest(failures: Iterable[Failure]) -> Failure:
    """The most severe failure, which stands for all: one of the endpoint rather than of a row, else the first."""
    return min(failures, key=lambda failure: (*ENDPOINT, "row", "unmeasured").index(failure.kind))


def ask_model(model: object, method: str, batch: Sequence[Any]) -> list[Any]:
    """`model.method(batch)`, in parts where it does not fit in memory, checked: a model may be anybody's plug-in, and
    its mistakes are one line that names its class."""
    name = f"{type(model).__name__}.{method}"
    try:
        replies = halve_if_out_of_memory(getattr(model, method), batch)
    except (PrbError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        if isinstance(error, PrbError) or not type(model).__module__.startswith(FROM_FILE):
            raise
        where = extract_tb(error.__traceback__)[-1]
        at = f"{Path(where.filename).name}, line {where.lineno}"
        raise PrbError(f"{name} failed: {type(error).__name__}: {first_line(error)} ({at})") from error
    if len(replies) != len(batch):
        raise PrbError(f"{name} returned {len(replies)} results for {len(batch)} inputs; it must return one for each")
    return [_checked(reply, name) for reply in replies] if method in ("score", "prefer") else replies


def _checked(reply: Any, name: str) -> Any:
    """The reply of a scorer as a float, of a comparer as a verdict; a failure is a reply too."""
    if isinstance(reply, Failure) or (isinstance(reply, float) and name.endswith(".score")):
        return reply
    expected = "Verdict(choice='first', 'second' or 'tie')"
    if name.endswith(".score"):
        expected = "numbers"
        if hasattr(reply, "__float__") and not isinstance(reply, bool):
            with suppress(TypeError, ValueError, RuntimeError, OverflowError):
                return float(reply)  # an int, or a scalar of numpy or torch
    elif isinstance(reply, Verdict) and reply.choice in get_args(Winner):
        return reply
    raise PrbError(f"{name} must return {expected} or Failure(reason), not {reprlib.repr(reply)}")


def share_problem(what: str, failed: int, total: int, reasons: Mapping[str, int], max_failed: float) -> str | None:
    """A line that says so if more than the allowed share failed."""
    if failed <= max_failed * total:
        return None
    return f"{what}: {failed} of {total} failed ({count_reasons(reasons)})"


def refuse_failures(problems: Iterable[str | None], max_failed: float) -> None:
    """Raise `TooManyFailures` if any `share_problem` is not None."""
    if lines := list(filter(None, problems)):
        raise TooManyFailures(f"too many failures (--max-failed {max_failed:g}):\n  " + "\n  ".join(lines))


def count_reasons(failures: Mapping[str, int], shown: int = 3) -> str:
    """The most frequent reasons with their counts."""
    ordered = sorted(failures.items(), key=lambda entry: (-entry[1], entry[0]))
    more = [f"{len(ordered) - shown} other reasons"] if len(ordered) > shown else []
    return ", ".join([*(f"{count} × {reason}" for reason, count in ordered[:shown]), *more])


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
    if out_of_memory:
        free_memory()
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


def free_memory() -> None:
    """Give memory that nobody holds any more back to the device."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.empty_cache()
