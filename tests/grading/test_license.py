"""A license from files: a study's export, a table, human grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prb
from prb.errors import BadInput
from prb.grading.license import License, make_license, read_license
from tests.conftest import make_row

PANDALM = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pandalm"


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def people(tmp_path: Path) -> Path:
    """Each of three persons says `chosen` of nine in ten items; who errs where is drawn."""
    rng = np.random.default_rng(1)
    lines = [
        {"item": f"i{n}", "annotator": f"p{p}", "judgment": "chosen" if rng.random() < 0.9 else "rejected"}
        for n in range(120)
        for p in range(3)
    ]
    return write(tmp_path / "people.jsonl", lines)


def judge(tmp_path: Path, share: float) -> str:
    rng = np.random.default_rng(2)
    said = [{"item": f"i{n}", "judgment": "chosen" if rng.random() < share else "rejected"} for n in range(400)]
    return str(write(tmp_path / "judge.jsonl", said))


def licensed(tmp_path: Path, **settings: Any) -> License:
    return read_license(make_license(out=tmp_path / "license", **settings).folder)


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (0.9, "judge.jsonl may stand in for people on preference (as good as 3 of 3 people)."),
        (0.5, "It is not shown that {judge} may stand in for people on preference (as good as 0 of 3 people)."),
    ],
)
def test_a_judge_as_good_as_people_may_stand_in_for_them(tmp_path, share, says):
    spec = judge(tmp_path, share)
    made = licensed(tmp_path, license=spec, human=people(tmp_path))
    assert made.questions[0].test.passes == (share == 0.9)
    assert made.sentence().endswith(says.format(judge=spec))


def test_the_judges_other_items_narrow_the_interval_and_its_bias_is_taken_out(tmp_path):
    question = licensed(tmp_path, license=judge(tmp_path, 1.0), human=people(tmp_path)).questions[0]
    assert question.inflation.value == pytest.approx(1 - question.powered.human.value)
    assert question.powered.judge == 1.0
    assert question.powered.tuned.value == pytest.approx(question.powered.human.value)  # a constant tells nothing


def test_the_export_of_a_study_asks_about_preference_and_quality(tmp_path):
    line = {"user": "u", "cluster": "c", "group": "", "mirror": None, "check": False, "skipped": None}
    ratings = {"chosen": {"helpful": 4, "clear": 4}, "rejected": {"helpful": 4, "clear": 2}}
    said = [
        {**line, "item": f"i{n}", "annotator": p, "ratings": ratings, "before": "rejected", "after": "chosen"}
        for n in range(3)
        for p in "ab"
    ]
    stray = {"chosen": {"relevance": 5}, "rejected": {"relevance": 5}}
    asleep = {**said[0], "annotator": "c", "after": "rejected"}
    left_out = [
        {**said[0], "item": "check", "check": True, "before": "chosen"},
        {**said[0], "item": "skip", "skipped": "unclear"},
        asleep,  # and does not see that one answer of the check is a stray
        {**asleep, "item": "check", "check": True, "ratings": stray},
    ]
    run = tmp_path / "run"
    run.mkdir()
    outcomes = [
        {"pair": f"i{n}", "model": "m", "condition": c, "credit": 1.0, "cluster": "c"}
        for n in range(3)
        for c in ("profile", "none")
    ]
    write(run / "outcomes.jsonl", outcomes)
    made = licensed(tmp_path, license=str(run), human=write(tmp_path / "judgements.jsonl", [*said, *left_out]))
    agreement = [(q.name, q.items, q.agreement.value) for q in made.questions]
    assert agreement == [("preference", 3, 1.0), ("quality", 3, 1.0)]


def test_grades_of_two_people_and_of_a_constant_grader_are_compared_per_answer(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    graded = [{"pair": f"x{n}", "answer": "x", "score": 0.75, "cluster": f"c{n}", "round": 0} for n in range(6)]
    write(run / "grades.jsonl", graded)
    lines = [{"pair": f"x{n}", "answer": "x", "annotator": p, "grades": [0, 2, 1]} for n in range(6) for p in "ab"]
    question = licensed(tmp_path, license=str(run), human=write(tmp_path / "h.jsonl", lines)).questions[0]
    assert (question.name, question.scale, question.inflation.value) == ("grades", "numeric", 0.25)


@pytest.mark.parametrize(
    ("human", "said", "problem"),
    [
        ({"annotator": ""}, {}, "`annotator` is missing"),
        ({"judgment": "maybe"}, {}, "a finite number, or one of"),
        ({}, {"item": "j"}, "no item was judged by people and"),
        ({"question": "tone"}, {}, "people judged tone, the judge preference"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path, human, said, problem):
    said, human = {"item": "i", "judgment": 1, **said}, {"item": "i", "annotator": "a", "judgment": 1, **human}
    with pytest.raises(BadInput, match=problem):
        make_license(license=str(write(tmp_path / "j.jsonl", [said])), human=write(tmp_path / "h.jsonl", [human]))


def test_a_run_of_several_models_needs_a_name(tmp_path):
    (tmp_path / "run").mkdir()
    outcome = {"pair": "i", "condition": "profile", "credit": 1.0, "cluster": "c"}
    write(tmp_path / "run" / "outcomes.jsonl", [{**outcome, "model": "a"}, {**outcome, "model": "b", "credit": 0.0}])
    human = write(tmp_path / "h.jsonl", [{"item": "i", "annotator": p, "judgment": 0} for p in "xy"])
    with pytest.raises(BadInput, match="choose one"):
        make_license(license=str(tmp_path / "run"), human=human)
    made = licensed(tmp_path, license=f"{tmp_path / 'run'}?model=b", human=human)
    assert made.questions[0].agreement.value == 1.0


@pytest.mark.skipif(not PANDALM.exists(), reason="needs ../shared/data/pandalm")
def test_on_pandalm_a_judge_of_2023_is_worse_than_its_three_annotators_by_more_than_a_fifth(tmp_path):
    said = json.loads((PANDALM / "gpt-3.5-turbo-testset-v1.json").read_text("utf-8"))
    items = json.loads((PANDALM / "testset-v1.json").read_text("utf-8"))
    values = {"1": 1, "2": 0, "0": 0.5, "Tie": 0.5}
    judged = [{"item": r["idx"], "judgment": values[r["gpt_result"]]} for r in said if r["gpt_result"] in values]
    human = [
        {"item": str(r["idx"]), "annotator": n, "judgment": values[str(r[f"annotator{n}"])]}
        for r in items
        for n in (1, 2, 3)
    ]
    judge, people = str(write(tmp_path / "j.jsonl", judged)), write(tmp_path / "h.jsonl", human)
    question = licensed(tmp_path, license=judge, human=people).questions[0]
    assert not question.test.passes
    # share of the 974 readable items on which GPT-3.5 is at least as close to the other two as the annotator, averaged
    assert question.test.advantage == pytest.approx(0.758, abs=0.0005)


def test_an_evaluation_also_reports_accuracy_by_labels_of_people(tmp_path, write_jsonl):
    rows = write_jsonl([make_row(n) for n in range(1, 21)])
    human = [{"item": f"r{n}", "annotator": p, "judgment": "rejected"} for n in range(1, 6) for p in "ab"]
    said = [{"item": f"r{n}", "judgment": "chosen"} for n in range(1, 21)]
    judge, people = str(write(tmp_path / "j.jsonl", said)), write(tmp_path / "h.jsonl", human)
    made = make_license(license=judge, human=people, out=tmp_path / "license")
    result = prb.evaluate(
        model="length", dataset=str(rows), condition="profile", license=made.folder, out=tmp_path / "run", quiet=True
    )
    accuracy, by_people = (result.summary["results"][0][key] for key in ("accuracy", "human_accuracy"))
    # people say the opposite of every label, so where they labeled a row the model is right as often as it is wrong
    assert by_people["value"] == pytest.approx(1 - accuracy["value"], abs=0.3)
    assert "Accuracy by people's labels" in str(result)
