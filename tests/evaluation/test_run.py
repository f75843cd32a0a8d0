"""The main job end to end: exactness, failures, masking, and refusals that write nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prb.errors import BadInput
from prb.evaluation.config import DEFAULT_CONDITIONS, DEFAULT_MODELS, PERSONAL, READER, EvaluateConfig
from prb.evaluation.run import complete, evaluate
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.runs import read_json
from prb.summary import CONDITIONS
from prb.types import Ask, Failure, RewardModel
from tests.conftest import make_row, make_twins
from tests.runs import Notes, by_length, contrast, names, outcomes, prefers, recording, result, settings


def no_constants(text: str) -> Any:
    raise AssertionError(f"{text} in a file")


def strictly_json(folder: Path) -> None:
    """Every file of a run is JSON without NaN or Infinity."""
    for name in ("config.json", "summary.json", "users.json"):
        json.loads((folder / name).read_text("utf-8"), parse_constant=no_constants)
    for line in (folder / "outcomes.jsonl").read_text("utf-8").splitlines():
        json.loads(line, parse_constant=no_constants)


USER_BLIND: dict[str, RewardModel] = {
    "by length": ScriptedScorer(by_length),
    "by hash": ScriptedScorer(lambda ask: math.sin(sum(map(ord, ask.answer)) * 12.9898) * 43758.5453),
    "tiny numbers": ScriptedScorer(lambda ask: 1e-17 * sum(map(ord, ask.answer)) + 0.1),
    "longer wins": prefers(lambda duel: len(duel.first) > len(duel.second)),
    "always first": prefers(lambda _: True),
    "longer wins, if first": prefers(lambda duel: len(duel.first) > len(duel.second) or None),
}


@pytest.mark.parametrize("name", USER_BLIND)
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_user_blind_model_scores_exactly_half_on_mirror_rows(name, batch, evaluated):
    twins = [row for n in range(1, 6) for row in make_twins(n)]
    summary = evaluated(twins, USER_BLIND[name], condition=tuple(CONDITIONS), batch=batch).summary
    for condition in CONDITIONS:
        found = result(summary, condition)
        assert (found["accuracy"]["value"], found["person_effect"]["value"]) == (0.5, 0.5), condition
    assert contrast(summary, "gain")["value"] == contrast(summary, "control")["value"] == 0.0


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_each_distinct_prompt_and_answer_reaches_the_model_once_a_run(batch, evaluated):
    model, asked = recording()
    rows = [row for n in range(1, 6) for row in make_twins(n)] + [make_row(99)]
    evaluated(rows, model, condition=tuple(CONDITIONS), batch=batch)
    assert len(asked) == len({(repr(ask.query), ask.answer) for ask in asked})
    without_user = [ask for ask in asked if ask.query.user is None]
    assert len(without_user) == 2 * 6  # two answers for each of the six questions, whoever asks


@pytest.mark.parametrize("bad", [math.nan, math.inf, Failure("refused")])
def test_failures_are_null_counted_and_never_a_number(bad, evaluated):
    def sometimes(ask: Ask) -> float | Failure:
        return bad if "plant 2" in ask.answer else float(len(ask.answer))

    done = evaluated([make_row(n) for n in (1, 2, 3)], ScriptedScorer(sometimes))
    reason = "refused" if isinstance(bad, Failure) else "not a finite number"
    for condition in ("none", "profile", "shuffled"):
        found = result(done.summary, condition)
        assert (found["accuracy"]["value"], found["accuracy"]["n"], found["accuracy"]["failed"]) == (0.0, 2, 1)
        assert found["failures"] == {reason: 1}
    assert (contrast(done.summary, "gain")["n"], contrast(done.summary, "gain")["dropped"]) == (2, 1)
    assert [line["credit"] for line in outcomes(done.folder) if line["pair"] == "r2"] == [None] * 3
    assert read_json(done.folder / "users.json")["results"][0]["accuracy"] == [0.0, None, 0.0]
    strictly_json(done.folder)


@pytest.mark.parametrize(
    "model",
    [ScriptedScorer(lambda _: math.nan), ScriptedComparer(lambda _: Failure("no verdict"))],
    ids=["scorer", "judge"],
)
def test_a_model_that_always_fails_has_no_accuracy(model, evaluated):
    done = evaluated(make_twins(1), model)
    found = result(done.summary, "profile")
    assert found["accuracy"] == {"value": None, "low": None, "high": None, "n": 0, "failed": 2, "ties": 0}
    assert found["mirror_accuracy"] is found["person_effect"] is found["average_user_share"] is None
    assert contrast(done.summary, "control")["value"] is contrast(done.summary, "control")["p_holm"] is None
    strictly_json(done.folder)


@pytest.mark.parametrize(
    ("mask_pii", "remote", "masked"),
    [("on", False, True), ("off", True, False), ("auto", False, False), ("auto", True, True)],
)
def test_personal_data_is_masked_when_asked_for_or_when_texts_leave_the_machine(mask_pii, remote, masked, evaluated):
    posts = [f"I love {n} lists, mail me at ann@example.org please." for n in (1, 2)]
    rows = [make_row(n, question=f"Is @bob_{n} right?", profile=[post]) for n, post in enumerate(posts, 1)]
    model, asked = recording()
    model.remote = remote
    evaluated(rows, model, condition=tuple(CONDITIONS), mask_pii=mask_pii)
    assert len(asked) == 2 * 2 * 5
    seen = "\n".join(repr(ask.query) for ask in asked)
    assert ("ann@example.org" in seen, "@bob_1" in seen) == (not masked, not masked)
    assert ("[e-mail]" in seen, "[handle]" in seen) == (masked, masked)


def test_progress_is_told_of_every_row(write_jsonl, tmp_path):
    notes = Notes()
    config = settings(write_jsonl([make_row(n) for n in range(5)]), tmp_path / "run", batch=2)
    evaluate(config, models={"mine": ScriptedScorer(by_length)}, progress=notes)
    assert notes.begun[1:] == [("loading mine", None, 0), ("mine", 5, 0)]
    assert (notes.advanced, notes.notes) == (5, [])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, "limit must be at least 1, not 0"),
        ({"k": -1}, "k must be at least 0, not -1"),
        ({"history": "both?budget=-5"}, "history 'both': budget='-5': Input should be greater than or equal to 0"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"history": "post?ranker=bm25"}, "no history named 'post'; did you mean 'posts'?"),
        ({"condition": ("none", "proflie")}, "'plan', 'shuffled' or 'oracle', not 'proflie'"),
        ({"mask_pii": True}, "mask_pii must be 'auto', 'on' or 'off', not True"),
        ({"orders": "bot"}, "orders must be 'both' or 'one', not 'bot'"),
        ({"limit": True}, "limit must be a whole number, not True"),
        ({"model": {"mine"}}, "model: should have an order, such as a tuple, not a set"),
        ({"protocol": "papr"}, "no protocol named 'papr'; did you mean 'paper'?"),
        ({"dataset": ""}, "dataset must not be empty"),
        ({"require": "gain>0", "condition": "profile"}, "gain>0 needs condition 'none', which is not run"),
        ({"model": ("lenght",)}, "no model named 'lenght'; did you mean 'length'?"),
        ({"model": ("random?sed=1",)}, "no option of model 'random' named 'sed'; did you mean 'seed'?"),
        ({"model": ("random?seed=x",)}, "model 'random': seed='x'"),
        ({"model": ("?seed=1",)}, "'?seed=1' has no name"),
        ({"planner": "extractiv"}, "no planner named 'extractiv'; did you mean 'extractive'?"),
        ({"dataset": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"dataset": "miror"}, "no dataset named 'miror'; did you mean 'mirror'?"),
        ({"split": "dev"}, "has no `split` field, so there is no split 'dev'"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_written(changes, says, write_jsonl, tmp_path):
    data = write_jsonl([make_row(1)])
    with pytest.raises(BadInput) as caught:
        evaluate(settings(data, tmp_path / "run", **changes), models={"mine": ScriptedScorer(by_length)})
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
    assert names(tmp_path) == ["set.jsonl"]


def test_something_that_is_no_reward_model_is_refused_and_leaves_no_trace(write_jsonl, tmp_path):
    config = settings(write_jsonl([make_row(1)]), tmp_path / "run")
    with pytest.raises(BadInput, match=r"'mine' is not a reward model: it needs `fingerprint`"):
        evaluate(config, models={"mine": object()})
    assert not (tmp_path / "run").exists()


def test_defaults_are_filled_in_and_repetitions_dropped():
    full = complete(EvaluateConfig(dataset="rows.jsonl"))
    assert (full.model, full.condition) == (DEFAULT_MODELS, DEFAULT_CONDITIONS)
    for split, more in ((None, (PERSONAL, READER)), ("test", (PERSONAL, READER)), ("hard", (READER,)), ("dev", ())):
        assert complete(EvaluateConfig(split=split)).model == (*DEFAULT_MODELS, *more)
    once = complete(EvaluateConfig(model=("length", "random", "length"), condition=("none", "none")))
    assert (once.model, once.condition) == (("length", "random"), ("none",))


def test_the_default_folder_is_named_by_data_and_settings_but_not_by_presentation():
    config = EvaluateConfig(dataset="some/where/my set.jsonl", model=("length",))
    folder = config.folder("my set.jsonl")
    assert folder.parent == Path("runs")
    assert folder.name.startswith("my-set-jsonl-")
    assert replace(config, json=True, quiet=True, require="accuracy>0").folder("my set.jsonl") == folder
    assert replace(config, k=4).folder("my set.jsonl") != folder


def test_a_model_may_have_a_short_name_everywhere(evaluated):
    summary = evaluated([make_row(n) for n in range(3)], {}, model=("hash:=random?seed=7",)).summary
    assert {row["model"] for row in summary["results"]} == {"hash"}
    assert {row["model"] for row in summary["contrasts"]} == {"hash"}
    with pytest.raises(BadInput, match="the same short name"):
        evaluated("mirror", {}, model=("a:=random", "a:=length"))
