"""Secrets stay out of whatever is shown or stored."""

from __future__ import annotations

import pytest

from prb.progress import Lines
from prb.redact import redact, redact_options, remember_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://user:geheim@host/x", "postgresql://user:[redacted]@host/x"),
        (
            "postgresql://host/x?password=geheim&sslmode=require",
            "postgresql://host/x?password=[redacted]&sslmode=require",
        ),
        (
            'loading judge?llm=(openai/m?extra_body={"api_key": "geheim"})',
            'loading judge?llm=(openai/m?extra_body={"api_key": "[redacted]"})',
        ),
        ("classifier?url=http://h&hf_token=geheim", "classifier?url=http://h&hf_token=[redacted]"),
        ("no verdict: the first token: A", "no verdict: the first token: A"),
        ("120 of 100 tokens; see key_env=RM_KEY", "120 of 100 tokens; see key_env=RM_KEY"),
        ("http://localhost:8000/v1 and http://[::1]:80", "http://localhost:8000/v1 and http://[::1]:80"),
    ],
)
def test_passwords_and_keys_that_were_typed_are_not_shown(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert redact_options(text) == shown
    Lines().begin(text)
    assert capsys.readouterr().err == f"{shown}\n"


def test_a_key_that_was_read_is_removed_whole_and_cut_off() -> None:
    remember_secret("sk-a-secret-of-this-test")
    remember_secret("none")
    text = 'Your key is sk-a-secret-of-this-test, or "sk-a-secret-of"; none of it.'
    assert redact(text) == 'Your key is [redacted] or "[redacted]"; none of it.'
