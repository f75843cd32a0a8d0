"""Scripted fakes, known noise, and mixtures of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from prb.errors import BadInput, BadSpec, UnknownName
from prb.evaluation.config import DEFAULT_MODELS
from prb.models import MODELS
from prb.models.scripted import Noisy, ScriptedScorer
from prb.types import Ask, Comparer, Duel, Failure, Post, Query, Verdict

QUERY = Query(
    question="What shall I bake?",
    user="u",
    posts=(Post("1", "", "I love rye bread."), Post("2", "", "No raisins for me.")),
    plan=("dense bread",),
)


@pytest.mark.parametrize(
    ("spec", "reply"),
    [
        ("scripted?reward=1.5", 1.5),
        ("scripted?fail=out of order", Failure("out of order")),
        ("scripted", Failure("nothing scripted")),
        ("scripted-judge?says=tie", Verdict(choice="tie")),
        ("scripted-judge?says=maybe", Failure("no verdict", "maybe")),
    ],
)
def test_a_fake_always_says_the_same(spec: str, reply: Any) -> None:
    model = MODELS.make(spec)
    duels, asks = [Duel(QUERY, "a", "b")] * 2, [Ask(QUERY, "a"), Ask(QUERY, "b")]
    assert (model.prefer(duels) if isinstance(model, Comparer) else model.score(asks)) == [reply] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize("name", DEFAULT_MODELS)
def test_a_score_does_not_depend_on_its_neighbours(name: str) -> None:
    model = MODELS.make(name)
    asks = [Ask(QUERY, answer) for answer in ("Rye bread.", "Raisin cake, with icing.", "", "!?", "Rye bread.")]
    together = list(model.score(asks))
    assert together == [score for ask in reversed(asks) for score in model.score([ask])][::-1]
    assert together[0] == together[-1]
    assert list(model.score([])) == []


ZERO = ScriptedScorer(lambda _: 0.0, "zero")


def noise_of(*asks: Ask, sd: float = 1.0, seed: int = 0) -> list[float]:
    return [float(value) for value in Noisy(ZERO, sd, seed).score(asks) if not isinstance(value, Failure)]


def test_noise_is_gaussian_of_the_size_asked_for() -> None:
    drawn = noise_of(*(Ask(Query(question=f"q{n}"), "an answer") for n in range(4000)), sd=0.3)
    # four standard errors of a mean and of a standard deviation
    assert np.mean(drawn) == pytest.approx(0, abs=4 * 0.3 / np.sqrt(4000))
    assert np.std(drawn) == pytest.approx(0.3, rel=4 / np.sqrt(2 * 4000))
    assert stats.kstest(np.array(drawn) / 0.3, "norm").pvalue > 0.001


def test_noise_depends_on_everything_a_model_may_see_and_on_the_seed_and_on_nothing_else() -> None:
    post = Post("1", "c", "t")
    base = Ask(Query(question="q", user="u", posts=(post,), plan=("p",)), "a")
    changes: list[dict[str, Any]] = [
        {"question": "q2"}, {"user": "v"}, {"user": None}, {"posts": (post, post)}, {"posts": (), "plan": ("p", *post)}
    ]  # fmt: skip
    others = [*(Ask(replace(base.query, **change), "a") for change in changes), Ask(base.query, "\ud800")]
    values = noise_of(base, *others)
    assert len(set(values)) == len(values)
    assert noise_of(*others, base)[-1] == values[0]
    assert noise_of(base, seed=1) != values[:1]


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("noisy", BadSpec, "needs model="),
        ("noisy?model=length&sd=-1", BadSpec, "sd='-1'"),
        ("noisy?model=length&sd=nan", BadSpec, "sd='nan'"),
        ("noisy?model=scripted-judge", BadInput, "only compares"),
        ("mix?models=length:much", BadSpec, "is not MODEL:WEIGHT"),
        ("noisy?model=lenght", UnknownName, "did you mean 'length'"),
    ],
)
def test_wrong_settings_are_told(spec: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        MODELS.make(spec)


ASKS = [
    Ask(Query(question="How do I bake bread?"), text) for text in ("Mix it.", "Weigh the flour, then wait.", "Wait.")
]


def scores(spec: str) -> Any:
    model: Any = MODELS.make(spec)
    return np.array(model.score(ASKS))


def test_weights_say_how_much_a_model_counts_whatever_its_unit() -> None:
    assert np.corrcoef(scores("mix?models=length:2"), scores("length"))[0, 1] == pytest.approx(1)
    whole = scores("mix?models=length:0.7|embedding:0.3")
    parts = 0.7 * scores("mix?models=length:1") + 0.3 * scores("mix?models=embedding:1")
    assert whole == pytest.approx(parts)


def test_a_mix_is_known_by_its_models_and_weights_and_says_what_it_was_normalized_on() -> None:
    specs = ("(random?seed=3):0.5|length:0.5", "(random?seed=4):0.5|length:0.5", "length:1", "length:2")
    made: list[Any] = [MODELS.make(f"mix?models={spec}") for spec in specs]
    assert len({model.fingerprint for model in made}) == len(made)
    assert "normalized on mirror, split dev, 200 answers" in made[2].execution


def test_what_one_model_cannot_score_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = MODELS.make("mix?models=length:1|embedding:1")
    monkeypatch.setattr(made.parts[1].model, "score", lambda asks: [Failure("no score")] * len(asks), raising=False)
    assert all(isinstance(score, Failure) for score in made.score(ASKS))
