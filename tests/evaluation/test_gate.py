"""`--require`: what passes, what fails and why, what is no requirement at all."""

from __future__ import annotations

from typing import Any

import pytest

from prb.errors import BadSpec, GateFailed, UnknownName
from prb.evaluation.gate import Requirement, parse_requirements, require

SUMMARY: dict[str, Any] = {
    "results": [
        {
            "model": model,
            "condition": condition,
            "accuracy": {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 40, "failed": 2},
            "person_effect": {"value": 0.7, "low": 0.6, "high": 0.8, "n": 20, "p": 0.01},
            "mirror_accuracy": None,
            "average_user_share": 0.4,
        }
        for model, values in {"good": (0.5, 0.8), "fair": (0.5, 0.65)}.items()
        for condition, value in zip(("none", "profile"), values, strict=True)
    ],
    "contrasts": [
        {"model": "good", "kind": "gain", "value": 0.3, "low": 0.2, "p": 0.001, "p_holm": 0.002, "flip_rate": None},
        {"model": "good", "kind": "control", "value": 0.2, "low": 0.1, "p": 0.001, "p_holm": 0.002, "flip_rate": 0.6},
        {"model": "fair", "kind": "control", "value": 0.1, "low": -0.1, "p": 0.2, "p_holm": 0.2, "flip_rate": 0.3},
    ],
}


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
    ],
)
def test_a_requirement_that_holds_passes(text: str) -> None:
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
        ("alignment>0", [f"alignment>0: {m} under profile has no value" for m in ("good", "fair")]),
        ("gain.failed<=0", ["gain.failed<=0: good has no value"]),
        ("accuracy.p<1", [f"accuracy.p<1: {m} under profile has no value" for m in ("good", "fair")]),
    ],
)
def test_a_requirement_that_does_not_hold_fails_with_the_reason(text: str, why: list[str]) -> None:
    with pytest.raises(GateFailed) as caught:
        require(text, SUMMARY)
    assert str(caught.value).splitlines() == ["requirements not met:", *(f"  {line}" for line in why)]
    assert caught.value.exit_code == 1


def test_without_profile_a_requirement_is_about_the_first_condition() -> None:
    only_none = {**SUMMARY, "results": [row for row in SUMMARY["results"] if row["condition"] == "none"]}
    require("accuracy<=0.5", only_none)


def test_contrasts_of_a_run_without_them_fail() -> None:
    with pytest.raises(GateFailed, match="control>0: the run has no such result"):
        require("control>0", {**SUMMARY, "contrasts": []})


def test_a_requirement_is_read_into_its_parts() -> None:
    (found,) = parse_requirements("accuracy@none.low >= -1.5e-3")
    assert found == Requirement("accuracy@none.low >= -1.5e-3", "accuracy", "none", "low", ">=", -0.0015)
    assert parse_requirements("") == []


@pytest.mark.parametrize(
    "text",
    [
        "accuracy",
        "accuracy>",
        ">0.5",
        "accuracy=0.5",
        "accuracy>high",
        "accuracy.mid>0",
        "accuracy>1.2.3",
        "accuracy>.",
    ],
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match=r"--require: .* is not like accuracy>0\.6"):
        parse_requirements(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("acuracy>0.5", "no metric named 'acuracy'; did you mean 'accuracy'?"),
        ("gian>0", "no metric named 'gian'; did you mean 'gain'?"),
        ("accuracy>0.5,flips>0", "no metric named 'flips'; did you mean 'flip_rate'?"),
        ("accuracy@proflie>0", "no condition named 'proflie'; did you mean 'profile'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(text: str, says: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse_requirements(text)
    assert str(caught.value) == says
    assert caught.value.exit_code == 2
