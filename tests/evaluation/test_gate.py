"""`--require`: what passes, what fails and why, what is no requirement at all."""

from __future__ import annotations

from typing import Any

import pytest

from prb.errors import BadInput, GateFailed
from prb.evaluation.config import check_requirements, require
from prb.summary import FORMAT, Summary

DATA = {"name": "x", "split": None, "rows": 42, "users": 42, "clusters": 42}
EMPTY: dict[str, Any] = {
    **{key: {} for key in ("by_category", "by_tier", "by_group", "failures", "not_measured")},
    "users": {"n": 0, "mean": None, "spread": None, "worst_decile": None},
    "biases": {"length": None, "position": None, "calibration": None},
    "cut_posts": 0,
}
CONTENT: dict[str, Any] = {
    "format": FORMAT,
    "prb": "1",
    "task": "pairs",
    "protocol": "prb",
    "dataset": {**DATA, "clustered_by": "users", "fingerprint": "f", "left_out": 0},
    "results": [
        {
            "model": model,
            "condition": condition,
            "accuracy": {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 40, "failed": 2},
            "person_effect": {"value": 0.7, "low": 0.6, "high": 0.8, "n": 20, "p": 0.01, "test": "sign-flip"},
            "mirror_accuracy": None,
            "average_user_share": 0.4,
            **EMPTY,
        }
        for model, values in {"good": (0.5, 0.8), "fair": (0.5, 0.65)}.items()
        for condition, value in zip(("none", "profile"), values, strict=True)
    ],
    "contrasts": [
        {"model": "good", "kind": "gain", "value": 0.3, "low": 0.2, "p": 0.001, "p_holm": 0.002},
        {"model": "good", "kind": "control", "value": 0.2, "low": 0.1, "p": 0.001, "p_holm": 0.002},
        {"model": "good", "kind": "flip_rate", "value": 0.6},
        {"model": "fair", "kind": "control", "value": 0.1, "low": -0.1, "p": 0.2, "p_holm": 0.2},
        {"model": "fair", "kind": "flip_rate", "value": 0.3},
    ],
}
SUMMARY = Summary.read(CONTENT)


@pytest.mark.parametrize(
    "text",
    [
        "accuracy>0.6",
        "accuracy >= 0.65",
        "accuracy@none<=0.5",
        "accuracy.low>0.5, accuracy.high<1",
        "accuracy.failed<=2,accuracy.n>=40",
        "control>0",
        "control.low>-0.5",
        "control.p<0.5,control.p_holm<=2e-1",
        "flip_rate>0.2",
        "person_effect.p<.05",
        "average_user_share<0.5",
        "gain.low>0",
        " accuracy>0.6 , ,",
        "good:accuracy>0.7,good:control.low>0,fair:flip_rate<0.5",
    ],
)
def test_a_requirement_that_holds_passes(text):
    require(text, SUMMARY)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accuracy>0.7", ["accuracy>0.7: fair under profile has 0.6500"]),
        ("accuracy@none>0.5", [f"accuracy@none>0.5: {m} under none has 0.5000" for m in ("good", "fair")]),
        (
            "accuracy<0.65",
            ["accuracy<0.65: good under profile has 0.8000", "accuracy<0.65: fair under profile has 0.6500"],
        ),
        ("control.low>0", ["control.low>0: fair has -0.1000"]),
        ("flip_rate>0.5", ["flip_rate>0.5: fair has 0.3000"]),
        ("accuracy>0.7,control>0.15", ["accuracy>0.7: fair under profile has 0.6500", "control>0.15: fair has 0.1000"]),
        ("mirror_accuracy>0", [f"mirror_accuracy>0: {m} under profile has no value" for m in ("good", "fair")]),
        ("accuracy@oracle>0", ["accuracy@oracle>0: the run has no such result"]),
        ("alignment>0", ["alignment>0: the run has no such result"]),
        ("good:accuracy>0.9", ["good:accuracy>0.9: good under profile has 0.8000"]),
        ("fair:gain>0", ["fair:gain>0: the run has no such result"]),
        ("gain.failed<=0", ["gain.failed<=0: good has no value"]),
        ("accuracy.p<1", [f"accuracy.p<1: {m} under profile has no value" for m in ("good", "fair")]),
    ],
)
def test_a_requirement_that_does_not_hold_fails_with_the_reason(text, why):
    with pytest.raises(GateFailed) as caught:
        require(text, SUMMARY)
    assert str(caught.value).splitlines() == ["requirements not met:", *(f"  {line}" for line in why)]
    assert caught.value.exit_code == 1


def test_without_profile_a_requirement_is_about_the_first_condition():
    only_none = {**CONTENT, "results": [row for row in CONTENT["results"] if row["condition"] == "none"]}
    require("accuracy<=0.5", Summary.read(only_none))


NOT_LIKE = "is not like accuracy>0.6, control.low>0 or embedding:accuracy@none<=0.55"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accuracy>60", "--require: accuracy>60: accuracy is a share, at most 1; for 60 % write 0.6"),
        ("a:control.low>=2.5", "--require: a:control.low>=2.5: control is a share, at most 1; for 2.5 % write 0.025"),
        ("accuracy<1000", "--require: accuracy<1000: accuracy is a share, at most 1"),
        ("", "--require is empty, so that it would always hold; write for example accuracy>0.6"),
        ("accuracy@plan>0.5", "--require: accuracy@plan>0.5 needs condition 'plan', which is not run"),
        ("control>0", "--require: control>0 needs condition 'shuffled', which is not run"),
        ("godo:accuracy>0.5", "no model of this run named 'godo'; did you mean 'good'?"),
        ("acuracy>0.5", "no metric named 'acuracy'; did you mean 'accuracy'?"),
        ("accuracy>0.5,flips>0", "no metric named 'flips'; did you mean 'flip_rate'?"),
        ("accuracy@proflie>0", "no condition named 'proflie'; did you mean 'profile'?"),
        ("accuracy@pro-file>0", "no condition named 'pro-file'; did you mean 'profile'?"),
        *((f"accuracy{end}", f"--require: 'accuracy{end}' {NOT_LIKE}") for end in ("", ">", "=0.5", ">high", ">1.2.3")),
        *((text, f"--require: {text!r} {NOT_LIKE}") for text in (">0.5", "accuracy.mid>0", "accuracy>.")),
    ],
)
def test_what_cannot_be_required_is_refused_before_the_run(text, says):
    with pytest.raises(BadInput) as caught:
        check_requirements(text, ("none", "profile"), ("good", "fair"))
    assert (str(caught.value), caught.value.exit_code) == (says, 2)
