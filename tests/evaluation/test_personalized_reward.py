"""One answer, one person, one human score."""

from __future__ import annotations

import math

import pytest

import prb
from prb.errors import BadInput, PrbError
from prb.evaluation.paper import evaluate_personalized_reward
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.types import Failure, Post, Verdict
from tests.runs import recording


def test_attributes_that_say_nothing_of_length_are_read_as_text():
    profile = {"likes": "wooden boats and harbors"}
    near, far = (
        evaluate_personalized_reward(answer, profile, 1.0)["predicted_reward"]
        for answer in ("Walk along the harbor and look at the wooden boats.", "Compute the tax before April.")
    )
    assert near > far


@pytest.mark.parametrize(
    ("score", "predicted", "human", "alignment"),
    [
        (math.log(3), 0.75, 0.75, 1.0),
        (math.log(3), 0.75, 0.25, 0.5),
        (-math.log(3), 0.25, 0.25, 1.0),
        (1e4, 1.0, 1, 1.0),
        (-1e4, 0.0, 1, 0.0),
    ],
)
def test_the_reward_is_the_sigmoid_and_alignment_the_distance_to_the_person(score, predicted, human, alignment):
    found = evaluate_personalized_reward("An answer.", ["I like lists."], human, ScriptedScorer(lambda _: score))
    assert found["predicted_reward"] == pytest.approx(predicted)
    assert found["alignment_score"] == pytest.approx(alignment)
    assert found["human_preference_score"] == human


@pytest.mark.parametrize(
    ("profile", "posts"),
    [
        ("I like lists.", (Post("1", "", "I like lists."),)),
        ({"user_id": "u1", "loves_brevity": 0.9}, (Post("loves_brevity", "", "loves brevity: 0.9"),)),
        (Post("p7", "Art", "I paint."), (Post("p7", "Art", "I paint."),)),
        ([Post("p7", "Art", "I paint."), "I sing."], (Post("p7", "Art", "I paint."), Post("2", "", "I sing."))),
        ([{"text": "I paint."}], (Post("1", "", "I paint."),)),
        *((nothing, ()) for nothing in (None, "", [])),
    ],
)
def test_a_profile_may_be_texts_attributes_or_posts(profile, posts):
    model, asked = recording()
    evaluate_personalized_reward("An answer.", profile, 0.5, model, question="Which?")
    (ask,) = asked
    assert (ask.query.posts, ask.query.question, ask.answer) == (posts, "Which?", "An answer.")
    assert ask.query.plan == ()


def test_the_names_of_the_starter_code_work_and_attributes_are_read_by_the_model_that_knows_them():
    profile = {"user_id": "u1", "preference_for_brevity": "high"}
    short, long = (
        prb.evaluate_personalized_reward(model_output=text, user_profile=profile, human_preference_score=0.9)
        for text in ("Yes.", "Well, " * 300)
    )
    assert short["predicted_reward"] > 0.5 > long["predicted_reward"]
    texts = {"model_output": "Roses.", "user_profile": "I grow roses.", "human_preference_score": 0.9}
    assert prb.evaluate_personalized_reward(**texts) == prb.evaluate_personalized_reward(**texts, model="embedding")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({"model_output": text}, "model_output must be a text") for text in (None, "", "  ")),
        *(
            ({"human_preference_score": score}, "human_preference_score must be between 0 and 1")
            for score in (-0.01, 1.01, math.nan, 7)
        ),
        *(
            ({"user_profile": profile}, r"^`profile[.0-9a-z]*` (must be|is) [^\n]+$")
            for profile in (7, [7], ["I paint.", " "], [{"stars": 5}])
        ),
        ({"model": ScriptedComparer(lambda _: Verdict(choice="first"))}, "only compares answers"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_clear_line(changes, says):
    arguments = {"model_output": "An answer.", "user_profile": [], "human_preference_score": 0.5, "model": "length"}
    with pytest.raises(BadInput, match=says):
        evaluate_personalized_reward(**arguments | changes)


@pytest.mark.parametrize(
    ("score", "why"), [(Failure("busy", "later"), "busy: later"), (math.nan, "nan"), (math.inf, "inf")]
)
def test_a_model_that_fails_is_an_error_not_a_number(score, why):
    with pytest.raises(PrbError, match=f"no score: {why}") as caught:
        evaluate_personalized_reward("An answer.", [], 0.5, ScriptedScorer(lambda _: score))
    assert caught.value.exit_code == 1
