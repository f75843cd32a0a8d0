"""No test of a language model sees the keys or addresses of whoever runs it, or waits long to try again."""

from __future__ import annotations

import pytest

NAMES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("prb.llm.endpoint.retry_pause", lambda *_: 0.002)
