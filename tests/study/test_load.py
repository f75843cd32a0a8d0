"""Whatever was acknowledged is there exactly once, whoever pulls the plug."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.jobs import times
from tests.study.crowd import run_storm


def storm(folder: Path, where: str, *, annotators: int, judgements: int, kills: int) -> None:
    crowd, stored = run_storm(folder, where, annotators=annotators, judgements=judgements, kills=kills)
    assert len(crowd.acknowledged) == 2 * judgements
    assert stored == crowd.acknowledged
    assert crowd.lost > 0  # the plug was pulled while somebody was waiting


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_acknowledged_judgements_survive_kills(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """In full: 20,000 of them by 200 annotators, three kills."""
    size = {"annotators": times(20, 200), "judgements": times(200, 20_000), "kills": times(1, 3)}
    storm(tmp_path, _where(tmp_path, request, kind), **size)


def _where(folder: Path, request: Any, kind: str) -> str:
    fresh: Callable[[], str] = (
        request.getfixturevalue("postgres") if kind == "postgres" else lambda: str(folder / "s.db")
    )
    return fresh()
