"""`matcher`: LoRA on a tiny LLM brings posts of a pole near the answers for it; the adapter belongs to the head."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prb.data.named.composed import Lesson
from prb.engine.load import Loading
from prb.errors import BadInput
from prb.models.personal.methods import Matcher
from prb.progress import SILENT
from prb.registry import Spec
from prb.runs import read_json
from tests import tiny

pytest.importorskip("peft", reason="needs the train extra")

from prb.models.personal.head import load_personal
from prb.training.config import TrainConfig
from prb.training.run import train
from prb.training.tune import ADAPTER, Tuner, tune

QUICK = Matcher(rank=2, passes=8, rate=1e-2, axes=2, posts=4, questions=2)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_tuning_brings_posts_near_the_answers_for_their_pole(lm: Path) -> None:
    tuner = Tuner(QUICK, str(lm), -1, Loading(), 0)
    tuner.measure(lessons())
    losses = [tuner.one_pass(lessons(), number) for number in range(QUICK.passes)]
    assert losses[-1] < losses[0] / 2
    assert tuner.matched(lessons()) == 1.0


def test_a_matcher_carries_its_adapter_and_scores_like_any_head(lm: Path, tmp_path: Path) -> None:
    features = str(Spec("hidden", {"lm": str(lm), "layer": "1", "alone": "true"}))
    dataset = "mirror?split=train&users=4&axes=2"
    settings = {"features": features, "dataset": dataset, "validation": 0, "k": 2}
    trained = train(TrainConfig(method="matcher?passes=1&posts=1", out=tmp_path / "head", **settings))
    moved = tmp_path / "moved"
    shutil.copytree(trained.folder, moved)
    card = read_json(moved / "card.json")
    assert card["adapter"] == ADAPTER
    assert [point["pass"] for point in card["report"]["tuning"]] == [0, 1]
    assert load_personal(moved).fingerprint == load_personal(trained.folder).fingerprint


@pytest.mark.parametrize("features", ["static", "hidden?lm=smollm2&layer=22", "hidden?lm=smollm2&alone=true&pool=last"])
def test_what_cannot_be_tuned_is_refused(features: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="matcher tunes an LLM"):
        tune(QUICK, lessons(), features, tmp_path, 0, SILENT)


def test_an_adapter_cannot_be_tuned_again(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="an adapter of its own"):
        tune(QUICK, lessons(), "hidden?lm=smollm2&alone=1&adapter=mine", tmp_path, 0, SILENT)
