"""The baseline that reads stated attributes: what it understands, and that nothing else moves it."""

from __future__ import annotations

import pytest

from prb import evaluate_personalized_reward
from prb.models import MODELS
from prb.models.baselines import shortness, wish_for_brevity
from prb.types import Ask, Post, Query, Scorer

SHORT, LONG = "Yes, twice a week.", " ".join(["word"] * 240)


def scores(*posts: str) -> list[float]:
    model = MODELS.make("attributes")
    assert isinstance(model, Scorer)
    query = Query(user="u", question="Q?", posts=tuple(Post(str(n), "", text) for n, text in enumerate(posts)))
    return [float(score) for score in model.score([Ask(query, SHORT), Ask(query, LONG)])]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("post", "wish"),
    [
        ("preference for brevity: high", 1.0),
        ("preference for brevity: 0.75", 0.5),
        ("Brevity: LOW", -1.0),
        ("likes detail: yes", -1.0),
        ("depth: low", 1.0),
        ("preference for brevity: medium", 0.0),
        ("preference for brevity: 7", 0.0),
        ("preference for brevity: sometimes", 0.0),
        ("short or long: high", 0.0),
        ("favourite colour: high", 0.0),
        ("I once wrote a short story: high drama", 0.0),
        ("I like brevity.", 0.0),
    ],
)
def test_a_wish_is_read_only_where_it_is_stated(post: str, wish: float) -> None:
    assert wish_for_brevity(post) == wish


def test_brevity_prefers_the_short_answer_and_detail_the_long_one() -> None:
    short, long = scores("preference for brevity: high")
    assert short > 0 > long
    assert scores("preference for brevity: low") == [-short, -long]
    assert scores("I water my plants.", "age: 60") == [0.0, 0.0]


def test_length_counts_on_a_scale_that_ends() -> None:
    assert shortness(" ".join(["w"] * 60)) == 0
    assert shortness(" ".join(["w"] * 240)) == pytest.approx(-1)
    assert (shortness(""), shortness("w " * 100_000)) == (2.0, -2.0)


def test_an_attribute_moves_the_reward_of_a_single_answer() -> None:
    asked = {"user_id": "u1", "preference_for_brevity": "high"}
    brief = evaluate_personalized_reward(SHORT, asked, 0.9, "attributes")
    lengthy = evaluate_personalized_reward(LONG, asked, 0.9, "attributes")
    assert brief["predicted_reward"] > 0.5 > lengthy["predicted_reward"]
    assert brief["alignment_score"] > lengthy["alignment_score"]
    assert evaluate_personalized_reward(SHORT, {"user_id": "u1"}, 0.9, "attributes")["predicted_reward"] == 0.5
