"""Tuning an LLM so that posts match answers: LoRA on a tiny LLM; the adapter belongs to the head."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prb.data.named.mirror import Lesson
from prb.engine.load import Loading
from prb.errors import BadInput
from prb.models.personal.head import load_personal
from prb.models.personal.methods import Matcher
from prb.progress import SILENT
from prb.registry import Spec
from prb.runs import read_json
from prb.training.config import TrainConfig
from prb.training.run import train
from prb.training.tuning import ADAPTER, Step, Tuner, tune
from prb.types import Ask, Post, Query
from tests import tiny
from tests.training.synthetic import Interrupts

QUICK = Matcher(rank=2, passes=8, rate=1e-2, axes=2, posts=4, questions=2)
SPEC = "matcher?rank=2&passes=3&rate=0.01&axes=2&posts=4&questions=2"
NEUTRAL = ["nothing 1", "nothing 2"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft", reason="needs the train extra")
    return tiny.save(tmp_path_factory.mktemp("base") / "lm", "llama")


def lessons() -> list[Lesson]:
    """Posts and answers of a pole share no word."""
    words = (("early", "morning", "late", "long"), ("book", "day", "best", "a"))
    return [
        Lesson(
            f"axis {n}",
            (tuple(f"{first} {k}" for k in range(4)), tuple(f"{other} {k}" for k in range(4))),
            tuple((f"q{k}", f"{k} {fits} {fits}", f"{k} {suits} {suits}") for k in range(2)),
        )
        for n, (first, fits, other, suits) in enumerate(words)
    ]


def source() -> Any:
    return SimpleNamespace(name="axes", lessons=lessons, neutral=NEUTRAL.copy)


def test_tuning_brings_posts_near_the_answers_for_their_pole(lm: Path) -> None:
    tuner = Tuner(QUICK, str(lm), -1, Loading(), 0)
    tuner.measure(lessons())
    losses = [tuner.one_pass(lessons(), NEUTRAL, number) for number in range(1, QUICK.passes + 1)]
    assert losses[-1] < losses[0] / 2
    assert tuner.matched(lessons()) == 1.0


def test_a_step_says_what_each_post_has_to_do_with_each_question() -> None:
    exception = (1, "early for once", "yes", "no")
    taught = [lessons()[0]._replace(exceptions=(exception,)), lessons()[1]]
    method = Matcher(posts=1, questions=1)
    step = Step.drawn(taught, NEUTRAL, method, np.random.default_rng(0))
    assert [post[1:] for post in step.posts] == [(0, 0, -1), (0, 1, -1), (0, 1, 1), (1, 0, -1), (1, 1, -1), (-1, 0, -1)]
    assert [question[:2] for question in step.questions] == [(0, -1), (0, 1), (1, -1)]
    # an exception to the second pole speaks for the first answer in its situation, and says nothing elsewhere
    assert step.sides().tolist() == [[1, 1, 0], [-1, -1, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1], [0, 0, 0]]


def test_two_users_who_share_a_pole_differ_by_the_exception_that_one_of_them_makes() -> None:
    taught = [lessons()[0]._replace(exceptions=((1, "early for once", "yes", "no"),)), lessons()[1]]
    rng = np.random.default_rng(0)
    step = Step.drawn(taught, NEUTRAL, Matcher(posts=1, questions=1), rng)
    usual = [set(shown.tolist()) & {0, 1, 2} for shown in step.users(0, rng)]
    situational = [set(shown.tolist()) & {0, 1, 2} for shown in step.users(1, rng)]
    assert usual == [{0}, {1}]
    assert situational == [{1, 2}, {1}]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_only_the_upper_layers_are_tuned_if_asked_for_and_those_below_read_a_text_once(lm: Path, dtype) -> None:
    tuner = Tuner(replace(QUICK, layers=1, passes=4, dtype=dtype), str(lm), 2, Loading(), 0)
    names = [name for name, weight in tuner._model.named_parameters() if weight.requires_grad]
    assert names
    assert all(".layers.1." in name for name in names)
    tuner.measure(lessons())
    losses = [tuner.one_pass(lessons(), NEUTRAL, number) for number in range(1, 5)]
    assert losses[-1] < losses[0]
    tuner.matched(lessons())
    assert tuner._frozen
    tuner._frozen = lambda **_: pytest.fail("a text was read again"), tuner._frozen[1]
    tuner.matched(lessons())


def test_states_below_are_the_ones_that_the_whole_model_has(lm: Path) -> None:
    whole, split = (Tuner(replace(QUICK, layers=1), str(lm), 2, Loading(), 0, "Text:") for _ in range(2))
    whole._frozen = None
    for tuner in (whole, split):
        tuner.measure(lessons())
    passes = ([tuner.one_pass(lessons(), NEUTRAL, n) for n in (1, 2, 3)] for tuner in (whole, split))
    np.testing.assert_allclose(*passes, rtol=1e-4)
    assert split.matched(lessons()) == whole.matched(lessons())


def test_tuning_that_was_interrupted_resumes_after_the_last_pass(lm: Path, tmp_path: Path) -> None:
    features = str(Spec("hidden", {"lm": str(lm), "alone": "true"}))
    undisturbed, resumed = (tmp_path / name for name in ("undisturbed", "resumed"))
    expected = tune(SPEC, source(), features, undisturbed, 0, SILENT)
    with pytest.raises(KeyboardInterrupt):
        tune(SPEC, source(), features, resumed, 0, Interrupts(after=2, task="tuning"))
    with pytest.raises(KeyboardInterrupt):  # one pass is left
        tune(SPEC, source(), features, resumed, 0, Interrupts(after=1, task="tuning"))
    assert tune(SPEC, source(), features, resumed, 0, SILENT) == expected
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (resumed / ADAPTER / name).read_bytes() == (undisturbed / ADAPTER / name).read_bytes()


def test_a_matcher_carries_its_adapter_and_scores_as_it_was_tuned(lm: Path, tmp_path: Path) -> None:
    features = str(Spec("hidden", {"lm": str(lm), "layer": "1", "alone": "true", "lead": "Text:"}))
    dataset = "mirror?split=train&users=4&axes=2"
    settings = {"features": features, "dataset": dataset, "validation": 0, "k": 2}
    trained = train(TrainConfig(method="matcher?passes=1&posts=1&dtype=bf16", out=tmp_path / "head", **settings))
    moved = tmp_path / "moved"
    shutil.copytree(trained.folder, moved)
    card = read_json(moved / "card.json")
    assert card["adapter"] == ADAPTER
    assert read_json(moved / ADAPTER / "adapter_config.json")["base_model_name_or_path"] == str(lm)
    assert [point["pass"] for point in card["report"]["tuning"]] == [0, 1]
    model = load_personal(moved)
    assert model.fingerprint == load_personal(trained.folder).fingerprint
    # one post: the reward is its cosine with the answer, standardized by what the tuned LLM makes of the bank's texts
    torch = pytest.importorskip("torch")
    tuner = Tuner(Matcher(), str(lm), 1, Loading(), 0, "Text:")
    tuner._model.load_adapter(str(moved / ADAPTER), "default")
    text, answer = (torch.from_numpy(moments).float() for moments in (model.head.scaler.text, model.head.scaler.answer))
    tuner._moments = {"posts": tuple(text), "answers": tuple(answer)}
    query = Query(question="And now?", posts=(Post("1", "", "a short day"),))
    expected = (tuner._encode("posts", ["a short day"]) @ tuner._encode("answers", ["a long book"]).T).item()
    assert model.score([Ask(query, "a long book")]) == [pytest.approx(expected, abs=1e-4)]
    assert model.score([Ask(query.blind, "a long book")]) == [0]


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ("static", "matcher tunes an LLM"),
        ("hidden?lm=smollm2&layer=22", "matcher tunes an LLM"),
        ("hidden?lm=smollm2&alone=true&pool=last", "matcher tunes an LLM"),
        ("hidden?lm=smollm2&alone=1&adapter=mine", "an adapter of its own"),
    ],
)
def test_what_cannot_be_tuned_is_refused(features: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why):
        tune(SPEC, source(), features, tmp_path, 0, SILENT)
