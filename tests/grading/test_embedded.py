"""The grader without an LLM: calibrated on train, measured on test, never a grade for nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from prb.cache import Cache
from prb.data.load import load, load_pairs
from prb.grading import GRADERS, Answered, Grades, about_grader, answered
from prb.grading.embedded import EmbeddedGrader, Rarity
from prb.grading.validate import discrimination, grade_pairs, scores
from prb.registry import Spec
from prb.text.encoders import ENCODERS, Matrix
from prb.types import Aspect, Failure, Pair
from prb.weights import here


@cache
def grader() -> EmbeddedGrader:
    return EmbeddedGrader(ENCODERS.make("static"))


@cache
def train() -> list[Pair]:
    return load_pairs("mirror", split="dev")


def mean_score(texts: Sequence[tuple[Pair, str]]) -> float:
    return float(scores(grader().grade([answered(pair, text) for pair, text in texts])).mean())


def test_grades_are_calibrated_where_they_were_fitted() -> None:
    # a logistic regression with a free intercept predicts its own base rate: half of these answers meet the rubric
    both = [(pair, text) for pair in train() for text in pair.answers]
    assert mean_score(both) == pytest.approx(0.5, abs=1e-3)
    graded = grader().grade([answered(pair, text) for pair, text in both])
    probability = np.array([g / 2 for one in graded if isinstance(one, Grades) for g in one.aspects])
    met = np.tile([1, 1, 1, 0, 0, 0], len(train()))
    for low, high in ((0, 0.4), (0.4, 0.6), (0.6, 1)):
        inside = (probability >= low) & (probability < high)
        assert met[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.08)


def test_its_validity_is_measured_on_the_test_split() -> None:
    accuracy = discrimination(grade_pairs(load("mirror", split="test"), grader().grade))["accuracy"]
    sentence = about_grader("embedded", grader())["validity"]
    assert sentence is not None
    told = [float(number) for number in re.findall(r"[0-9]+\.[0-9]", sentence)]
    assert told == [round(100 * accuracy[key], 1) for key in ("value", "low", "high")]
    assert "240 rows" in sentence
    assert accuracy["low"] > 0.7


def test_pasting_an_unrelated_answer_behind_hardly_helps() -> None:
    pairs = train()
    others = [pairs[(n + 79) % len(pairs)].rejected for n in range(len(pairs))]
    alone = mean_score([(pair, pair.rejected) for pair in pairs])
    padded = mean_score([(pair, f"{pair.rejected} {other}") for pair, other in zip(pairs, others, strict=True)])
    chosen = mean_score([(pair, pair.chosen) for pair in pairs])
    assert padded - alone < 0.25 * (chosen - alone)


def test_a_grade_depends_on_its_own_answer_and_aspect_only() -> None:
    pair = train()[0]
    whole = grader().grade([answered(pair, text) for text in pair.answers])
    assert whole == [grader().grade([answered(pair, text)])[0] for text in pair.answers]
    turned = Answered(question=pair.question, answer=pair.chosen, rubric=pair.rubric[::-1])
    assert grader().grade([turned])[0].aspects == whole[0].aspects[::-1]  # type: ignore[union-attr]


def test_grades_stay_on_the_scale_and_there_is_one_an_aspect() -> None:
    odd = [Aspect("brevity"), Aspect("…"), Aspect("短い", "x" * 3000, "why"), Aspect("a" * 50)]
    texts = ["ok", "word " * 4000, "短い答え", "https://example.org", train()[0].chosen]
    for one in grader().grade([Answered(question="?", answer=text, rubric=tuple(odd)) for text in texts]):
        assert isinstance(one, Grades)
        assert len(one.aspects) == 4
        assert all(0 <= grade <= 2 for grade in one.aspects)


@pytest.mark.parametrize(
    ("answer", "rubric", "reason"),
    [
        ("Fine.", (), "no rubric"),
        (" ", (Aspect("brevity"),), "empty answer"),
        ("!!! 👍", (Aspect("brevity"),), "no words in the answer"),
    ],
)
def test_nothing_to_grade_is_a_failure(answer: str, rubric: tuple[Aspect, ...], reason: str) -> None:
    (found,) = grader().grade([Answered(question="?", answer=answer, rubric=rubric)])
    assert isinstance(found, Failure)
    assert found.reason == reason


class Counting:
    """Few dimensions and quick: a text's letters."""

    fingerprint = "letters"

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts: Sequence[str]) -> Matrix:
        self.calls += 1
        rows = [[text.lower().count(letter) + 0.1 for letter in "etaoinsh"] for text in texts]
        return np.array([np.array(row) / np.linalg.norm(row) for row in rows], dtype=np.float32)


def test_it_is_fitted_once_and_remembered_after_that(tmp_path: Path) -> None:
    cache_ = Cache(tmp_path / "cache.sqlite")
    first = EmbeddedGrader(Counting(), cache=cache_)
    encoder = Counting()
    second = EmbeddedGrader(encoder, cache=cache_)
    assert (second.fingerprint, encoder.calls) == (first.fingerprint, 0)
    pair = answered(train()[0], train()[0].chosen)
    assert second.grade([pair]) == first.grade([pair])
    assert EmbeddedGrader(Counting()).fingerprint == first.fingerprint != grader().fingerprint


def test_rare_words_tell_more_and_the_commonest_still_something() -> None:
    rarity = Rarity(["the cat sat", "the dog", "the the"])
    assert rarity.of("the") == pytest.approx(np.log(5 / 4))
    assert rarity.of("cat") == pytest.approx(np.log(5 / 2))
    assert rarity.of("unheard") == pytest.approx(np.log(5))


def test_specs_name_the_encoder() -> None:
    made = GRADERS.make("embedded")
    assert (made.remote, made.fingerprint) == (False, grader().fingerprint)
    GRADERS.check(Spec.parse("embedded?encoder=minilm"))


@pytest.mark.slow
@pytest.mark.skipif(here("minilm") == "no", reason="needs the minilm weights: prb models pull minilm")
def test_minilm_serves_as_well() -> None:
    pytest.importorskip("transformers", reason="needs the torch extra")
    made = GRADERS.make("embedded?encoder=minilm")
    assert discrimination(grade_pairs(load("mirror", split="dev", limit=24), made.grade))["accuracy"]["value"] > 0.7
