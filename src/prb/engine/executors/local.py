"""The default: everything in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from prb.engine.executors import EXECUTORS

T = TypeVar("T")


@EXECUTORS.register("local")
class Local:
    """This process."""

    def load(self, make: Callable[[], T], name: str) -> T:  # noqa: ARG002
        return make()

    def close(self) -> None:
        """Nothing to give back."""
