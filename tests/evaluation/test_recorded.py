"""Recorded scores through the main job: credited as live ones, failures where they do not fit, resumable."""

from __future__ import annotations

import pytest

from prb.api import ppo
from prb.downstream.bon import BonConfig, best_of_n
from prb.errors import BadInput
from prb.evaluation.paper import evaluate_personalized_reward
from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.serving.server import ServeConfig, serve
from prb.summary import CONDITIONS
from prb.types import Duel, Record
from tests.conftest import make_row, make_twins
from tests.runs import by_length, names, outcomes, prefers, result, settings


def longer(duel: Duel) -> bool | None:
    return None if len(duel.first) == len(duel.second) else len(duel.first) > len(duel.second)


@pytest.mark.parametrize("model", [ScriptedScorer(by_length), prefers(longer)], ids=["scorer", "comparer"])
def test_the_outcomes_of_a_run_are_a_scores_file_with_the_same_result(model, write_jsonl, tmp_path):
    several = make_row(9, chosen=["Short.", "Short too."], rejected=["A bit longer.", "No."])
    data = write_jsonl([*make_twins(1), *make_twins(2), make_row(3), several])
    live = evaluate(settings(data, tmp_path / "live"), models={"mine": model})
    spec = f"mine:=scores?path={tmp_path / 'live' / 'outcomes.jsonl'}"
    again = evaluate(settings(data, tmp_path / "again", model=(spec,)))
    assert again.summary == live.summary
    credits = [[(line["credit"], line["margin"]) for line in outcomes(run.folder)] for run in (live, again)]
    assert credits[0] == credits[1]


def test_a_row_without_rubric_has_its_score_under_oracle(write_jsonl, evaluated):
    verdicts = [{"pair": f"r{n}", "verdict": "chosen", "condition": "oracle"} for n in (1, 2)]
    spec = f"mine:=scores?path={write_jsonl(verdicts)}"
    rows = [make_row(n, rubric_aspects=[]) for n in (1, 2)]
    summary = evaluated(rows, {}, model=(spec,), condition=tuple(CONDITIONS)).summary
    assert result(summary, "oracle")["accuracy"]["value"] == 1.0


class Given:
    """The same record for every row, as an object of one's own."""

    fingerprint = "given"

    def __init__(self, record: Record) -> None:
        self.record = record

    def recall(self, pair: str, condition: str) -> Record:
        return self.record


SCORES, VERDICTS = "the recorded scores do not fit the answers", "the recorded verdicts do not fit the answers"


@pytest.mark.parametrize(
    ("record", "failure"),
    [
        (Record(scores=(1.0,)), f"{SCORES}: 1 for 2"),
        (Record(scores=(None, 1.0)), f"{SCORES}: 1 for 2"),
        (Record(scores=(1.0, 2.0, 3.0)), f"{SCORES}: 3 for 2"),
        (Record(scores=(1.0, float("nan"))), "not a finite number: nan"),
        (Record(scores=(1.0, 1e200)), "too large a number: 1e+200"),
        (Record(verdicts=("first",) * 8), f"{VERDICTS}: 2 answers"),
        (Record(verdicts=(None, None)), f"{VERDICTS}: 2 answers"),
        (Record(), f"{VERDICTS}: 2 answers"),
    ],
)
def test_a_record_that_does_not_fit_its_row_is_a_failure(record, failure, evaluated):
    (line,) = outcomes(evaluated([make_row(1)], Given(record), condition=("none",)).folder)
    assert (line["failure"], line["credit"], line["failure_kind"]) == (failure, None, "row")


def test_what_a_record_cost_and_said_is_in_the_outcome(evaluated):
    record = Record(verdicts=("second", None), tokens=7, cost=0.5, text=("B.",))
    (line,) = outcomes(evaluated([make_row(1)], Given(record), condition=("none",)).folder)
    spent = {key: line[key] for key in ("credit", "verdicts", "tokens", "cost", "text")}
    assert spent == {"credit": 0.0, "verdicts": ["second", None], "tokens": 7, "cost": 0.5, "text": ["B."]}


def test_ratings_take_one_score_per_row(write_jsonl, evaluated):
    plain = {"user": "u", "chosen": None, "rejected": None}
    rows = [make_row(n, **plain, answer="x" * n, rating=n / 5) for n in range(1, 6)]
    scores = write_jsonl([{"id": f"r{n}", "score": n} for n in range(1, 6)])
    spec = f"mine:=scores?path={scores}&condition=none"
    summary = evaluated(rows, {}, task="ratings", model=(spec,), condition=("none",)).summary
    assert result(summary, "none")["concordance"]["value"] == 1.0


def test_verbs_that_score_new_answers_refuse_recorded_scores(write_jsonl, tmp_path):
    scores = write_jsonl([{"pair": "r1", "verdict": "tie"}], "scores.jsonl")
    spec, problem = f"scores?path={scores}", "holds recorded scores; .* a model that can score new answers"
    with pytest.raises(BadInput, match=problem):
        evaluate_personalized_reward("An answer.", ["A post."], 0.5, model=spec)
    with pytest.raises(BadInput, match=problem):
        best_of_n(BonConfig(model=(spec,), policy="scripted/hello", n=2, out=tmp_path / "bon"))
    with pytest.raises(BadInput, match=problem):
        ppo(model=spec, policy="transformers/nowhere", out=tmp_path / "ppo")
    with pytest.raises(BadInput, match=problem):
        serve(ServeConfig(model=spec, port=0), ready=lambda _: pytest.fail("it listens"))
    assert not {"bon", "ppo"} & set(names(tmp_path))
