"""Best-of-N from samples to summary: golden numbers, what is shared, what is left out, what survives a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.downstream.bon import BonConfig, best_of_n, check_failures
from prb.errors import BadInput, TooManyFailures
from prb.grading import Answered, Grades
from prb.llm import Request, ScriptedLLM
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.runs import Finished
from prb.types import Ask, Duel, Failure, Verdict
from tests.conftest import make_row, make_twins
from tests.downstream.fakes import Marks, knows, lines, mark, models, policy, says, settings
from tests.runs import names, prefers, recording

Write = Callable[..., Path]
ROWS = [*make_twins(1), make_row(5), make_row(6), *make_twins(2)]


@pytest.fixture
def data(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


def run(data: Path, out: Path, **changes: Any) -> Finished:
    own = {key: changes.pop(key) for key in ("models", "policy", "grader", "progress") if key in changes}
    given = {"models": models(), "policy": policy(), "grader": Marks(), **own}
    if "candidates" in changes:
        changes["policy"] = None
    return best_of_n(settings(data, out, **changes), **given)


def tells(*words: str) -> ScriptedLLM:
    """A policy that answers with these in turn."""
    answers = cycle(words)
    return policy(lambda _: next(answers))


def result(done: Finished, model: str = "knows") -> dict[str, Any]:
    (found,) = [row for row in done.summary["results"] if row["model"] == model]
    return dict(found)


def values(points: list[dict[str, Any]]) -> list[float | None]:
    return [point["value"] for point in points]


def test_a_run_holds_its_lines_and_its_summary(data, tmp_path):
    done = run(data, tmp_path / "run")
    files = [".lock", "config.json", "grades.jsonl", "replies.jsonl", "samples.jsonl", "scores.jsonl", "summary.json"]
    assert names(done.folder) == files
    assert len(lines(done.folder, "samples")) == 6 * 4
    assert len(lines(done.folder, "scores")) == 6 * 4 * 2
    assert set(lines(done.folder, "samples")[0]) >= {"pair", "n", "text", "tokens", "seed", "failure"}
    assert "seconds" not in (done.folder / "summary.json").read_text("utf-8")
    assert set(done.summary["clusters"]) == {line["pair"] for line in lines(done.folder, "samples")}
    assert len(set(done.summary["clusters"].values())) == done.summary["queries"]["clusters"] < 6  # twins are one


def test_the_numbers_by_hand(write_jsonl, tmp_path):
    llm = tells("once", "never", "soon", "often")  # marks 1, 1/2, 0, 1/6
    likes = {"once": 1.0, "never": 2.0, "soon": 2.0, "often": 0.0}
    own = {"mine": ScriptedScorer(lambda ask: likes[ask.answer])}
    done = run(write_jsonl([make_row(1)]), tmp_path / "run", model=("mine",), models=own, policy=llm)
    assert done.summary["ks"] == [1, 2, 4]
    assert values(done.summary["random"]) == pytest.approx([5 / 12] * 3)
    # best of two by mark: once wins 3 of 6 couples, never 2, often 1
    assert values(done.summary["oracle"]) == pytest.approx([5 / 12, (3 * 1 + 2 / 2 + 1 / 6) / 6, 1])
    # by reward: never and soon share 5 of 6 couples, once wins 1
    expected = [5 / 12, (2.5 * 0.5 + 2.5 * 0 + 1 * 1) / 6, (0.5 + 0) / 2]
    assert values(result(done, "mine")["curve"]) == pytest.approx(expected)
    shares = values(result(done, "mine")["headroom"])
    assert shares[0] is None  # best of one leaves nothing to choose
    assert shares[2] == pytest.approx((1 / 4 - 5 / 12) / (1 - 5 / 12))
    assert result(done, "mine")["bend"]["peak"] == 1
    assert done.summary["kl_bound"] == pytest.approx([0, 0.1931472, 0.6362944])


def test_intervals_are_clustered_and_differences_paired(data, tmp_path):
    done = run(data, tmp_path / "run")
    assert done.summary["queries"] == {
        "rows": 6, "clusters": 4, "sampling_failed": 0, "grading_failed": 0, "used": 6, "failures": {},
    }  # fmt: skip
    for name, worth in (("knows", 1), ("errs", -1)):
        for point in result(done, name)["curve"]:
            assert point["low"] <= point["value"] <= point["high"]
            assert (point["n"], point["failed"]) == (6, 0)
        rise = np.diff(np.array(values(result(done, name)["curve"])))
        assert (worth * rise >= -1e-9).all()
    (contrast,) = done.summary["contrasts"]
    ends = [values(result(done, name)["curve"])[-1] for name in ("knows", "errs")]
    assert (contrast["model_a"], contrast["model_b"], contrast["k"]) == ("knows", "errs", 4)
    assert contrast["value"] == pytest.approx(ends[0] - ends[1])
    assert (contrast["test"], contrast["p"], contrast["p_holm"]) == ("sign-flip", 2 / 2**4, 2 / 2**4)


def test_the_oracle_picks_by_grade_and_captures_all(data, tmp_path):
    own = {"oracle": ScriptedScorer(lambda ask: mark(ask.answer)), "even": ScriptedScorer(lambda _: 0.0)}
    done = run(data, tmp_path / "run", model=("oracle", "even"), models=own)
    assert values(result(done, "oracle")["curve"]) == values(done.summary["oracle"])
    assert values(result(done, "oracle")["headroom"])[1:] == pytest.approx([1, 1])
    assert values(result(done, "even")["curve"]) == pytest.approx(values(done.summary["random"]))
    assert values(result(done, "even")["headroom"])[1:] == pytest.approx([0, 0])


def test_models_can_join_later_without_a_new_sample_or_grade(data, tmp_path):
    whole = run(data, tmp_path / "whole")
    run(data, tmp_path / "grown", model=("knows",))
    idle, marks = policy(), Marks()
    grown = run(data, tmp_path / "grown", model=("errs",), policy=idle, grader=marks)
    assert (idle.requests, marks.asked) == ([], [])
    assert grown.summary == whole.summary
    for name in ("summary.json", "scores.jsonl", "samples.jsonl", "grades.jsonl"):
        assert (grown.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_one_call_scores_all_answers_of_a_query(data, tmp_path):
    calls: list[list[Ask]] = []

    class Watched(ScriptedScorer):
        def score(self, asks: Any) -> list[float | Failure]:
            calls.append(list(asks))
            return super().score(asks)

    run(data, tmp_path / "run", model=("w",), models={"w": Watched(knows)}, n=8)
    assert [len({ask.query for ask in call}) for call in calls] == [1] * 6
    calls.clear()
    run(data, tmp_path / "more", model=("w",), models={"w": Watched(knows)})
    assert [len({ask.query for ask in call}) for call in calls] == [2, 2, 2]  # eight answers


def test_equal_answers_are_scored_and_graded_once(data, tmp_path):
    (scorer, asked), marks, llm = recording(knows), Marks(), tells("once", "soon", "once", "once")
    done = run(data, tmp_path / "run", model=("w",), models={"w": scorer}, policy=llm, grader=marks)
    assert (len(asked), len(marks.asked)) == (2 * 6, 8)  # twins have a rubric in common
    assert [line["n"] for line in lines(done.folder, "grades")] == [0, 1] * 6
    assert [line["score"] for line in lines(done.folder, "scores")] == [3, 0, 3, 3] * 6
    assert done.summary["samples"]["distinct_of_n"] == 2
    assert values(done.summary["random"]) == pytest.approx([0.75] * 3)


def test_comparers_rank_by_a_round_robin_in_both_orders(data, tmp_path):
    duels: list[Duel] = []

    def better(duel: Duel) -> bool:
        duels.append(duel)
        return mark(duel.first) > mark(duel.second)

    llm = tells("once", "soon", "daily", "often")
    done = run(data, tmp_path / "run", model=("j",), models={"j": prefers(better)}, policy=llm)
    assert len(duels) == 6 * 4 * 3
    assert len({(d.query.user, d.first, d.second) for d in duels}) == len(duels)
    assert [line["score"] for line in lines(done.folder, "scores")][:4] == pytest.approx([1, 0, 2 / 3, 1 / 3])
    assert values(result(done, "j")["curve"]) == values(done.summary["oracle"])


def picky(ask: Ask) -> float | Failure:
    return Failure("busy", "try later") if ask.answer.startswith("soon") else knows(ask)


def test_a_query_with_a_failed_score_is_left_out_and_counted(data, tmp_path):
    llm = tells("once", "soon", "daily", "often", *["once", "never", "daily", "often"] * 5)
    own = {"picky": ScriptedScorer(picky, "picky"), "knows": models()["knows"]}
    done = run(data, tmp_path / "run", model=tuple(own), models=own, policy=llm)
    missing, whole = result(done, "picky"), result(done, "knows")
    assert [(p["n"], p["failed"]) for p in missing["curve"]] == [(5, 1)] * 3
    assert missing["failures"] == {"busy": 1}
    assert [(p["n"], p["failed"]) for p in whole["curve"]] == [(6, 0)] * 3
    assert missing["headroom"][-1]["n"] == 5
    (contrast,) = done.summary["contrasts"]
    assert (contrast["n"], contrast["dropped"]) == (5, 1)


def sometimes(request: Request) -> str | Failure:
    return Failure("timeout") if says(request).startswith("soon") else says(request)


def test_a_query_with_a_failed_sample_is_in_no_curve(data, tmp_path):
    scorer, asked = recording(knows)
    marks = Marks()
    done = run(
        data, tmp_path / "run", policy=policy(sometimes), models={**models(), "w": scorer}, model=("w",), grader=marks
    )
    drawn = lines(done.folder, "samples")
    broken = {line["pair"] for line in drawn if line["failure"]}
    assert 0 < len(broken) < 6
    queries = done.summary["queries"]
    assert (queries["sampling_failed"], queries["used"]) == (len(broken), 6 - len(broken))
    assert queries["failures"] == {"timeout": len(broken)}
    assert done.summary["samples"]["failed"] == sum(line["text"] is None for line in drawn)
    assert not {line["pair"] for line in lines(done.folder, "scores")} & broken
    assert {point["n"] for point in result(done, "w")["curve"]} == {6 - len(broken)}
    assert (len(asked), len(marks.asked)) == (13, 11)  # twins have a rubric in common
    with pytest.raises(TooManyFailures, match=f"sampling from mine: {len(broken)} of 6 failed"):
        check_failures(done.summary, 0.1)


def test_one_fatal_verdict_of_a_comparer_is_one_failure(data, tmp_path):
    """It fails all answers of its round robin; those must not look like as many failures in a row."""
    first, wrong_key = Verdict(choice="first"), Failure("HTTP 401", "wrong key", kind="fatal")
    replies = chain([first] * 3, [wrong_key], repeat(first))
    judge = ScriptedComparer(lambda _: next(replies), "judge")
    done = run(data, tmp_path / "run", model=("judge",), models={"judge": judge}, n=8)
    assert result(done, "judge")["failures"] == {"HTTP 401": 1}


class Graded(Marks):
    """The same grades for every answer, or grades by its length."""

    def __init__(self, *aspects: float) -> None:
        super().__init__()
        self._aspects = aspects

    def _one(self, answered: Answered) -> Grades:
        worth = min(2.0, len(answered.answer) / 99)
        return Grades(aspects=self._aspects or tuple(worth for _ in answered.rubric))


@pytest.mark.parametrize(
    ("changes", "used", "failures"),
    [
        ({"grader": Marks(fails_on="rarely")}, 2, {"no grades": 4}),
        ({"grader": Graded(*[1.0] * 9)}, 0, {"no grades": 6}),
        ({"policy": policy(lambda _: "")}, 0, {"empty answer": 6}),
    ],
)
def test_queries_without_answers_or_grades_are_left_out_and_counted(data, tmp_path, changes, used, failures):
    done = run(data, tmp_path / "run", **changes)
    assert (done.summary["queries"]["used"], done.summary["queries"]["failures"]) == (used, failures)
    counts = [(point["n"], point["failed"]) for point in result(done)["curve"]]
    assert counts == [(used, 0)] * 3  # not the model's fault
    assert (values(done.summary["oracle"]) == [None] * 3) == (not used)


def test_only_rows_with_a_rubric_are_used(write_jsonl, tmp_path):
    rows = [make_row(1, rubric_aspects=[]), make_row(2), make_row(3, rubric_aspects=[])]
    done = run(write_jsonl(rows), tmp_path / "run")
    assert {line["pair"] for line in lines(done.folder, "samples")} == {"r2"}
    with pytest.raises(BadInput, match="has no row with a rubric"):
        run(write_jsonl(rows[:1], name="bare.jsonl"), tmp_path / "bare")


def test_everybody_reads_the_same_query_and_nobody_the_rubric(data, tmp_path):
    from prb.prompts import render

    scorer, asked = recording(knows)
    llm, marks = policy(), Marks()
    run(data, tmp_path / "run", model=("w",), models={"w": scorer}, policy=llm, grader=marks)
    prompts = {request.chat[0].text for request in llm.requests}
    assert prompts == {render(ask.query) for ask in asked}
    assert all("short lists" in prompt for prompt in prompts)
    assert not any("brevity" in prompt or "on the bus" in prompt for prompt in prompts)
    assert {(a.rubric[0].aspect, a.narrative[-11:]) for a in marks.asked} == {("brevity", "on the bus.")}


def test_conditions_are_those_of_evaluation(data, tmp_path):
    for condition, shown in (("none", False), ("profile", True), ("shuffled", True), ("plan", False)):
        scorer, asked = recording(knows)
        run(data, tmp_path / condition, model=("w",), models={"w": scorer}, condition=condition)
        assert {bool(ask.query.posts) for ask in asked} == {shown}
        assert {bool(ask.query.plan) for ask in asked} == {condition == "plan"}
        users = {ask.query.user for ask in asked}
        assert users == {None} if condition == "none" else len(users) > 1


def test_personal_data_is_masked_for_what_sends_it_elsewhere(write_jsonl, tmp_path):
    aspect = {"aspect": "mail x@example.com", "evidence": "", "reason": "asks y@example.com"}
    rows = [make_row(1, question="Write to z@example.com?", rubric_aspects=[aspect], narrative="I am w@example.com")]
    scorer, asked = recording(knows)
    for far in (False, True):
        llm, marks = policy(), Marks()
        llm.remote = marks.remote = far
        run(write_jsonl(rows), tmp_path / f"{far}", model=("w",), models={"w": scorer}, policy=llm, grader=marks)
        sent = [repr(llm.requests), repr(marks.asked)]
        assert ["@example.com" in text for text in sent] == [not far] * 2
        assert ["[e-mail]" in text for text in sent] == [far] * 2
    assert all("z@example.com" in ask.query.question for ask in asked)  # the scorer stays on the machine


def test_given_answers_are_scored_and_graded_like_samples(data, tmp_path, write_jsonl):
    texts = [f"{word} it is" for word in ("once", "never", "soon", "often")]
    pool = write_jsonl([{"pair": row["id"], "answers": texts} for row in ROWS], name="pool.jsonl")
    sampled = run(data, tmp_path / "sampled", policy=tells(*texts))
    taken = run(data, tmp_path / "taken", candidates=str(pool))
    assert [line["text"] for line in lines(taken.folder, "samples")] == [
        line["text"] for line in lines(sampled.folder, "samples")
    ]
    for key in ("queries", "random", "oracle", "results", "contrasts", "clusters"):
        assert taken.summary[key] == sampled.summary[key], key
    assert taken.summary["policy"]["spec"] == "candidates pool.jsonl"
    assert taken.summary["policy"]["fingerprint"]


def alike(config: BonConfig, tmp_path: Path, patch: pytest.MonkeyPatch) -> Finished:
    """Two runs of a real policy, asked for all at once and one by one: they must draw the same answers."""
    one = best_of_n(replace(config, out=tmp_path / "one"), grader=Graded())
    patch.setattr("prb.work.AT_ONCE", 1)
    patch.setattr("prb.work.REMOTE_AT_ONCE", 1)
    two = best_of_n(replace(config, out=tmp_path / "two"), grader=Graded())
    assert (one.folder / "samples.jsonl").read_bytes() == (two.folder / "samples.jsonl").read_bytes()
    assert one.summary == two.summary
    return one


def test_llamacpp_is_a_policy(data, tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp", reason="needs the llamacpp extra")
    from prb.weights import resolve_gguf

    try:
        resolve_gguf("smollm2")
    except BadInput:
        pytest.skip("needs the pulled weights smollm2")
    config = settings(data, tmp_path, policy="llamacpp/smollm2", model=("length",), n=2, limit=2, max_tokens=6)
    done = alike(config, tmp_path, monkeypatch)
    assert done.summary["queries"]["used"] == 2
    assert {line["tokens"] for line in lines(done.folder, "samples")} == {6}
    assert done.summary["samples"]["truncated"] == 4


def test_transformers_is_a_policy(data, tmp_path, monkeypatch):
    tiny = pytest.importorskip("tests.tiny")
    spec = f"transformers/{tiny.save(tmp_path / 'lm', 'llama')}"
    done = alike(
        settings(data, tmp_path, policy=spec, model=("length",), n=3, limit=2, max_tokens=5), tmp_path, monkeypatch
    )
    assert done.summary["samples"]["drawn"] == 6
    assert done.summary["samples"]["distinct_of_n"] == 3


def test_an_endpoint_is_a_policy(data, tmp_path, monkeypatch):
    pytest.importorskip("httpx2", reason="needs the api extra")
    from tests.llm import server as http

    def script(seen: http.Seen) -> http.Reply:
        return http.says(f"by seed {seen.body['seed']}")

    with http.serve(script) as server:
        spec = f"openai/m?base_url={server.url}"
        done = alike(settings(data, tmp_path, policy=spec, model=("length",), n=3, limit=2), tmp_path, monkeypatch)
    drawn = lines(done.folder, "samples")
    assert [line["text"] for line in drawn] == [f"by seed {line['seed']}" for line in drawn]
