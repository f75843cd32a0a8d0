"""Chat endpoints against a real server on loopback that misbehaves in every way it can: retries, budgets, keys,
parameters that a model rejects, log-probabilities."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import math
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import orjson
import pytest

from prb.errors import BadInput, BadSpec
from prb.llm import Completion, make_llm
from prb.llm.endpoint import MAX_REPLY, Endpoint
from prb.types import Failure
from prb.work import MAX_FATAL
from tests.llm.clients import ask, endpoint, one, text
from tests.llm.server import (
    DRIPPING,
    DROPPED,
    GARBAGE,
    HANG,
    NO_CHOICES,
    Reply,
    Seen,
    echo,
    error,
    in_turn,
    says,
    serve,
)


def test_a_request_says_all_that_was_asked_for() -> None:
    with serve() as server:
        one(endpoint(server), temperature=0.7, top_p=0.9, max_tokens=33, stop=("\n",), seed=5, top_logprobs=4)
        assert server.seen[0].body == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 33,
            "stop": ["\n"],
            "seed": 5,
            "logprobs": True,
            "top_logprobs": 4,
        }


def test_requests_run_together_but_never_more_than_allowed() -> None:
    """The server answers only once 16, and after them 24, have been under way."""
    with serve(lambda seen: replace(echo(seen), together=16 if seen.number < 16 else 24)) as server:
        endpoint(server, concurrency=24).complete(ask(*map(str, range(100))))
        assert server.peak == 24


def test_calls_from_several_threads_share_one_limit() -> None:
    with serve(lambda seen: says(seen.text, delay=0.02)) as server:
        llm = endpoint(server, concurrency=4)

        def work(name: str) -> list[str]:
            return [text(r) for r in llm.complete(ask(*[f"{name}{n}" for n in range(10)]))]

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(work, "abc")) == [[f"{name}{n}" for n in range(10)] for name in "abc"]
        assert server.peak <= 4


def test_it_works_inside_an_event_loop_that_runs_already() -> None:
    async def notebook(llm: Endpoint) -> Completion | Failure:
        return one(llm)

    with serve() as server:
        assert text(asyncio.run(notebook(endpoint(server)))) == "re: hello"


def test_a_huge_reply_arrives_whole_and_one_without_end_is_not_read_to_its_end() -> None:
    """Also when it is small on the wire: a gigabyte of zeros compresses to a megabyte."""
    with serve(lambda _: says("x" * 20_000_000)) as server:
        assert len(text(one(endpoint(server)))) == 20_000_000
    bomb = gzip.compress(bytes(MAX_REPLY + 1))
    with serve(lambda _: Reply(bomb, headers=(("content-encoding", "gzip"),))) as server:
        assert one(endpoint(server)) == Failure("reply too long", "more than 32 MB")
    with serve(lambda _: Reply(b"x" * (MAX_REPLY + 1), 400)) as server:
        assert one(endpoint(server)) == Failure("reply too long", "more than 32 MB")


def test_an_absurd_number_in_a_reply_is_no_traceback() -> None:
    body = b'{"choices": [{"message": {"content": "A"}, "logprobs": {"content": [{"token": "A", "logprob": -%s,' % (
        b"9" * 400
    )
    body += b'"top_logprobs": []}]}}], "usage": {"prompt_tokens": %s, "completion_tokens": 1}}' % (b"9" * 5000)
    with serve(lambda _: Reply(body)) as server:
        assert one(endpoint(server), top_logprobs=5).first == {"A": -math.inf}


@pytest.mark.parametrize(
    "trouble",
    [
        *(error(status, "later") for status in (408, 409, 429, 500, 502, 503, 529)),
        Reply(b"<html>Bad gateway</html>", 502),
        GARBAGE,
        Reply(b"\xff\xfe\x00"),
        Reply(b"[" * 100_000),
        NO_CHOICES,
        Reply(b'{"choices": null}'),
        Reply(b'{"choices": [{"message": {"content": 7}}]}'),
        Reply(b'{"error": {"message": "the model fell over"}}'),
        DROPPED,
    ],
    ids=lambda reply: f"{reply.status}{'-dropped' * reply.drop}-{reply.body[:24]!r}",
)
def test_a_passing_trouble_is_tried_again(trouble: Reply) -> None:
    with serve(in_turn(trouble, says("at last"))) as server:
        llm = endpoint(server)
        assert text(one(llm)) == "at last"
        assert len(server.seen) == 2


@pytest.mark.parametrize("trouble", [HANG, DRIPPING], ids=["silent", "dripping"])
def test_a_reply_that_does_not_come_in_time_is_tried_again(trouble: Reply) -> None:
    with serve(in_turn(trouble, says("at last"))) as server:
        assert text(one(endpoint(server, timeout=0.5))) == "at last"


AWAY = Reply(b"", 307, (("location", "http://192.0.2.1/v1/chat/completions"),))
QUOTA = error(429, "daily quota", headers={"retry-after": "86400"})
REFUSED = says(None, message={"refusal": "I will not."})
LONG = "because\n  of " + "x" * 500
CUT = ("because of " + "x" * 500)[:200]


@pytest.mark.parametrize(
    ("reply", "kind", "failure"),
    [
        *((error(status, LONG), "fatal", f"HTTP {status}: {CUT}") for status in (401, 403, 404)),
        *((error(status, LONG), "row", f"HTTP {status}: {CUT}") for status in (400, 413, 422)),
        (AWAY, "fatal", "HTTP 307"),  # a local server cannot send texts elsewhere
        (Reply(b'{"detail": "fast"}', 403), "fatal", "HTTP 403: fast"),
        (Reply(b'{"detail": [{"loc": ["body"]}]}', 403), "fatal", 'HTTP 403: {"detail": [{"loc": ["body"]}]}'),
        (Reply(b"<h1>Forbidden</h1>", 403), "fatal", "HTTP 403: <h1>Forbidden</h1>"),
        (Reply(b"", 403), "fatal", "HTTP 403"),
        (QUOTA, "transient", "endpoint failed: asks to wait 86400 s: HTTP 429: daily quota"),
        (error(429, "busy"), "transient", "endpoint failed: after 2 tries: HTTP 429: busy"),
        (GARBAGE, "transient", "endpoint failed: after 2 tries: no completion in the reply, expected choices[0]"),
        (DROPPED, "transient", "endpoint failed: after 2 tries: connection"),
        (HANG, "transient", "endpoint failed: after 2 tries: no whole reply, or none, within 0.2 s"),
        (says(""), "row", "empty reply: finish_reason stop"),
        (REFUSED, "row", "refused: I will not."),
        (says("half", finish_reason="content_filter"), "row", "stopped by the endpoint's content filter"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.status),
)
def test_a_failure_says_why_and_whether_the_row_or_the_endpoint_failed(reply: Reply, kind: str, failure: str) -> None:
    with serve(lambda _: reply) as server:
        result = one(endpoint(server, retries=1, timeout=0.2 if reply is HANG else 30.0))
    assert str(result).startswith(failure)
    assert (result.kind, len(server.seen)) == (kind, 2 if "after 2 tries" in failure else 1)
    if reply.status == 200 and kind == "row":
        assert (result.prompt_tokens, result.completion_tokens) == (10, 2)  # it was paid for


def test_nobody_listening_is_fatal_and_an_empty_purse_is_budget() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        refused = one(Endpoint("m", url, retries=2))
    with serve() as server:
        unpaid = one(endpoint(server, usd_in=1.0, max_usd=0))
    assert (refused.kind, unpaid.kind) == ("fatal", "budget")
    assert refused.detail.startswith("after 3 tries: connection")


def test_a_server_may_say_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("prb.llm.endpoint.retry_pause", lambda _, seconds: asked.append(seconds) or 0.0)
    replies = [error(status, "busy", headers={"retry-after": "7"}) for status in (429, 503)]
    with serve(in_turn(*replies, error(500, "oops"), says("done"))) as server:
        assert text(one(endpoint(server))) == "done"
    assert asked == [7.0, 7.0, 0.0]


MICRO = {"usd_in": 1.0, "usd_out": 1.0}
"""A millionth of a dollar per token."""


def test_nothing_is_sent_once_the_budget_is_used_up() -> None:
    with serve() as server:
        llm = endpoint(server, concurrency=1, max_usd=100e-6, **MICRO)
        results = llm.complete(ask(*map(str, range(20))))
        assert [isinstance(r, Completion) for r in results] == [True] * 9 + [False] * 11
        assert results[-1] == Failure("budget used up", "$0.0001 of $0.0001")
        assert len(server.seen) == 9
        assert one(llm) == results[-1]


def test_a_budget_also_stops_retries() -> None:
    paid_garbage = json.dumps({"usage": {"prompt_tokens": 60, "completion_tokens": 0}}).encode()
    with serve(lambda _: Reply(paid_garbage)) as server:
        assert str(one(endpoint(server, max_usd=100e-6, **MICRO))).startswith("budget used up: $")
        assert len(server.seen) == 2


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 5, "completion_tokens": 10**30},
        {"prompt_tokens": 5.5, "completion_tokens": 2},
        {"prompt_tokens": True, "completion_tokens": 2},
    ],
)
def test_tokens_nobody_counted_are_estimated(usage: Any) -> None:
    data = {"choices": [{"message": {"content": "x" * 40}}], "usage": usage}
    with serve(lambda _: Reply(json.dumps(data).encode())) as server:
        result = one(endpoint(server))
        assert (result.prompt_tokens, result.completion_tokens) == (4, 10)  # "Be brief." and "hello": 14 characters


def test_nothing_more_is_sent_after_a_handful_of_fatal_failures() -> None:
    with serve(lambda _: error(401, "wrong key")) as server:
        results = endpoint(server, concurrency=1).complete(ask(*map(str, range(50))))
        assert len(server.seen) == MAX_FATAL
        assert set(results) == {Failure("HTTP 401", "wrong key")}


@pytest.mark.parametrize(
    "body",
    [
        rb'{"choices": [{"message": {"content": "half \ud83d"}}]}',
        rb'{"choices": [{"message": {"content": null, "refusal": "no \udc00"}}]}',
    ],
)
def test_every_text_of_a_server_can_be_written(body: bytes) -> None:
    with serve(lambda _: Reply(body)) as server:
        result = one(endpoint(server))
    assert orjson.dumps(asdict(result))
    with serve(lambda _: Reply(rb'{"error": "bad \ud83d"}', 400)) as server:
        assert one(endpoint(server)) == Failure("HTTP 400", "bad ?")


def test_an_interrupt_waits_for_no_reply() -> None:
    """The server never answers, so a client that waited would stay here for ever."""
    with serve(lambda seen: HANG if seen.text == "slow" else echo(seen)) as server:
        llm = endpoint(server, timeout=1e6)

        def interrupt() -> None:
            for _ in range(10):
                server.arrived.acquire()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            llm.complete(ask(*["slow"] * 10))
        thread.join()
        for _ in range(10):
            assert server.gone.acquire(timeout=30)
        assert text(one(llm)) == "re: hello"


KEY = "sk-test-1234567890abcdefghij"


def echoed(seen: Seen) -> str:
    return f"bad header {seen.headers['authorization']} or {seen.headers['authorization'][7:24]}*** {'x' * 190}"


@pytest.mark.parametrize(
    "script",
    [
        lambda seen: error(401, echoed(seen)),
        lambda seen: error(400, "y" * 180 + echoed(seen)),
        lambda seen: Reply(echoed(seen).encode(), 403),
        lambda seen: Reply(json.dumps({"error": echoed(seen)}).encode()),
        lambda seen: says(None, message={"refusal": echoed(seen)}),
        lambda seen: says(f"Your key is {KEY}.", message={"role": echoed(seen)}),
    ],
    ids=["401", "400 at the cut", "text", "error inside 200", "refusal", "text of the model"],
)
def test_a_key_that_a_server_repeats_is_shown_nowhere(
    script: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with serve(script) as server, caplog.at_level(logging.DEBUG):
        llm = endpoint(server, key_env="MY_KEY", retries=1)
        result = one(llm)
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    shown = [repr(result), str(result), repr(llm), str(llm), llm.fingerprint, caplog.text]
    shown += capfd.readouterr()
    assert KEY[:10] not in "\n".join(shown)


def test_a_local_server_needs_no_key_and_another_one_does_and_none_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as server:
        assert text(one(endpoint(server))) == "re: hello"
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        make_llm("openai/gpt-5")
    with pytest.raises(BadInput, match="OTHER_KEY"):
        make_llm("openai/m?base_url=https://llm.example/v1&key_env=OTHER_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", f"  {KEY}\n")
    llm = make_llm("openai/gpt-5")
    assert (llm.fingerprint, llm.remote) == ("openai-gpt-5@https://api.openai.com/v1", True)
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n" + KEY)
    with pytest.raises(BadInput, match="OPENAI_API_KEY contains invalid characters") as caught:
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
    llm = make_llm(f"openai/m?base_url={url}")
    assert (llm.fingerprint, llm.remote) == (f"openai-m@{address}", remote)


def test_the_usual_variable_names_another_endpoint_and_no_proxy_sees_what_is_said_to_a_local_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        llm = make_llm("openai/m?retries=0")
        assert not llm.remote
        assert [text(r) for r in llm.complete(ask("a"))] == ["re: a"]


@pytest.mark.parametrize(
    "options",
    [
        "base_url=http://user:hunter2@localhost/v1",
        "base_url=http://localhost/v1?key=hunter2",
        "base_url=hunter2",
        "base_url=http://localhost:hunter2/v1",
        "concurrency=0",
        "timeout=0",
        "max_usd=1",
        "timeout=9&timeout=8",
    ],
)
def test_settings_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(BadSpec) as caught:
        make_llm(f"openai/m?{options}" if "base_url" in options else f"openai/m?base_url=http://localhost/v1&{options}")
    assert "hunter2" not in str(caught.value)


def picky(**refusals: str) -> Any:
    """A model that does not take some parameters, and says so one at a time."""

    def script(seen: Seen) -> Reply:
        for name, message in refusals.items():
            if name in seen.body:
                return error(400, message, param=name, code="unsupported_parameter")
        return echo(seen)

    return script


LIKELIEST = [{"token": token, "logprob": logprob} for token, logprob in (("A", -0.1), ("B", -2.5), ("A", -9))]
AFTER = {"token": "!", "logprob": 0, "top_logprobs": []}
LOGPROBS = {"content": [{"token": "A", "logprob": -0.1, "top_logprobs": LIKELIEST}, AFTER]}


@pytest.mark.parametrize("said", ["A!", ""])
def test_the_first_token_comes_with_its_log_probabilities(said: str) -> None:
    with serve(lambda _: says(said, logprobs=LOGPROBS)) as server:
        result = one(endpoint(server), top_logprobs=3)
    assert (result.text, result.first) == (said, {"A": -0.1, "B": -2.5})


@pytest.mark.parametrize("logprobs", [None, 3, {}, {"content": []}, {"content": [{"top_logprobs": None}]}])
def test_log_probabilities_in_an_odd_shape_are_none(logprobs: Any) -> None:
    with serve(lambda _: says("A", logprobs=logprobs)) as server:
        assert one(endpoint(server), top_logprobs=3) == Completion(text="A", prompt_tokens=10, completion_tokens=2)


@pytest.mark.parametrize(
    ("name", "message", "instead"),
    [
        ("max_tokens", "'max_tokens' is not supported with this model. Use another.", "max_completion_tokens"),
        ("temperature", "Only the default (1) value of temperature is supported. Unsupported value.", None),
        ("logprobs", "logprobs is not supported by this model", None),
        ("top_logprobs", "Unrecognized request argument supplied: top_logprobs", None),
        ("seed", "Extra inputs are not permitted: seed", None),
    ],
)
def test_what_a_model_does_not_take_is_left_out_and_remembered(name: str, message: str, instead: str | None) -> None:
    with serve(picky(**{name: message})) as server:
        llm = endpoint(server)
        assert text(one(llm, top_logprobs=2, max_tokens=9)) == "re: hello"
        assert text(one(llm, top_logprobs=2, max_tokens=9)) == "re: hello"
        assert [name in seen.body for seen in server.seen] == [True, False, False]
        if instead:
            assert server.seen[-1].body[instead] == 9


@pytest.mark.parametrize(
    "message",
    ["temperature must be between 0 and 2", "max_tokens is too large: 512. The context length is 100", "bad request"],
)
def test_a_wrong_value_is_not_taken_for_a_parameter_unknown(message: str) -> None:
    with serve(lambda _: error(400, message)) as server:
        assert one(endpoint(server)) == Failure("HTTP 400", message)
        assert len(server.seen) == 1


def test_one_failure_harms_no_other_request() -> None:
    def by_text(seen: Seen) -> Reply:
        return {"bad": error(404, "no such model"), "mad": GARBAGE}.get(seen.text) or echo(seen)

    with serve(by_text) as server:
        a, bad, mad, half, b = endpoint(server, retries=1).complete(ask("a", "bad", "mad", "half: \ud83d", "b"))
        assert (text(a), text(b)) == ("re: a", "re: b")
        assert all(isinstance(failed, Failure) for failed in (bad, mad, half))
        assert "request cannot be sent" in str(half)


def test_the_limit_of_a_server_is_found_and_kept() -> None:
    with serve(lambda seen: says(seen.text, delay=0.01), slots=6) as server:
        results = endpoint(server, concurrency=64, retries=100).complete(ask(*map(str, range(200))))
        assert [text(r) for r in results] == [str(n) for n in range(200)]
        assert server.statuses[429] < server.statuses[200]


def test_only_requests_under_way_go_beyond_the_budget() -> None:
    with serve(lambda seen: says(seen.text, delay=0.01)) as server:
        llm = make_llm(f"openai/m?base_url={server.url}&concurrency=8&max_usd=0.0001&usd_in=1&usd_out=2")
        results = llm.complete(ask(*map(str, range(100))))
        assert 8 <= len(server.seen) <= 8 + 7  # 14 millionths each
        paid = sum(r.cost for r in results if isinstance(r, Completion))
        assert paid == pytest.approx(14e-6 * len(server.seen))


def test_a_reasoning_model_is_met_step_by_step_even_by_many_at_once() -> None:
    unsupported = {name: f"Unsupported parameter: '{name}'" for name in ("logprobs", "max_tokens", "temperature")}
    with serve(picky(**unsupported)) as server:
        llm = endpoint(server, retries=0)
        assert all(isinstance(r, Completion) for r in llm.complete(ask(*map(str, range(8)), top_logprobs=2)))
        before = len(server.seen)
        one(llm, top_logprobs=2)
        assert len(server.seen) == before + 1
        assert not server.seen[-1].body.keys() & unsupported.keys()
