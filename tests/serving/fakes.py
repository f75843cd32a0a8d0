"""A reward model whose every call is seen and can be held up, and the score it gives an answer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence

from prb.types import Ask, Failure, Post, Query, Reward

POISON = "poison"
UNSCORABLE = "unscorable"


def worth(ask: Ask) -> float:
    """A number that only this query and this answer have."""
    content = "\0".join([ask.query.question, *(post.text for post in ask.query.posts), *ask.query.plan, ask.answer])
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:6]) / 2**48


class Recorder:
    """Scores by `worth`, notes each batch, waits for `gate`, raises on poison, fails on what is unscorable."""

    def __init__(self, seconds: float = 0.0, *, keep: bool = True) -> None:
        """`keep`: whether batches are kept; in a long run they would look like a leak of the server."""
        self.fingerprint = "recorder-1"
        self._keep = keep
        self.batches: list[list[Ask]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._seconds = seconds

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        if self._keep:
            self.batches.append(list(asks))
        self.entered.release()
        assert self.gate.wait(30)
        time.sleep(self._seconds)
        if any(POISON in ask.answer for ask in asks):
            raise ValueError(f"cannot read {asks[0].answer!r}")
        return [
            Failure("no verdict") if UNSCORABLE in a.answer else Reward(worth(a), cut=a.answer.count("~")) for a in asks
        ]


def ask(question: str, answer: str, *posts: str) -> Ask:
    made = tuple(Post(str(n), "", text) for n, text in enumerate(posts, 1))
    return Ask(Query(question=question, posts=made), answer)
