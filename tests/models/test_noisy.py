from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from prb.errors import BadSpec, UnknownName
from prb.models import MODELS
from prb.models.noisy import Noisy
from prb.models.scripted import ScriptedScorer
from prb.types import Ask, Failure, Post, Query, Scorer

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
    others = [
        Ask(Query(question="q2", user="u", posts=(post,), plan=("p",)), "a"),
        Ask(Query(question="q", user="v", posts=(post,), plan=("p",)), "a"),
        Ask(Query(question="q", posts=(post,), plan=("p",)), "a"),
        Ask(Query(question="q", user="u", posts=(post, post), plan=("p",)), "a"),
        Ask(Query(question="q", user="u", plan=("p", "1", "c", "t")), "a"),
        Ask(Query(question="q", user="u", posts=(post,), plan=("p",)), "a2"),
    ]
    values = noise_of(base, *others)
    assert len(set(values)) == len(values)
    assert noise_of(*others, base)[-1] == values[0]
    assert noise_of(base, seed=1) != values[:1]


def test_broken_characters_are_hashed_too() -> None:
    assert len(noise_of(Ask(Query(question="\ud800"), "\udfff"))) == 1


def test_failures_stay_failures_and_no_noise_changes_nothing() -> None:
    inner = ScriptedScorer(lambda ask: Failure("no") if ask.answer == "bad" else 2.5)
    asks = [Ask(Query(question="q"), "bad"), Ask(Query(question="q"), "good")]
    assert Noisy(inner, 0.0, 0).score(asks) == [Failure("no"), 2.5]


def test_a_spec_holds_another_spec_with_its_own_options() -> None:
    model = MODELS.make("noisy?model=random%3Fseed%3D7&sd=0.5&seed=3")
    assert isinstance(model, Scorer)
    assert model.fingerprint == "noisy-0.5-3-random-7"


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("noisy", BadSpec, "needs model="),
        ("noisy?model=length&sd=-1", BadSpec, "sd=-1"),
        ("noisy?model=length&sd=nan", BadSpec, "sd=nan"),
        ("noisy?model=scripted-judge", BadSpec, "only compares"),
        ("noisy?model=lenght", UnknownName, "did you mean 'length'"),
    ],
)
def test_wrong_settings_are_told(spec: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        MODELS.make(spec)
