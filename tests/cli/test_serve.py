"""`prb serve`: what it refuses before it loads anything, and one real server from start to end."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from prb.models import MODELS
from prb.serving.server import ServeConfig, masked, read_token
from prb.types import Ask, Post, Query
from tests.cli.conftest import Prb
from tests.serving.process import running


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRB_SERVE_TOKEN", raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs the extra; and nothing here may get as far as listening."""
    pytest.importorskip("fastapi", reason="needs the serve extra")
    monkeypatch.setattr("prb.serving.http.Server", lambda *_, **__: pytest.fail("it listens"))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("embeding", "no model named 'embeding'; did you mean 'embedding'?\n"),
        ("scripted-judge", "'scripted-judge' only compares answers; a reward server needs a model that scores them\n"),
        (
            "length --host 0.0.0.0",
            "--host 0.0.0.0 can be reached from other machines: set PRB_SERVE_TOKEN or --token-file\n",
        ),
        ("length --port 99999", "--port must be at most 65535, not 99999\n"),
        ("length --host no.such.host.invalid", "cannot listen on no.such.host.invalid:8300: "),
        ("length --token-file absent", "--token-file absent cannot be read: FileNotFoundError\n"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: str, says: str, prb: Prb) -> None:
    said = prb("serve", "--model", *words.split())
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"prb: {says}")
    assert said.err.count("\n") == 1


@pytest.mark.usefixtures("served")
def test_a_taken_port_is_known_before_a_model_is_loaded(prb: Prb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(MODELS), "make", lambda *_: pytest.fail("loaded"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = prb("serve", "--model", "length", "--port", taken.getsockname()[1])
    assert (said.code, "Address already in use" in said.err) == (2, True)


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServeConfig(model="length")
    assert read_token(config) is None
    monkeypatch.setenv("PRB_SERVE_TOKEN", " from the environment\n")
    assert read_token(config) == "from the environment"
    (tmp_path / "token").write_text("from-the-file\n")
    assert read_token(ServeConfig(model="length", token_file=tmp_path / "token")) == "from-the-file"


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("content", ["", " \n", "two words"])
def test_a_file_without_one_token_is_refused(content: str, prb: Prb, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    said = prb("serve", "--model", "length", "--token-file", tmp_path / "token")
    assert (said.code, said.err) == (2, f"prb: --token-file {tmp_path / 'token'} must hold exactly one token\n")


def test_personal_data_in_a_query_is_masked_and_answers_are_left_alone() -> None:
    class Seeing:
        fingerprint = "seeing"

        def score(self, asks: object) -> list[float]:
            seen.extend(asks)  # type: ignore[arg-type]
            return [0.0] * len(seen)

    seen: list[Ask] = []
    query = Query(question="Write to eve@example.org", posts=(Post("1", "", "I am @eve_online"),), plan=("eve@b.com",))
    masked(Seeing())([Ask(query, "eve@example.org"), Ask(query, "b")])
    assert [(s.query.question, s.query.posts[0].text, s.query.plan) for s in seen] == [
        ("Write to [e-mail]", "I am [handle]", ("[e-mail]",))
    ] * 2
    assert [s.answer for s in seen] == ["eve@example.org", "b"]


def test_a_server_from_the_first_line_to_the_last() -> None:
    pytest.importorskip("fastapi", reason="needs the serve extra")
    with running("-m", "prb", "serve", "--model", "length", "--port", "0", "--json") as server:
        body = json.dumps({"query": {"question": "q"}, "answers": ["abc", "ab"]}).encode()
        request = Request(f"{server.url}/v1/score", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as reply:
            said = json.load(reply)
        assert said["scores"][0] > said["scores"][1]
        assert (said["model"], said["failures"]) == ("length", [None, None])
        code, err = server.stop(signal.SIGINT)
    assert code == 0
    assert err == (f"length at {server.url}; Ctrl-C answers accepted requests and stops\nstopped\n")
