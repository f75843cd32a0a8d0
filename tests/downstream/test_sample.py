"""N answers a query: seeds, prompts, and what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.downstream.sample import draw, sample_seed
from prb.llm import Completion, Request, Sampling
from prb.llm.scripted import ScriptedLLM
from prb.prompts import render
from prb.types import Failure, Post, Query
from tests.downstream.fakes import policy

ASKED = Query(question="How often?", user="ann", posts=(Post("1", "", "I forget plants."),))
DRAWN = Sampling(temperature=0.8, top_p=0.9, max_tokens=64, seed=5)


@given(st.integers(0, 9), st.text(max_size=5), st.integers(0, 64))
def test_a_seed_is_fixed_by_its_place_and_fits_every_back_end(seed: int, pair: str, n: int) -> None:
    assert sample_seed(seed, pair, n) == sample_seed(seed, pair, n)
    assert 0 <= sample_seed(seed, pair, n) < 2**31


def test_no_two_places_share_a_seed() -> None:
    places = [(seed, f"p{pair}", n) for seed in range(3) for pair in range(20) for n in range(16)]
    assert len({sample_seed(*place) for place in places}) == len(places)
    assert sample_seed(0, "1:2", 3) != sample_seed(0, "2", 31)


def test_the_policy_reads_the_query_as_reward_models_do_and_samples_as_told() -> None:
    llm = policy()
    draw(llm, [("p", 0), ("p", 1)], {"p": ASKED}, DRAWN)
    for n, request in enumerate(llm.requests):
        ((role, text),) = request.chat
        assert (role, text) == ("user", render(ASKED))
        assert request.sampling == Sampling(temperature=0.8, top_p=0.9, max_tokens=64, seed=sample_seed(5, "p", n))


def test_a_sample_does_not_depend_on_what_else_is_drawn() -> None:
    queries = {"p": ASKED, "q": Query(question="Why?")}
    together = draw(policy(), [("p", 0), ("q", 0), ("p", 1)], queries, DRAWN)
    assert [(s.pair, s.n) for s in together] == [("p", 0), ("q", 0), ("p", 1)]
    assert together == [draw(policy(), [(s.pair, s.n)], queries, DRAWN)[0] for s in together]


def test_a_sample_tells_its_seed_its_tokens_and_whether_it_was_stopped() -> None:
    llm = ScriptedLLM(Completion(text=" yes \n", completion_tokens=64, truncated=True, cost=0.5))
    (sample,) = draw(llm, [("p", 7)], {"p": ASKED}, DRAWN)
    assert (sample.text, sample.tokens, sample.truncated, sample.cost) == ("yes", 64, True, 0.5)
    assert (sample.seed, sample.failure) == (sample_seed(5, "p", 7), None)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "empty answer"),
        (" \n\t", "empty answer"),
        ("<think>about plants, for ever", "empty answer"),
        (Failure("prompt longer than the context", "9 tokens"), "prompt longer than the context: 9 tokens"),
    ],
)
def test_what_is_no_answer_is_a_failure(reply: str | Failure, why: str) -> None:
    (sample,) = draw(ScriptedLLM(reply), [("p", 0)], {"p": ASKED}, DRAWN)
    assert (sample.text, sample.failure) == (None, why)


def test_what_a_failed_sample_cost_is_booked() -> None:
    refused = Failure("refused", completion_tokens=4, cost=0.25)
    (sample,) = draw(ScriptedLLM(refused), [("p", 0)], {"p": ASKED}, DRAWN)
    assert (sample.text, sample.tokens, sample.cost) == (None, 4, 0.25)


def test_what_a_model_thinks_is_no_part_of_its_answer() -> None:
    (sample,) = draw(ScriptedLLM("<think>hm</think>Weekly."), [("p", 0)], {"p": ASKED}, DRAWN)
    assert sample.text == "Weekly."


def test_half_a_character_can_be_written_to_a_file() -> None:
    (sample,) = draw(ScriptedLLM("caf\ud83d"), [("p", 0)], {"p": ASKED}, DRAWN)
    assert sample.text == "caf?"


def test_without_a_query_nothing_is_asked() -> None:
    llm = policy()
    samples = draw(llm, [("p", 0), ("q", 0)], {"p": Failure("no plan"), "q": ASKED}, DRAWN)
    assert [sample.failure for sample in samples] == ["no plan", None]
    assert len(llm.requests) == 1


def test_a_request_is_all_that_a_reply_depends_on() -> None:
    def by_seed(request: Request) -> str:
        return str(request.sampling.seed)

    (sample,) = draw(ScriptedLLM(by_seed), [("p", 3)], {"p": ASKED}, DRAWN)
    assert sample.text == str(sample.seed)
