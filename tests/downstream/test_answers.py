"""Candidate answers: seeds, prompts, what is not an answer, answers from a file; what is asked and booked, what a round
robin is worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from prb.downstream.answers import Asking, Candidates, Sample, Score, read_pool, sample_seed
from prb.downstream.bon import check_reward_model
from prb.errors import BadInput
from prb.llm import Completion, Sampling, ScriptedLLM
from prb.models.scripted import ScriptedComparer
from prb.prompts import PolicyPrompt, render
from prb.types import Failure, Pair, Post, Query, Scorer, Verdict
from prb.work import CalledModel
from tests.downstream.fakes import asking, policy
from tests.runs import prefers, recording

QUERY = Query(question="How often?", user="ann", posts=(Post("1", "Plants", "I forget {question}."),))
DRAWN = Sampling(temperature=0.8, top_p=0.9, max_tokens=64, seed=5)


@pytest.fixture
def ask(tmp_path: Path) -> Asking:
    return asking(tmp_path)


def drawn(
    ask: Asking, llm: ScriptedLLM, places: Sequence[tuple[str, int]], style: PolicyPrompt = "prb", **more: Any
) -> list[Sample]:
    queries = {**{pair: QUERY for pair, _ in places}, **more}
    return list(ask.sample(CalledModel.of("p", llm, "complete"), places, DRAWN, style, lambda _: queries).values())


def test_a_seed_is_fixed_by_its_place_and_fits_every_back_end():
    places = [(seed, f"p{pair}", n) for seed in range(3) for pair in range(20) for n in range(16)]
    seeds = {sample_seed(*place) for place in places}
    assert len(seeds) == len(places)
    assert 0 <= min(seeds) < max(seeds) < 2**31
    assert sample_seed(0, "1:2", 3) != sample_seed(0, "2", 31)


def test_the_policy_reads_the_query_as_reward_models_do_and_samples_as_told(ask):
    llm = policy()
    together = drawn(ask, llm, [("p", 0), ("p", 1)])
    for n, request in enumerate(llm.requests):
        ((role, text),) = request.chat
        assert (role, text) == ("user", render(QUERY))
        assert request.sampling == Sampling(temperature=0.8, top_p=0.9, max_tokens=64, seed=sample_seed(5, "p", n))
    assert [(s.pair, s.n, s.seed) for s in together] == [("p", n, sample_seed(5, "p", n)) for n in (0, 1)]


def test_the_papers_prompt_has_a_system_message_the_question_and_the_posts_with_categories(ask):
    llm = policy()
    drawn(ask, llm, [("p", 0)], "paper")
    drawn(ask, llm, [("p", 0)])
    (system, user), (alone,) = (request.chat for request in llm.requests)
    assert (system.role, user.role, alone.role) == ("system", "user", "user")
    assert user.text.index("How often?") < user.text.index("Post 1 (Category: Plants):")
    assert "I forget {question}." in user.text  # a slot inside a post is text
    assert ["100 words" in text for text in (user.text, alone.text)] == [True, False]


def test_without_a_query_nothing_is_asked(ask):
    llm = policy()
    samples = drawn(ask, llm, [("p", 0), ("q", 0)], p=Failure("no plan"))
    assert [sample.failure for sample in samples] == ["no plan", None]
    assert len(llm.requests) == 1


@pytest.mark.parametrize(
    ("reply", "text", "failure"),
    [
        (Completion(text=" \n\t", completion_tokens=4, cost=0.25), None, "empty answer"),
        (Completion(text="<think>for ever", completion_tokens=4, cost=0.25), None, "empty answer"),
        (Failure("too long", "9 tokens", completion_tokens=4, cost=0.25), None, "too long: 9 tokens"),
        (Completion(text=" yes \n", completion_tokens=4, truncated=True, cost=0.25), "yes", None),
        (Completion(text="<think>hm</think>Weekly.", completion_tokens=4, cost=0.25), "Weekly.", None),
        (Completion(text="caf\ud83d", completion_tokens=4, cost=0.25), "caf?", None),  # a lone surrogate
    ],
)
def test_a_sample_is_a_text_without_reasoning_or_a_failure_and_what_it_cost_is_booked(ask, reply, text, failure):
    (sample,) = drawn(ask, policy(lambda _: reply), [("p", 7)])
    assert (sample.text, sample.failure, sample.tokens, sample.cost) == (text, failure, 4, 0.25)
    assert sample.truncated == getattr(reply, "truncated", False)


# answers from a file


def pair_of(id_: str, question: str = "How often?") -> Pair:
    return Pair(id=id_, user="ann", question=question, profile=(), answers=("a", "b"))


ONE = {"pair": "p", "n": 0, "text": "one", "tokens": 1, "seed": 5, "truncated": False, "cost": 0.0, "failure": None}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # by pair, by question; those of the pair itself come first
        ([{"pair": "p", "answers": ["one", "two"]}, {"question": "How often?", "answers": ["so"]}], ("one", "two")),
        ([{"question": "How often?", "answers": ["so"]}], ("so",)),
        ([{"pair": "q", "answers": ["so"]}], ()),
        # lines of a row add up in the order of the file
        ([{"pair": "p", "answer": " one\n"}, {"pair": "q", "text": "x"}, {"pair": "p", "answers": ["b", "one"]}],
         ("one", "b", "one")),
        ([{"pair": "p", "answer": "<think>hm</think>Weekly."}], ("Weekly.",)),  # reasoning is no part of it
        # samples of a run, of which failures are no candidates
        ([ONE, ONE | {"n": 1, "text": None, "failure": "timeout"}], ("one",)),
    ],
)  # fmt: skip
def test_candidates_of_a_pair(lines, found, write_jsonl):
    assert read_pool(str(write_jsonl(lines))).of(pair_of("p")) == found


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
def test_a_line_that_holds_no_candidates_is_refused_with_its_number(line, says, write_jsonl):
    with pytest.raises(BadInput) as refused:
        read_pool(str(write_jsonl([{"pair": "p", "answers": ["one"]}, line])))
    assert says in str(refused.value)
    assert "2" in str(refused.value).splitlines()[1]


def test_the_fingerprint_of_a_pool_is_that_of_its_content(write_jsonl):
    lines = [{"pair": "p", "answers": ["one", "two"]}, {"pair": "q", "answers": ["x"]}]
    one = read_pool(str(write_jsonl(lines)))
    assert read_pool(str(write_jsonl(lines[::-1], name="moved.jsonl"))).fingerprint == one.fingerprint
    other = [{"pair": "p", "answers": ["two", "one"]}, lines[1]]
    assert read_pool(str(write_jsonl(other, name="other.jsonl"))).fingerprint != one.fingerprint


# scoring


def scored(ask: Asking, model: Any, *batch: Candidates) -> list[Score]:
    texts, queries = ({one.pair: one[part] for one in batch} for part in (2, 1))
    method = "score" if isinstance(model, Scorer) else "prefer"
    return list(ask.score(CalledModel.of("m", model, method), texts, lambda _: queries).values())


def test_one_failed_verdict_fails_the_answers_of_its_round_robin(ask):
    verdicts = chain([Failure("no verdict")], repeat(Verdict(choice="tie")))
    judge = ScriptedComparer(lambda _: next(verdicts))
    failed = scored(ask, judge, Candidates("p", QUERY, ["a", "b", "c", "a"]))
    assert [line.failure for line in failed] == ["no verdict"] * 4
    assert [line.score for line in scored(ask, judge, Candidates("p", QUERY, ["d", "e", "f", "d"]))] == [0.5] * 4


def test_a_single_distinct_answer_needs_no_judge(ask):
    def never(_: object) -> Verdict:
        raise AssertionError("asked to compare an answer with itself")

    found = scored(ask, ScriptedComparer(never), Candidates("p", QUERY, ["a", "a"]))
    assert [line.score for line in found] == [0.5, 0.5]


def test_a_query_that_cannot_be_asked_fails_all_its_answers_and_no_others(ask):
    batch = [Candidates("p", Failure("no plan", "silence"), ["a", "b"]), Candidates("q", QUERY, ["a"])]
    for model in (recording()[0], prefers(lambda _: None)):
        found = scored(ask, model, *batch)
        assert [line.failure for line in found] == ["no plan: silence", "no plan: silence", None]
        assert [line.score is None for line in found] == [True, True, False]


def test_sixteen_answers_are_not_too_many_to_compare():
    judge = prefers(lambda _: None)
    check_reward_model("j", judge, 16)
    with pytest.raises(BadInput, match="--n 17 would take 272 verdicts"):
        check_reward_model("j", judge, 17)
    check_reward_model("m", recording()[0], 1000)
