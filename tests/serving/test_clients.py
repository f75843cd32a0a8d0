"""The reward functions of verl and trl, against a real server; and what they do when there is none."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the serve extra")

from prb.serving import clients
from prb.serving.clients import NoScore, compute_score, score, trl_reward
from tests.llm.server import Reply, serve
from tests.serving.fakes import POISON, UNSCORABLE, ask, worth
from tests.serving.process import running

QUERY = {"question": "q", "user": "u", "posts": [{"id": "1", "category": "", "text": "I am brief"}], "plan": []}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as server:
        yield server.url


GOOD = Reply(b'{"scores": [1.5], "failures": [null]}')


@pytest.fixture
def scripted() -> Iterator[Any]:
    """A server that gives these replies one after another."""
    replies: list[Reply] = []
    with serve(lambda _: replies.pop(0)) as server:
        yield SimpleNamespace(replies=replies, url=server.url, seen=server.seen)


@pytest.mark.parametrize("query", [QUERY, json.dumps(QUERY)], ids=["a map", "JSON"])
def test_verl_gets_the_score_of_an_answer_for_its_person(query: Any, url: str) -> None:
    reward = compute_score("prb", "Yes.", "unused", {"query": query, "index": 3, "num_turns": None}, url=url)
    assert reward == {"score": worth(ask("q", "Yes.", "I am brief")), "empty": 0.0}


def test_verl_loads_the_file_by_its_path_where_prb_is_not_installed(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "reward.py"
    copy.write_bytes(Path(clients.__file__).read_bytes())
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('custom_module_1', {str(copy)!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        f"print(module.compute_score(data_source='prb', solution_str='Yes.', ground_truth='', "
        f"extra_info={{'query': {QUERY!r}}}, url={url!r}, reward_router_address='unused'))\n"
        "assert not {'torch', 'numpy', 'prb', 'httpx'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ast.literal_eval(done.stdout)["score"] == worth(ask("q", "Yes.", "I am brief"))


@pytest.mark.parametrize("extra_info", [None, {}, {"question": "q"}])
def test_verl_without_a_query_is_an_error_not_a_score_for_nobody(extra_info: Any, url: str) -> None:
    with pytest.raises(NoScore, match="no extra_info\\['query'\\]"):
        compute_score("prb", "Yes.", "", extra_info, url=url)


@pytest.mark.parametrize(("answer", "why"), [(POISON, "502 .*ValueError"), (UNSCORABLE, "422 .*no verdict")])
def test_verl_raises_where_there_is_no_score(answer: str, why: str, url: str) -> None:
    with pytest.raises(NoScore, match=why):
        compute_score("prb", answer, "", {"query": QUERY}, url=url)


def test_an_empty_answer_does_not_end_verl_but_gets_the_lowest_reward_and_is_counted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_lowest", float("inf"))
    info = {"query": QUERY}
    given = [compute_score("prb", text, "", info, url=url)["score"] for text in ("One.", "Two.", "Three.")]
    lowest = min(*given, worth(ask("q", clients.SHORTEST, "I am brief")))
    assert compute_score("prb", " \n", "", info, url=url) == {"score": lowest, "empty": 1.0}
    assert compute_score("prb", "", "", info, url=url, empty=-3.0) == {"score": -3.0, "empty": 1.0}


def test_trl_gets_one_reward_a_completion_and_none_where_there_is_no_score(url: str) -> None:
    answers, queries = ["a", UNSCORABLE, "b", "c"], [QUERY, QUERY, {"question": "other"}, QUERY]
    unused: dict[str, Any] = {"completion_ids": [[1]] * 4, "trainer_state": object()}
    first, none, other, last = trl_reward(["p"] * 4, answers, queries, url=url, **unused)
    assert [first, last] == [worth(ask("q", answer, "I am brief")) for answer in ("a", "c")]
    assert (none, other) == (None, worth(ask("other", "b")))


@pytest.mark.parametrize(
    "earlier", [[], [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]]
)
def test_without_a_query_trl_asks_the_prompt(earlier: list[Any], scripted: Any) -> None:
    scripted.replies += [GOOD, GOOD]
    turns = [*earlier, {"role": "user", "content": "How?"}]
    assert trl_reward([turns], [[{"role": "assistant", "content": "So."}]], url=scripted.url) == [1.5]
    context = [{"role": turn["role"], "text": turn["content"]} for turn in earlier]
    assert scripted.seen[0].body["query"] == {"question": "How?", "context": context}
    assert trl_reward(["How?"], ["So."], url=scripted.url) == [1.5]
    assert scripted.seen[1].body == {"query": {"question": "How?"}, "answers": ["So."], "partial": True}


def test_trl_sends_answers_to_the_same_query_together(scripted: Any) -> None:
    scripted.replies += [Reply(b'{"scores": [1, 2]}')]
    arrays = {"question": "q", "posts": np.array([{"text": "I am brief", "id": None}], dtype=object), "plan": None}
    same = json.dumps({"question": "q", "posts": [{"text": "I am brief"}]})
    assert trl_reward(["p", "p"], ["a", "b"], query=[arrays, same], url=scripted.url) == [1, 2]
    (seen,) = scripted.seen
    assert seen.body == {"query": json.loads(same), "answers": ["a", "b"], "partial": True}


def test_a_busy_server_is_asked_again_when_it_said(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(clients.time, "sleep", pauses.append)
    scripted.replies += [
        Reply(b"{}", 429, (("Retry-After", "7"),)),
        Reply(b"", 503, (("Retry-After", "soon"),)),
        Reply(b"half a rep"),
        GOOD,
    ]
    assert score(QUERY, ["a"], url=scripted.url)["scores"] == [1.5]
    assert len(scripted.seen) == 4
    assert 7 < pauses[0] <= 7.25
    assert 0 < pauses[1] <= 0.5
    assert 0 < pauses[2] <= 1


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 502])
def test_other_errors_are_final_and_keep_their_reason(status: int, scripted: Any) -> None:
    scripted.replies += [Reply(b'{"error": "because"}', status)]
    with pytest.raises(NoScore, match=f"{status} because"):
        score(QUERY, ["a"], url=scripted.url)
    assert len(scripted.seen) == 1


def test_a_server_that_cannot_be_reached_is_an_error_in_the_end() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NoScore, match=r"refused.*\(tried for 0.3 s\)"):
            compute_score("prb", "Yes.", "", {"query": QUERY}, url=url, patience=0.3)


def test_address_and_token_come_from_the_environment(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.replies += [GOOD]
    monkeypatch.setenv("PRB_SERVE_URL", scripted.url + "/")
    monkeypatch.setenv("PRB_SERVE_TOKEN", "open sesame\n")  # as a file's content is
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert compute_score("prb", "Yes.", "", {"query": QUERY}) == {"score": 1.5, "empty": 0.0}
    assert scripted.seen[0].headers["authorization"] == "Bearer open sesame"


@pytest.mark.parametrize(
    ("query", "url", "why"),
    [
        ("[1]", None, "a query must be a dict"),
        ([1], None, "a query must be a dict"),
        ("null", None, "a query must be a dict"),
        (QUERY, "localhost:8300", "localhost:8300/v1/score is not a URL"),
    ],
)
def test_a_query_that_is_no_map_and_what_is_no_address_are_refused_at_once(query: Any, url: str, why: str) -> None:
    with pytest.raises(NoScore, match=why):
        score(query, ["a"], url=url)
