"""Where keys and texts of the openai back end go, and where they do not."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from prb.errors import BadInput, BadSpec, MissingExtra
from prb.llm import check_llm, make_llm
from tests.llm.clients import ask, endpoint, one, text
from tests.llm.server import (
    Reply,
    Seen,
    error,
    says,
    serve,
)

KEY = "sk-test-1234567890abcdefghij"


def echoed(seen: Seen) -> str:
    return f"bad header {seen.headers['authorization']} or {seen.headers['authorization'][7:24]}*** {'x' * 190}"


@pytest.mark.parametrize(
    "script",
    [
        lambda seen: error(401, echoed(seen)),
        lambda seen: error(400, "y" * 180 + echoed(seen)),
        lambda seen: error(500, echoed(seen)),
        lambda seen: Reply(echoed(seen).encode(), 403),
        lambda seen: Reply(echoed(seen).encode()),
        lambda seen: Reply(json.dumps({"error": echoed(seen)}).encode()),
        lambda seen: says(None, message={"refusal": echoed(seen)}),
        lambda seen: says(f"Your key is {KEY}.", message={"role": echoed(seen)}),
    ],
    ids=["401", "400 at the cut", "500", "text", "garbage", "error inside 200", "refusal", "text of the model"],
)
def test_a_key_that_a_server_repeats_is_shown_nowhere(
    script: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with serve(script) as server, caplog.at_level(logging.DEBUG):
        llm = endpoint(server, key_env="MY_KEY", retries=1)
        result = one(llm)
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    shown = [repr(result), str(result), repr(llm), str(llm), llm.fingerprint, repr(llm.spent), caplog.text]
    shown += capfd.readouterr()
    assert KEY[:10] not in "\n".join(shown)


def test_a_local_server_needs_no_key_and_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        assert text(one(endpoint(server))) == "re: hello"
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        make_llm("openai/gpt-5")
    with pytest.raises(BadInput, match="OTHER_KEY"):
        make_llm("openai/m;base_url=https://llm.example/v1;key_env=OTHER_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", f"  {KEY}\n")
    llm = make_llm("openai/gpt-5")
    assert (llm.fingerprint, llm.remote) == ("openai-gpt-5@https://api.openai.com/v1", True)


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n" + KEY)
    with pytest.raises(BadInput, match="OPENAI_API_KEY") as caught:
        make_llm("openai/gpt-5")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address", "remote"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1", False),
        ("http://LOCALHOST/v1/", "http://localhost/v1", False),
        ("http://127.0.0.2:1/v1", "http://127.0.0.2:1/v1", False),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", False),
        ("https://api.openai.com:443/v1", "https://api.openai.com/v1", True),
        ("http://10.0.0.5:8000/v2", "http://10.0.0.5:8000/v2", True),
        ("http://0.0.0.0:8000/v1", "http://0.0.0.0:8000/v1", True),
        ("http://localhost.example.com/v1", "http://localhost.example.com/v1", True),
        ("http://127.0.0.1.example.com/v1", "http://127.0.0.1.example.com/v1", True),
    ],
)
def test_texts_stay_on_the_machine_only_with_a_loopback_address(
    url: str, address: str, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint names the whole address: another port or path may be another model."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    llm = make_llm(f"openai/m;base_url={url}")
    assert (llm.fingerprint, llm.remote) == (f"openai-m@{address}", remote)


def test_the_usual_variable_names_another_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        llm = make_llm("openai/m")
        assert not llm.remote
        assert [text(r) for r in llm.complete(ask("a"))] == ["re: a"]


def test_a_proxy_does_not_see_what_is_said_to_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve() as server:
        assert text(one(endpoint(server, retries=0))) == "re: hello"


@pytest.mark.parametrize(
    "options",
    [
        "base_url=http://user:hunter2@localhost/v1",
        "base_url=http://localhost/v1?key=hunter2",
        "base_url=ftp://hunter2/v1",
        "base_url=hunter2",
        "base_url=http://localhost:hunter2/v1",
        "base_url=http://[hunter2/v1",
        "concurrency=0",
        "concurrency=5000",
        "timeout=0",
        "retries=-1",
        "max_usd=1",
        "timeout=9;timeout=8",
    ],
)
def test_settings_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(BadSpec) as caught:
        make_llm(f"openai/m;{options}" if "base_url" in options else f"openai/m;base_url=http://localhost/v1;{options}")
    assert "hunter2" not in str(caught.value)


def test_a_spec_is_checked_without_a_key() -> None:
    check_llm("openai/org/model-7b;base_url=http://localhost:8000/v1;concurrency=32")
    with pytest.raises(BadSpec, match="concurrency"):
        check_llm("openai/gpt-5;concurrency=many")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtra, match=r"\[api\]"):
        make_llm("openai/m;base_url=http://localhost/v1")
