"""Whatever was acknowledged is there exactly once, whoever pulls the plug."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.study.crowd import run_storm


def storm(folder: Path, where: str, *, annotators: int, judgements: int, kills: int) -> None:
    crowd, stored = run_storm(folder, where, annotators=annotators, judgements=judgements, kills=kills)
    assert len(crowd.acknowledged) == 2 * judgements
    assert stored == crowd.acknowledged
    assert crowd.lost > 0  # the plug was pulled while somebody was waiting


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_hundred_judgements_survive_a_kill(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm(tmp_path, _where(tmp_path, request, kind), annotators=20, judgements=200, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_twenty_thousand_judgements_of_two_hundred_annotators_survive_three_kills(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    storm(tmp_path, _where(tmp_path, request, kind), annotators=200, judgements=20_000, kills=3)


def _where(folder: Path, request: Any, kind: str) -> str:
    fresh: Callable[[], str] = (
        request.getfixturevalue("postgres") if kind == "postgres" else lambda: str(folder / "s.db")
    )
    return fresh()
