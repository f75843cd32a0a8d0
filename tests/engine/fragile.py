"""Models for workers in other processes. What they should do is told by files, since nothing else reaches them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from prb.types import Ask, Duel, Failure, Reward, Verdict


class Fragile:
    """Scores by length and user. Every call leaves a file; answers that hold `deadly` kill the worker."""

    def __init__(
        self, folder: str, deadly: str = "", raises: str = "", dies_once: str = "", pause: float = 0.0
    ) -> None:
        self.fingerprint = "fragile"
        self._folder = Path(folder)
        self._deadly, self._raises, self._dies_once, self._pause = deadly, raises, dies_once, pause
        if (self._folder / "broken").exists():
            raise RuntimeError("no weights here")

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        texts = " ".join(ask.answer for ask in asks)
        (self._folder / f"call-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(self._pause)
        once = self._folder / "died"
        if self._dies_once and self._dies_once in texts and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._deadly and self._deadly in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._raises and self._raises in texts:
            raise ValueError("the tensor is too large")
        return [self._score(ask) for ask in asks]

    def _score(self, ask: Ask) -> float | Failure:
        if "plant 7" in ask.answer and ask.query.user:
            return Failure("too long")
        about = ask.query.user or "nobody"
        return Reward(sum(map(ord, about + ask.answer)) % 97 / 7, tokens=len(ask.answer), cost=0.1, text=about)


class Differing(Fragile):
    """As if every machine had other weights."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, pause=1.0)  # until another one has loaded
        self.fingerprint = f"weights-{os.getpid()}"


class Picky:
    """A comparer."""

    fingerprint = "picky"

    def prefer(self, duels: Sequence[Duel]) -> list[Verdict | Failure]:
        return [Verdict(choice="first" if duel.first < duel.second else "tie", tokens=3) for duel in duels]


class Reloading:
    """Is pickled as the settings of another, and made anew by whoever unpickles it, as a model is from its spec."""

    fingerprint = "reloading"

    def __init__(self, model: Fragile) -> None:
        self._model = model

    def __reduce__(self) -> tuple[type[Fragile], tuple[str]]:
        return type(self._model), (str(self._model._folder),)

    def score(self, asks: Sequence[Ask]) -> list[float | Failure]:
        return self._model.score(asks)
