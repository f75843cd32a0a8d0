"""Reward heads behind servers: what is sent, what is read, and what is never taken for a score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="needs the api extra")

from prb.engine.chat import Chat
from prb.errors import BadInput, Unreachable
from prb.models import MODELS
from prb.types import Ask, Failure, Query, is_remote
from tests import tiny
from tests.models.reward_server import RewardServer, inputs, serve_rewards, worth

QUERIES = [Query(question=f"How do I bake bread number {n}?") for n in range(8)]
ANSWERS = ("Early in the morning.", "Buy a better book about it.")
ASKS = [Ask(query, answer) for query in QUERIES for answer in ANSWERS]


@pytest.fixture(scope="module")
def words() -> Any:
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def folder(words: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("served") / "rm"
    words.save_pretrained(place)
    return str(place)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prb.llm.endpoint.retry_pause", lambda *_: 0.0)


def make(url: str, **options: Any) -> Any:
    return MODELS.make(f"classifier?url={url}" + "".join(f"&{key}={value}" for key, value in options.items()))


@pytest.fixture
def server(folder: str, words: Any) -> Any:
    def made(api: str = "vllm", **settings: Any) -> RewardServer:
        return RewardServer(api.split("-", maxsplit=1)[0], folder, words, **settings)

    return made


def expected(words: Any, asks: list[Ask] = ASKS) -> list[float]:
    return [worth(Chat(words).texts(ask.query, [ask.answer])[0].ids) for ask in asks]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_every_server_gives_the_raw_logits_of_our_own_tokens(kind: str, server: Any, words: Any, folder: str) -> None:
    one = server(kind)
    with serve_rewards(one) as url:
        model = make(url, tokenizer=folder)
        assert model.score(ASKS) == expected(words)
    ids = inputs(one.bodies[-1])[0]
    assert (ids[0], ids.count(words.bos_token_id)) == (words.bos_token_id, 1)
    assert model.fingerprint.startswith(f"served-{kind}-")


def test_a_prb_server_is_sent_queries_as_they_are(server: Any) -> None:
    with serve_rewards(server("prb")) as url:
        model = make(url)
        scores = model.score([*ASKS[:2], Ask(QUERIES[0], " ")])
    assert scores == [*(worth(list(answer.encode())) for answer in ANSWERS), Failure("empty answer")]
    assert model.fingerprint == "served-worth-1"


@pytest.mark.parametrize(
    ("version", "models", "why"),
    [
        ((404, {}), (404, {}), "is not vLLM, SGLang"),
        ((200, {"version": "0.32.0"}), (200, {"data": ["rm"]}), "unknown way"),
        ((200, {"version": "0.32.0"}), (200, {"data": []}), "serves no model"),
        ((401, {}), None, "needs a key"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_in_one_line(version: Any, models: Any, why: str, server: Any) -> None:
    one = server()
    known = one.get
    one.get = lambda path: version if path == "/version" else (models if models else known(path))
    with serve_rewards(one) as url, pytest.raises(BadInput, match=why) as caught:
        make(url)
    assert "\n" not in str(caught.value)


def test_the_answers_to_a_query_are_one_request_and_requests_are_sorted_by_tokens(server: Any) -> None:
    one = server()
    with serve_rewards(one) as url:
        model = make(url, concurrency=1)
        one.bodies.clear()
        model.score(list(reversed(ASKS)))
    assert [len(inputs(body)) for body in one.bodies] == [len(ANSWERS)] * len(QUERIES)
    firsts = [inputs(body)[0] for body in one.bodies]
    assert firsts == sorted(firsts)


def test_without_its_server_rows_fail_and_no_number_is_made_up(server: Any) -> None:
    one = server()
    with serve_rewards(one) as url:
        model = make(url, retries=1)
        one.stop()
        scores = model.score(ASKS)
    assert {(type(score), score.kind) for score in scores if isinstance(score, Failure)} == {(Failure, "fatal")}
    with pytest.raises(Unreachable, match="cannot be reached"):
        make(url)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_reward_that_is_not_a_number_fails_alone(kind: str, server: Any, words: Any, folder: str) -> None:
    poison = list(Chat(words).texts(QUERIES[0], ANSWERS)[1].ids)
    one = server(kind, reward=lambda ids: math.nan if list(ids) == poison else worth(ids))
    with serve_rewards(one) as url:
        scores = make(url, tokenizer=folder).score(ASKS)
    assert isinstance(scores[1], Failure)
    assert scores[:1] + scores[2:] == expected(words)[:1] + expected(words)[2:]


@pytest.mark.parametrize("kind", ["vllm", "prb"])
def test_a_text_that_the_server_refuses_fails_alone_with_its_reason(kind: str, server: Any, words: Any) -> None:
    def refuses(_: RewardServer, body: Any) -> Any:
        long = any(len(text) > 150 for text in inputs(body))
        return (400, {"error": {"message": "too long for today", "code": 400}}) if long else None

    one = server(kind, fault=refuses)
    with serve_rewards(one) as url:
        model = make(url)
        good, bad = model.score([Ask(QUERIES[0], ANSWERS[0]), Ask(QUERIES[0], "a b c d e " * 20)])
    assert good == (expected(words)[0] if kind == "vllm" else worth(list(ANSWERS[0].encode())))
    assert str(bad) == "HTTP 400: too long for today"


@pytest.mark.parametrize(
    "reply",
    [
        {"data": []},
        {"data": [{"index": 0, "probs": [1.0]}] * 2},
        {"data": [{"index": 0, "probs": []}, {"index": 1, "probs": [1.0]}]},
        {"data": [{"index": 0, "probs": ["1"]}, {"index": 1, "probs": [True]}]},
        {"model": "another", "data": [{"index": n, "probs": [1.0]} for n in range(2)]},
        {"data": [{"index": [], "probs": [1.0]}] * 2},
        {"data": [{"index": 0, "probs": [1.0]}, {"index": 1, "probs": [1.0, 2.0]}]},
        {"data": [{"index": n, "probs": [1.0, 2.0]} for n in range(2)]},  # until now there was one logit
        [1.0, 2.0],
        None,
    ],
)
def test_a_reply_about_anything_else_is_no_score(reply: Any, server: Any) -> None:
    one = server()
    with serve_rewards(one) as url:
        model = make(url, retries=1)
        one.fault = lambda *_: (200, reply)
        scores = model.score(ASKS[:2])
    assert all(isinstance(score, Failure) and score.kind == "transient" for score in scores)
    assert all("unreadable reply" in str(s) for s in scores)


def test_an_absurd_logit_is_no_score(server: Any) -> None:
    one = server()
    with serve_rewards(one) as url:
        model = make(url, retries=0)
        one.fault = lambda *_: (200, b'{"data": [{"index": 0, "probs": [%s]}]}' % (b"9" * 5000))
        assert isinstance(model.score(ASKS[:1])[0], Failure)


def test_the_fingerprint_tells_server_version_model_and_dtype_but_no_address(server: Any, folder: str) -> None:
    made = []
    for _ in range(2):
        with serve_rewards(server("sglang")) as url:
            made.append(make(url, tokenizer=folder))
            assert url.rsplit(":", 1)[1] not in made[-1].fingerprint
    assert made[0].fingerprint == made[1].fingerprint
    assert made[0].fingerprint.startswith("served-sglang-0.5.3-rm-bfloat16-")
    assert not is_remote(made[0])


def test_the_key_is_sent_and_a_missing_one_is_named(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RM_KEY", "sk-very-secret-1234")
    one = server()
    with serve_rewards(one) as url:
        make(url, key_env="RM_KEY")
        with pytest.raises(BadInput, match="NO_KEY is not set"):
            make(url, key_env="NO_KEY")
    assert {seen.headers["authorization"] for seen in one.http.seen} == {"Bearer sk-very-secret-1234"}


def test_another_tokenizer_than_the_servers_is_refused(server: Any, tmp_path: Path) -> None:
    from tests.llm.tiny import tokenizer

    tokenizer().save_pretrained(tmp_path / "other")
    with serve_rewards(server()) as url, pytest.raises(BadInput, match="not the server's"):
        make(url, tokenizer=tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("path=x&url=http://localhost:1", "not both"),
        ("logit=0", "path=… .* or url=…"),
        ("url=localhost:8000", "must be like http://localhost:8000"),
        ("url=http://localhost:1&device=cuda", "device cannot be set for a served model"),
    ],
)
def test_a_wrong_spec_is_one_line(options: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        MODELS.make(f"classifier?{options}")
