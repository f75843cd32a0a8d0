"""The app in this process: who may come in, what is refused, what is counted; requests become asks of a model."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

httpx = pytest.importorskip("httpx2", reason="needs the api extra")
pytest.importorskip("fastapi", reason="needs the serve extra")

from prb.serving import app as app_module  # noqa: E402
from prb.serving.app import END_MARKERS, Metrics, RewardRequest, Service, make_app  # noqa: E402
from prb.serving.server import Batcher, Limits  # noqa: E402
from prb.types import Ask, Choice, Post, Query, Turn  # noqa: E402
from tests.serving.fakes import POISON, UNSCORABLE, Recorder, ask, worth  # noqa: E402

TOKEN = "an open secret"
JSON = {"Content-Type": "application/json"}
Client = Any


class Server:
    """A model behind the whole app, without a socket."""

    def __init__(self, *, token: str | None = None, **limits: Any) -> None:
        self.model, self.metrics = Recorder(), Metrics()
        settings = Limits(**{"window": 0.02, "answers": 8, "chars": 1000, "body": 10_000, **limits})
        self.batcher = Batcher(self.model.score, settings, self.metrics.count_batch)
        service = Service("recorder", "recorder-1", self.batcher, self.metrics, settings)
        self.app = make_app(service, token=token)

    def run(self, talk: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
        async def conversation() -> Any:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8300", timeout=30) as client:
                return await talk(client)

        return asyncio.run(conversation())

    def send(self, method: str, path: str, **request: Any) -> Any:
        return self.run(lambda client: client.request(method, path, **request))

    async def hold(self) -> None:
        """Until now the model is busy; only then more is sent."""
        assert await asyncio.to_thread(self.model.entered.acquire, timeout=20)


def body(question: str, *answers: str, **more: Any) -> dict[str, Any]:
    return {"query": {"question": question, "posts": ["I am brief"]}, "answers": list(answers), **more}


def value(question: str, answer: str) -> float:
    return worth(ask(question, answer, "I am brief"))


def test_answers_are_scored() -> None:
    said = Server().send("POST", "/v1/score", json=body("q", "a", "b~"))
    assert said.status_code == 200
    assert said.json() == {
        "scores": [value("q", "a"), value("q", "b~")],
        "failures": [None, None],
        "cut": [0, 1],
        "model": "recorder",
        "fingerprint": "recorder-1",
    }


def test_openrlhf_is_answered_in_its_own_terms() -> None:
    label = json.dumps({"question": "q", "posts": ["I am brief"]})
    sent = {"query": ["Q: q\nAnswer.<|im_end|>"], "prompts": ["Q: q\n"], "labels": [label]}
    said = Server().send("POST", "/get_reward", json=sent)
    reward = value("q", "Answer.")
    assert said.json() == {"rewards": [reward], "scores": [reward], "extra_logs": {"cut": [0.0]}}


def test_a_failure_is_an_error_unless_parts_are_asked_for() -> None:
    server = Server()
    whole = server.send("POST", "/v1/score", json=body("q", "a", UNSCORABLE))
    assert (whole.status_code, whole.json()["failures"]) == (422, [None, "no verdict"])
    part = server.send("POST", "/v1/score", json=body("q", "a", UNSCORABLE, partial=True))
    assert part.status_code == 200
    assert (part.json()["scores"], part.json()["failures"]) == ([value("q", "a"), None], [None, "no verdict"])
    broken = server.send("POST", "/v1/score", json=body("q", f"{POISON} of mine"))
    reasons = {"error": "no score for 1 of 1 answers: model error: ValueError", "failures": ["model error: ValueError"]}
    assert (broken.status_code, broken.json()) == (502, reasons)


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"prb:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        (TOKEN, 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (basic(TOKEN), 200),
        (basic("another"), 401),
        ("Basic no-base64!", 401),
    ],
)
def test_only_who_has_the_token_comes_in(header: str | None, status: int) -> None:
    server = Server(token=TOKEN)
    headers = {} if header is None else {"Authorization": header}
    said = server.send("POST", "/v1/score", json=body("q", "a"), headers=headers)
    assert said.status_code == status
    assert bool(server.model.batches) == (status == 200)
    assert server.send("GET", "/metrics", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8300", 200),
        ("localhost", 200),
        ("LOCALHOST:8300", 200),
        ("[::1]:8300", 200),
        ("evil.example", 403),
        ("evil.example:8300", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("[", 403),
        ("", 403),
    ],
)
def test_without_a_token_a_web_page_cannot_reach_the_server_under_its_own_name(host: str, status: int) -> None:
    server = Server()
    reply = server.send("POST", "/v1/score", json=body("q", "a"), headers={"Host": host})
    assert (reply.status_code, len(server.model.batches)) == (status, int(status == 200))
    assert server.send("GET", "/info", headers={"Host": host}).status_code == status


def test_with_the_token_any_name_will_do_and_info_says_what_is_served() -> None:
    headers = {"Host": "gpu-7.example", "Authorization": f"Bearer {TOKEN}"}
    said = Server(token=TOKEN).send("GET", "/info", headers=headers).json()
    assert (said["server"], said["model"], said["fingerprint"]) == ("prb", "recorder", "recorder-1")


@pytest.mark.parametrize("path", ["/get_reward", "/info", "/nowhere"])
def test_without_the_token_nobody_learns_what_there_is(path: str) -> None:
    server = Server(token=TOKEN)
    said = server.send("POST", path)
    assert (said.status_code, said.json()) == (401, {"error": "a bearer token is required"})
    assert said.headers["WWW-Authenticate"] == "Bearer"
    assert server.send("GET", "/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        ({"content": b'{"query": ', "headers": JSON}, 400, "not JSON: "),
        ({"content": b"[" * 9_000, "headers": JSON}, 422, "Expected `object`"),
        ({"content": b"\xff\xfe", "headers": JSON}, 400, ""),
        ({"content": b'{"query": {}}', "headers": {"Content-Type": "text/plain"}}, 415, "send JSON"),
        ({"content": b'{"query": {}}', "headers": {"Content-Type": "text/plain; json"}}, 415, "send JSON"),
        (
            {"content": b"{}", "headers": {**JSON, "Content-Length": "2", "Transfer-Encoding": "chunked"}},
            400,
            "not both",
        ),
        ({"content": b"", "headers": JSON}, 400, "not JSON: "),
        ({"json": {"query": {"question": "q"}, "answers": ["a"], "partly": True}}, 422, "unknown field `partly`"),
        ({"json": body("q", *"abcdefghi")}, 413, "9 answers in one request; at most 8"),
        ({"json": body("q", "a" * 1001)}, 413, "an answer of 1001 characters; at most 1000"),
        ({"json": body("q" * 1001, "a")}, 413, "a query of 1011 characters; at most 1000"),
        ({"json": body("q", "a" * 20_000)}, 413, "more than 10000 bytes"),
    ],
)
def test_a_bad_request_is_refused_and_told_why(request_: dict[str, Any], status: int, why: str) -> None:
    server = Server()
    said = server.send("POST", "/v1/score", **request_)
    assert said.status_code == status
    assert why in said.json()["error"]
    assert server.model.batches == []


def test_a_full_queue_says_when_to_come_back_and_lets_openrlhf_which_soon_gives_up_wait() -> None:
    server = Server(window=0.0, queue=1)
    server.model.gate.clear()
    whole = {"query": ["Q: q\nAnswer."], "prompts": ["Q: q\n"], "labels": [json.dumps({"question": "q"})]}

    async def talk(client: Client) -> tuple[Any, list[Any]]:
        busy = asyncio.create_task(client.post("/v1/score", json=body("q", "busy")))
        await server.hold()
        waiting = asyncio.create_task(client.post("/v1/score", json=body("q", "1")))
        while server.batcher.waiting < 1:
            await asyncio.sleep(0.01)
        refused = await client.post("/v1/score", json=body("q", "2"))
        patient = asyncio.create_task(client.post("/get_reward", json=whole))
        await asyncio.sleep(0.1)
        server.model.gate.set()
        return refused, list(await asyncio.gather(busy, waiting, patient))

    refused, (busy, waiting, patient) = server.run(talk)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert [reply.json()["scores"] for reply in (busy, waiting)] == [[value("q", a)] for a in ("busy", "1")]
    assert patient.json()["rewards"] == [worth(ask("q", "Answer."))]


async def send_by_hand(server: Server, messages: list[dict[str, Any]], leave: asyncio.Event) -> list[int]:
    """Messages of a client, the last of which is that it has gone; the statuses it would have seen."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers, "query_string": b""}
    await server.app(scope, receive, send)
    return statuses


def test_a_client_that_leaves_is_not_scored() -> None:
    server = Server(window=0.0)
    server.model.gate.clear()
    sent = [{"type": "http.request", "body": json.dumps(body("q", "gone", "gone too")).encode(), "more_body": False}]

    async def talk(client: Client) -> tuple[list[int], Any]:
        leave = asyncio.Event()
        busy = asyncio.create_task(client.post("/v1/score", json=body("q", "busy")))
        await server.hold()
        gone = asyncio.create_task(send_by_hand(server, sent, leave))
        while server.batcher.waiting < 2:
            await asyncio.sleep(0.01)
        leave.set()
        statuses = await gone
        assert server.batcher.waiting == 0
        server.model.gate.set()
        return statuses, await busy

    statuses, busy = server.run(talk)
    assert (statuses, busy.status_code) == ([499], 200)
    assert [[one.answer for one in batch] for batch in server.model.batches] == [["busy"]]


def test_a_client_that_leaves_in_mid_body_leaves_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    gone = asyncio.Event()
    gone.set()
    messages = [{"type": "http.request", "body": b'{"que', "more_body": True}]
    assert asyncio.run(send_by_hand(Server(), messages, gone)) == [499]
    assert caplog.text == ""


def test_metrics_count_requests_answers_and_batches() -> None:
    server = Server(window=0.0)
    server.send("POST", "/v1/score", json=body("q", "a", "b"))
    server.send("POST", "/v1/score", json=body("q", "a", "a", UNSCORABLE))
    server.send("GET", "/secret-looking-path")
    said = server.send("GET", "/metrics")
    assert said.headers["Content-Type"].startswith("text/plain")
    lines = said.text.splitlines()
    for line in [
        'prb_requests_total{route="/v1/score",status="200"} 1.0',
        'prb_requests_total{route="/v1/score",status="422"} 1.0',
        'prb_requests_total{route="other",status="404"} 1.0',
        'prb_answers_total{result="scored"} 4.0',
        'prb_answers_total{result="failed"} 1.0',
        "prb_batch_seconds_count 2.0",
        "prb_waiting_answers 0.0",
    ]:
        assert line in lines
    assert "secret" not in said.text


def test_an_error_of_our_own_is_a_500_whose_text_stays_out_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Awaitable[Any]:
        raise RuntimeError("a secret text")

    monkeypatch.setattr(app_module, "cuts", broken)
    with caplog.at_level(logging.DEBUG):
        said = Server().send("POST", "/v1/score", json=body("q", "a secret text"))
    assert (said.status_code, said.json()) == (500, {"error": "internal error"})
    assert "a request failed: RuntimeError at " in caplog.text
    assert "secret" not in caplog.text


# --- requests become asks ---
LABEL = '{"question": "q"}'
NO_QUERIES = ("", "  ", "42", "the right answer", "[]", '{"posts": []}', '{"question": "q", "rubric": []}')


def refused(path: str = "/v1/score", status: int = 422, **body: Any) -> str:
    server = Server(body=1_000_000)
    said = server.send("POST", path, content=json.dumps(body), headers=JSON)
    assert (said.status_code, server.model.batches) == (status, [])
    return str(said.json()["error"])


def rewards(query: list[str], prompts: list[str], labels: list[Any]) -> list[Ask]:
    return msgspec.convert({"query": query, "prompts": prompts, "labels": labels}, RewardRequest).asks()


def test_a_request_becomes_one_ask_an_answer_about_one_query() -> None:
    body = {
        "question": "And now?",
        "user": "u",
        "posts": [{"id": "p7", "category": "Food", "text": "I bake."}, "I travel."],
        "choices": [{"question": "Tea?", "chosen": "Yes.", "rejected": "No."}],
        "context": [{"role": "user", "text": "Hello."}],
        "plan": ["brief"],
    }
    query = Query(
        question="And now?",
        user="u",
        posts=(Post("p7", "Food", "I bake."), Post("2", "", "I travel.")),
        choices=(Choice("Tea?", "Yes.", "No."),),
        context=(Turn("user", "Hello."),),
        plan=("brief",),
    )
    server = Server()
    assert server.send("POST", "/v1/score", json={"query": body, "answers": ["a", "b"]}).status_code == 200
    assert server.model.batches == [[Ask(query, "a"), Ask(query, "b")]]


@pytest.mark.parametrize(
    ("body", "status", "place"),
    [
        ({"query": {"question": "q"}, "answers": []}, 422, "$.answers"),
        ({"query": {"question": "q"}}, 422, "answers"),
        ({"query": {}, "answers": ["a"]}, 422, "question"),
        ({"query": {"question": "q"}, "answers": ["a", 3]}, 422, "$.answers[1]"),
        ({"query": {"question": "a lone surrogate: \ud800"}, "answers": ["a"]}, 400, "not JSON"),
        ({"query": {"question": "q", "posts": [""] * 10_001}, "answers": ["a"]}, 422, "$.query.posts"),
        ({"query": {"question": "q", "choices": [{"question": "Tea?"}]}, "answers": ["a"]}, 422, "$.query.choices"),
        ({"query": {"question": "q", "context": [{"role": "bot", "text": ""}]}, "answers": ["a"]}, 422, ".role"),
        *(  # there is no field for the rubric, and no misspelled field is overlooked
            ({"query": {"question": "q", field: "x"}, "answers": ["a"]}, 422, f"unknown field `{field}` - at `$.query`")
            for field in ("rubric", "rubric_aspects", "narrative", "profile", "post")
        ),
    ],
)
def test_a_wrong_request_is_told_where_it_is_wrong(body: dict[str, Any], status: int, place: str) -> None:
    assert place in refused(status=status, **body)


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    assert "secret" not in refused(query={"question": {"secret": 1}}, answers=["a"])


def test_markers_of_the_end_are_no_part_of_an_answer() -> None:
    texts = [f"p: Use {end} here.{end}\n{end}" for end in END_MARKERS]
    asks = rewards(texts, ["p: "] * len(texts), [LABEL] * len(texts))
    assert [one.answer for one in asks] == [f"Use {end} here." for end in END_MARKERS]


@pytest.mark.parametrize("ending", ["</s>", " "])
def test_megabytes_of_markers_and_blanks_take_a_moment(ending: str) -> None:
    """One pass over them; one by one, four of these stopped a server for minutes."""
    many = ending * (4_000_000 // len(ending))
    started = time.process_time()
    assert rewards([f"p: a{many}", f"p: {many}b"], ["p: "] * 2, [LABEL] * 2) == [ask("q", "a"), ask("q", f"{many}b")]
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("texts", "labels", "why"),
    [
        (["p a", "x a"], [LABEL] * 2, "query.1 does not begin with prompts.1"),
        (["p a"], [LABEL] * 2, "must have the same length"),
        (["p a", "p b"], [LABEL] * 3, "must have the same length"),
        (["p a", "p b"], None, "labels"),
        *((["p a", "p b"], [LABEL, label], "$.labels[1]") for label in (42, {}, None)),
        *((["p a", "p b"], [LABEL, label], "labels.1 is not a query") for label in NO_QUERIES),
    ],
)
def test_a_label_that_is_no_query_is_refused_rather_than_scored_for_nobody(
    texts: list[str], labels: Any, why: str
) -> None:
    assert why in refused("/get_reward", query=texts, prompts=["p ", "p "], labels=labels)
