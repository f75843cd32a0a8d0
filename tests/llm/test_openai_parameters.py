"""Models that do not take every parameter, and log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from prb.llm import Completion
from prb.types import Failure
from tests.llm.clients import ask, endpoint, one, text
from tests.llm.server import (
    Reply,
    Seen,
    echo,
    error,
    says,
    serve,
)


def picky(**refusals: str) -> Any:
    """A model that does not take some parameters, and says so one at a time."""

    def script(seen: Seen) -> Reply:
        for name, message in refusals.items():
            if name in seen.body:
                return error(400, message, param=name, code="unsupported_parameter")
        return echo(seen)

    return script


LOGPROBS = {
    "content": [
        {
            "token": "A",
            "logprob": -0.1,
            "top_logprobs": [
                {"token": "A", "logprob": -0.1},
                {"token": "B", "logprob": -2.5},
                {"token": "A", "logprob": -9},
            ],
        },
        {"token": "!", "logprob": 0, "top_logprobs": []},
    ]
}


def test_the_first_token_comes_with_its_log_probabilities() -> None:
    with serve(lambda _: says("A!", logprobs=LOGPROBS)) as server:
        result = one(endpoint(server), top_logprobs=3)
        assert isinstance(result, Completion)
        assert result.first == {"A": -0.1, "B": -2.5}


def test_an_empty_text_with_log_probabilities_is_a_completion() -> None:
    with serve(lambda _: says("", logprobs=LOGPROBS)) as server:
        result = one(endpoint(server), top_logprobs=3)
        assert isinstance(result, Completion)
        assert (result.text, set(result.first)) == ("", {"A", "B"})


@pytest.mark.parametrize("logprobs", [None, 3, {}, {"content": []}, {"content": [{"top_logprobs": None}]}])
def test_log_probabilities_in_an_odd_shape_are_none(logprobs: Any) -> None:
    with serve(lambda _: says("A", logprobs=logprobs)) as server:
        assert one(endpoint(server), top_logprobs=3) == Completion(text="A", prompt_tokens=10, completion_tokens=2)


@pytest.mark.parametrize(
    ("name", "message", "instead"),
    [
        (
            "max_tokens",
            "'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            "max_completion_tokens",
        ),
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
        assert (llm.spent.requests, llm.spent.retries) == (2, 1)
        if instead:
            assert server.seen[-1].body[instead] == 9


def test_a_reasoning_model_is_met_step_by_step_even_by_many_at_once() -> None:
    unsupported = {name: f"Unsupported parameter: '{name}'" for name in ("logprobs", "max_tokens", "temperature")}
    with serve(picky(**unsupported)) as server:
        llm = endpoint(server, retries=0)
        assert all(isinstance(r, Completion) for r in llm.complete(ask(*map(str, range(8)), top_logprobs=2)))
        before = len(server.seen)
        one(llm, top_logprobs=2)
        assert len(server.seen) == before + 1
        assert not server.seen[-1].body.keys() & unsupported.keys()


def test_a_parameter_rejected_in_plain_words_is_understood_too() -> None:
    def script(seen: Seen) -> Reply:
        return Reply(b"logprobs: unknown field", 422) if "logprobs" in seen.body else echo(seen)

    with serve(script) as server:
        assert text(one(endpoint(server), top_logprobs=2)) == "re: hello"


@pytest.mark.parametrize(
    "message",
    ["temperature must be between 0 and 2", "max_tokens is too large: 512. The context length is 100", "bad request"],
)
def test_a_wrong_value_is_not_taken_for_a_parameter_unknown(message: str) -> None:
    with serve(lambda _: error(400, message)) as server:
        assert one(endpoint(server)) == Failure("HTTP 400", message)
        assert len(server.seen) == 1


def test_leaving_a_parameter_out_in_vain_is_not_remembered() -> None:
    def script(seen: Seen) -> Reply:
        return error(400, "unsupported: temperature") if seen.text == "odd" else echo(seen)

    with serve(script) as server:
        llm = endpoint(server)
        (result,) = llm.complete(ask("odd"))
        assert result == Failure("HTTP 400", "unsupported: temperature")
        assert len(server.seen) == 2
        one(llm)
        assert "temperature" in server.seen[-1].body
