"""Candidate answers: seeds, prompts, what is not an answer, answers from a file; what is asked and booked, what a round
robin is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.downstream.candidates import (
    Candidates,
    check_reward_model,
    read_pool,
    sample_answers,
    sample_seed,
    score_candidates,
)
from prb.errors import BadInput
from prb.llm import Completion, Request, Sampling, ScriptedLLM
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.prompts import render
from prb.runs import json_line
from prb.types import Ask, Failure, Pair, Post, Query, Reward, Verdict
from tests.downstream.fakes import policy
from tests.runs import prefers, recording

Write = Callable[..., Path]
QUERY = Query(question="How often?", user="ann", posts=(Post("1", "", "I forget plants."),))
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
    sample_answers(llm, [("p", 0), ("p", 1)], {"p": QUERY}, DRAWN)
    for n, request in enumerate(llm.requests):
        ((role, text),) = request.chat
        assert (role, text) == ("user", render(QUERY))
        assert request.sampling == Sampling(temperature=0.8, top_p=0.9, max_tokens=64, seed=sample_seed(5, "p", n))


def test_a_sample_does_not_depend_on_what_else_is_drawn() -> None:
    queries = {"p": QUERY, "q": Query(question="Why?")}
    together = sample_answers(policy(), [("p", 0), ("q", 0), ("p", 1)], queries, DRAWN)
    assert [(s.pair, s.n) for s in together] == [("p", 0), ("q", 0), ("p", 1)]
    assert together == [sample_answers(policy(), [(s.pair, s.n)], queries, DRAWN)[0] for s in together]


def test_a_sample_tells_its_seed_its_tokens_and_whether_it_was_stopped() -> None:
    llm = ScriptedLLM(Completion(text=" yes \n", completion_tokens=64, truncated=True, cost=0.5))
    (sample,) = sample_answers(llm, [("p", 7)], {"p": QUERY}, DRAWN)
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
    (sample,) = sample_answers(ScriptedLLM(reply), [("p", 0)], {"p": QUERY}, DRAWN)
    assert (sample.text, sample.failure) == (None, why)


def test_what_a_failed_sample_cost_is_booked() -> None:
    refused = Failure("refused", completion_tokens=4, cost=0.25)
    (sample,) = sample_answers(ScriptedLLM(refused), [("p", 0)], {"p": QUERY}, DRAWN)
    assert (sample.text, sample.tokens, sample.cost) == (None, 4, 0.25)


def test_what_a_model_thinks_is_no_part_of_its_answer() -> None:
    (sample,) = sample_answers(ScriptedLLM("<think>hm</think>Weekly."), [("p", 0)], {"p": QUERY}, DRAWN)
    assert sample.text == "Weekly."


def test_a_lone_surrogate_can_be_written_to_a_file() -> None:
    (sample,) = sample_answers(ScriptedLLM("caf\ud83d"), [("p", 0)], {"p": QUERY}, DRAWN)
    assert sample.text == "caf?"


def test_without_a_query_nothing_is_asked() -> None:
    llm = policy()
    samples = sample_answers(llm, [("p", 0), ("q", 0)], {"p": Failure("no plan"), "q": QUERY}, DRAWN)
    assert [sample.failure for sample in samples] == ["no plan", None]
    assert len(llm.requests) == 1


def test_a_request_is_all_that_a_reply_depends_on() -> None:
    def by_seed(request: Request) -> str:
        return str(request.sampling.seed)

    (sample,) = sample_answers(ScriptedLLM(by_seed), [("p", 3)], {"p": QUERY}, DRAWN)
    assert sample.text == str(sample.seed)


# answers from a file


def pair_of(id_: str, question: str = "How often?") -> Pair:
    return Pair(id=id_, user="ann", question=question, profile=(), answers=("a", "b"))


def test_candidates_are_found_by_pair_and_by_question(write_jsonl: Write) -> None:
    pool = read_pool(
        str(write_jsonl([{"pair": "p", "answers": ["one", "two"]}, {"question": "Why?", "answers": ["so"]}]))
    )
    assert pool.of(pair_of("p")) == ("one", "two")
    assert pool.of(pair_of("q", "Why?")) == ("so",)
    assert pool.of(pair_of("p", "Why?")) == ("one", "two")  # those of the pair itself come first
    assert pool.of(pair_of("q")) == ()


def test_lines_of_a_row_add_up_in_the_order_of_the_file(write_jsonl: Write) -> None:
    lines = [{"pair": "p", "answer": " one\n"}, {"pair": "q", "text": "x"}, {"pair": "p", "answers": ["two", "one"]}]
    pool = read_pool(str(write_jsonl(lines)))
    assert pool.of(pair_of("p")) == ("one", "two", "one")


def test_a_row_may_have_a_number_as_its_id(write_jsonl: Write) -> None:
    assert read_pool(str(write_jsonl([{"pair": 7, "answer": "one"}]))).of(pair_of("7")) == ("one",)


def test_what_a_model_thinks_is_no_part_of_a_candidate(write_jsonl: Write) -> None:
    pool = read_pool(str(write_jsonl([{"pair": "p", "answer": "<think>hm</think>Weekly."}])))
    assert pool.of(pair_of("p")) == ("Weekly.",)


def test_samples_of_a_run_are_candidates_and_its_failures_are_none(tmp_path: Path) -> None:
    replies = iter(["one", Failure("timeout"), "two"])
    places = [("p", 0), ("p", 1), ("q", 0)]
    samples = sample_answers(policy(lambda _: next(replies)), places, {"p": QUERY, "q": QUERY}, DRAWN)
    (tmp_path / "samples.jsonl").write_bytes(b"".join(json_line(asdict(sample)) for sample in samples))
    pool = read_pool(str(tmp_path / "samples.jsonl"))
    assert (pool.of(pair_of("p")), pool.of(pair_of("q"))) == (("one",), ("two",))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"answers": ["one"]}, "`pair` (the id of a row) or `question` is missing"),
        ({"pair": None, "answers": ["one"]}, "`pair` (the id of a row) or `question` is missing"),
        ({"pair": "p"}, "`answers` must be a list of texts"),
        ({"pair": "p", "answers": []}, "`answers` must be a list of texts"),
        ({"pair": "p", "answers": ["one", 2]}, "`answers` must be a list of texts"),
        ({"pair": "p", "answers": ["one", " "]}, "`answers` must be a list of texts"),
        ({"pair": "p", "answer": "<think>for ever"}, "`answers` must be a list of texts"),
    ],
)
def test_a_line_that_holds_no_candidates_is_refused_with_its_number(
    line: dict[str, Any], says: str, write_jsonl: Write
) -> None:
    with pytest.raises(BadInput) as refused:
        read_pool(str(write_jsonl([{"pair": "p", "answers": ["one"]}, line])))
    assert says in str(refused.value)
    assert "2" in str(refused.value).splitlines()[1]


def test_a_pool_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.jsonl does not exist"):
        read_pool(str(tmp_path / "none.jsonl"))


def test_the_fingerprint_of_a_pool_is_that_of_its_content(write_jsonl: Write) -> None:
    lines = [{"pair": "p", "answers": ["one", "two"]}, {"pair": "q", "answers": ["x"]}]
    one = read_pool(str(write_jsonl(lines)))
    assert read_pool(str(write_jsonl(lines[::-1], name="moved.jsonl"))).fingerprint == one.fingerprint
    other = [{"pair": "p", "answers": ["two", "one"]}, lines[1]]
    assert read_pool(str(write_jsonl(other, name="other.jsonl"))).fingerprint != one.fingerprint


# scoring


def test_scores_come_in_the_order_of_the_samples() -> None:
    model, asked = recording()
    found = score_candidates(
        "m", model, [Candidates("p", QUERY, ["bb", "a", "bb", "ccc"]), Candidates("q", QUERY, ["a"])]
    )
    assert [(line.pair, line.n, line.score) for line in found] == [
        ("p", 0, 2), ("p", 1, 1), ("p", 2, 2), ("p", 3, 3), ("q", 0, 1),
    ]  # fmt: skip
    assert asked == [Ask(QUERY, text) for text in ("bb", "a", "ccc", "a")]


def test_what_an_answer_cost_is_booked_once() -> None:
    model = ScriptedScorer(lambda _: Reward(1.0, tokens=7, cost=0.25, cut=2))
    found = score_candidates("m", model, [Candidates("p", QUERY, ["a", "a", "b"])])
    assert [(line.tokens, line.cost, line.cut) for line in found] == [(7, 0.25, 2), (0, 0, 0), (7, 0.25, 2)]


def test_what_a_round_robin_cost_is_booked_once() -> None:
    model = ScriptedComparer(lambda _: Verdict(choice="tie", tokens=5, cost=0.5, cut=1))
    found = score_candidates("m", model, [Candidates("p", QUERY, ["a", "b", "c", "a"])])
    assert [line.score for line in found] == [0.5] * 4
    assert (sum(line.tokens for line in found), sum(line.cost for line in found)) == (3 * 2 * 5, 3 * 2 * 0.5)
    assert max(line.cut for line in found) == 1


def test_what_a_failure_cost_is_booked_once() -> None:
    charged = Failure("no verdict", prompt_tokens=3, completion_tokens=2, cost=0.5)
    found = score_candidates("m", ScriptedScorer(lambda _: charged), [Candidates("p", QUERY, ["a", "a", "b"])])
    assert [(line.failure, line.tokens, line.cost) for line in found] == [
        ("no verdict", 5, 0.5), ("no verdict", 0, 0.0), ("no verdict", 5, 0.5),
    ]  # fmt: skip
    judge = ScriptedComparer(lambda duel: charged if duel.first == "a" else Verdict(choice="tie", tokens=7, cost=1.0))
    found = score_candidates("m", judge, [Candidates("p", QUERY, ["a", "b", "c"])])
    assert [line.failure for line in found] == ["no verdict"] * 3
    assert (sum(line.tokens for line in found), sum(line.cost for line in found)) == (2 * 5 + 4 * 7, 2 * 0.5 + 4 * 1.0)


def test_a_single_distinct_answer_needs_no_judge() -> None:
    def never(_: object) -> Verdict:
        raise AssertionError("asked to compare an answer with itself")

    found = score_candidates("m", ScriptedComparer(never), [Candidates("p", QUERY, ["a", "a"])])
    assert [line.score for line in found] == [0.5, 0.5]


def test_a_query_that_cannot_be_asked_fails_all_its_answers_and_no_others() -> None:
    batch = [Candidates("p", Failure("no plan", "silence"), ["a", "b"]), Candidates("q", QUERY, ["a"])]
    for model in (recording()[0], prefers(lambda _: None)):
        found = score_candidates("m", model, batch)
        assert [line.failure for line in found] == ["no plan: silence", "no plan: silence", None]
        assert [line.score is None for line in found] == [True, True, False]


def test_a_failure_is_told_for_the_answer_it_is_about() -> None:
    model = ScriptedScorer(lambda ask: Failure("too long") if len(ask.answer) > 1 else 1.0)
    found = score_candidates("m", model, [Candidates("p", QUERY, ["a", "bb", "a"])])
    assert [(line.score, line.failure) for line in found] == [(1, None), (None, "too long"), (1, None)]


def test_a_model_that_says_too_little_is_an_error_of_its_own() -> None:
    class Mute:
        fingerprint = "mute"

        def score(self, asks: Sequence[Ask]) -> list[float]:
            return [0.0]

    with pytest.raises(RuntimeError, match="1 answers to 2 questions"):
        score_candidates("m", Mute(), [Candidates("p", QUERY, ["a", "b"])])


def test_sixteen_answers_are_not_too_many_to_compare() -> None:
    judge = prefers(lambda _: None)
    check_reward_model("j", judge, 16)
    with pytest.raises(BadInput, match="--n 17 would take 272 verdicts"):
        check_reward_model("j", judge, 17)
    check_reward_model("m", recording()[0], 1000)
