"""Whatever was acknowledged is there exactly once, whoever pulls the plug."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.jobs import times
from tests.study.crowd import run_storm


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_acknowledged_judgments_survive_kills(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """In full: 2,000 of them by 20 annotators, three kills."""
    where = request.getfixturevalue("postgres")() if kind == "postgres" else str(tmp_path / "s.db")
    judgments = times(200, 2_000)
    crowd, stored = run_storm(tmp_path, where, annotators=20, judgements=judgments, kills=times(1, 3))
    assert len(crowd.acknowledged) == 2 * (judgments + 20)  # and everybody's practice item
    assert stored == crowd.acknowledged
    assert crowd.lost > 0  # the server was killed while somebody was waiting
