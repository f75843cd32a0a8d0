"""An event loop in a thread of its own: connections outlive a call, and calls work inside other event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Closable(Protocol):
    """What lives on the loop, such as an HTTP client."""

    def aclose(self) -> Awaitable[Any]: ...


C = TypeVar("C", bound=Closable)


class Background(Generic[C]):
    """Runs coroutines from any thread, notebook or server on one loop, which ends with its owner.

    `make` is called when the thread starts, and again in a forked child, where threads do not survive; it must hold no
    reference to the owner. Coroutines find what it returned in `made`.
    """

    made: C

    def __init__(self, name: str, make: Callable[[], C]) -> None:
        self._name, self._make = name, make
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        self._start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt must not wait for replies
            raise

    def _start(self) -> None:
        with self._lock:
            if self._thread and self._thread.is_alive():  # it is dead in a forked child
                return
            self._loop, self.made = asyncio.new_event_loop(), self._make()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop, self.made), name=self._name, daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _stop_loop, self._loop)


def _run_loop(loop: asyncio.AbstractEventLoop, made: Closable) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(made.aclose())
    loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # closed already
        loop.call_soon_threadsafe(loop.stop)
