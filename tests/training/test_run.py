"""`train`: from rows to a folder, and every way it can be refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prb.data.load import load
from prb.data.named.mirror import Lesson
from prb.engine.load import Loading
from prb.errors import BadInput, RunConflict, UnknownName
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.models import MODELS
from prb.models.personal.features import make_features
from prb.models.personal.head import load_personal, query_of
from prb.models.personal.methods import Matcher
from prb.progress import SILENT
from prb.registry import Spec
from prb.runs import read_json
from prb.training.config import TrainConfig
from prb.training.learning import margins, open_training, prepare
from prb.training.run import ADAPTER, Tuner, train, tune
from prb.types import Ask, Pair
from tests import tiny
from tests.training.synthetic import Interrupts, rows_of_twelve


@pytest.fixture
def data(write_jsonl: Callable[..., Path]) -> str:
    return str(write_jsonl(rows_of_twelve()))


def test_a_light_head_is_trained_and_its_card_tells_all(data: str, tmp_path: Path) -> None:
    trained = train(TrainConfig(method="light", dataset=data, out=tmp_path / "head"))
    card = trained.summary
    assert card == read_json(tmp_path / "head" / "card.json")
    assert trained.folder == tmp_path / "head"
    assert card["data"]["rows"] == 48
    assert card["data"]["fingerprint"] == load(data, split="train").fingerprint
    assert card["fitted_on"]["users"] + card["validation"]["users"] == 12
    assert card["validation"]["by_condition"]["profile"]["value"] == 1.0
    assert card["validation"]["gain"]["value"] == 0.5
    assert sorted(p.name for p in (tmp_path / "head").iterdir()) == [
        ".lock", "card.json", "config.json", "users.json", "weights.safetensors"
    ]  # fmt: skip


def test_a_finished_folder_is_left_alone_and_another_setting_refused(data: str, tmp_path: Path) -> None:
    out = tmp_path / "head"
    first = train(TrainConfig(method="light", dataset=data, out=out))
    before = (out / "weights.safetensors").stat().st_mtime_ns
    assert train(TrainConfig(method="light", dataset=data, out=out)) == first
    assert (out / "weights.safetensors").stat().st_mtime_ns == before
    with pytest.raises(RunConflict, match="k"):
        train(TrainConfig(method="light", dataset=data, out=out, k=3))


def test_without_out_the_folder_is_named_after_the_settings(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, other = (train(TrainConfig(method="light?c=0.1", dataset=data, k=k)) for k in (10, 3))
    assert first.folder.parent == other.folder.parent == Path("runs")
    assert first.folder.name.startswith("train-light-c-0-1-")
    assert first.folder != other.folder
    assert MODELS.make(f"personal?path={first.folder}").fingerprint.startswith("personal-")


def test_bad_input_leaves_nothing_behind(data: str, tmp_path: Path) -> None:
    out = tmp_path / "head"
    with pytest.raises(UnknownName, match="did you mean 'bilinear'"):
        TrainConfig(method="bilinea", dataset=data, out=out)
    with pytest.raises(BadInput, match=r"rank='-3'.* greater than or equal to 1"):
        TrainConfig(method="bilinear?rank=-3", dataset=data, out=out)
    with pytest.raises(BadInput, match="cannot be tested"):
        train(TrainConfig(method="light", dataset=data, split="test", out=out))
    with pytest.raises(BadInput, match="validation must be less than 1"):
        train(TrainConfig(method="light", dataset=data, validation=1.0, out=out))
    with pytest.raises(BadInput, match="4 independent users cannot be split into 5 folds"):
        train(TrainConfig(method="light", dataset=data, sweep=True, limit=4, out=out))
    assert not out.exists()


def test_a_sweep_tries_the_grid_and_trains_on_everybody(data: str, tmp_path: Path) -> None:
    card = train(TrainConfig(method="light?sharp=5", dataset=data, out=tmp_path / "head", sweep=True)).summary
    assert [t["method"].startswith("light?sharp=5&c=") for t in card["sweep"]] == [True] * 4
    values = [t["accuracy"]["value"] for t in card["sweep"]]
    assert values == sorted(values, reverse=True)
    assert card["method"] == card["sweep"][0]["method"]
    assert card["fitted_on"]["users"] == 12
    assert card["validation"] is None


def test_a_bilinear_head_learns_two_opposite_tastes_from_posts(data: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    card = train(TrainConfig(method="bilinear", dataset=data, out=tmp_path / "head", epochs=3)).summary
    assert len(card["curve"]) == 3
    config = EvaluateConfig(
        dataset=data,
        split="train",
        model=(f"personal?path={tmp_path / 'head'}",),
        trained="count",
        condition=("none", "profile"),
        out=tmp_path / "run",
    )
    none, profile = evaluate(config).summary["results"]
    assert none["accuracy"]["value"] == 0.5  # nothing is known of anybody
    assert profile["accuracy"]["value"] > 0.9


# `matcher`: LoRA on a tiny LLM brings posts of a pole near the answers for it; the adapter belongs to the head.

QUICK = Matcher(rank=2, passes=8, rate=1e-2, axes=2, posts=4, questions=2)


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


def test_tuning_brings_posts_near_the_answers_for_their_pole(lm: Path) -> None:
    tuner = Tuner(QUICK, str(lm), -1, Loading(), 0)
    tuner.measure(lessons())
    losses = [tuner.one_pass(lessons(), number) for number in range(QUICK.passes)]
    assert losses[-1] < losses[0] / 2
    assert tuner.matched(lessons()) == 1.0


def test_only_the_upper_layers_are_tuned_if_asked_for_also_in_16_bits(lm: Path) -> None:
    method = replace(QUICK, layers=1, passes=4)
    tuner = Tuner(method, str(lm), 2, Loading(dtype="bf16"), 0)
    tuner.measure(lessons())
    names = [name for name, weight in tuner._model.named_parameters() if weight.requires_grad]
    assert names
    assert all(".layers.1." in name for name in names)
    losses = [tuner.one_pass(lessons(), number) for number in range(method.passes)]
    assert losses[-1] < losses[0]


def test_blocks_that_are_not_tuned_read_a_text_once(lm: Path) -> None:
    whole, split = (Tuner(replace(QUICK, layers=1), str(lm), 2, Loading(), 0) for _ in range(2))
    whole._frozen = None
    assert split._frozen
    for tuner in (whole, split):
        tuner.measure(lessons())
    np.testing.assert_allclose(*([t.one_pass(lessons(), n) for n in range(3)] for t in (whole, split)), rtol=1e-4)
    split.matched(lessons())
    split._frozen = lambda **_: pytest.fail("a text was read again"), split._frozen[1]
    assert split.matched(lessons()) == whole.matched(lessons())


def test_tuning_that_was_interrupted_resumes_after_the_last_pass(lm: Path, tmp_path: Path) -> None:
    features = str(Spec("hidden", {"lm": str(lm), "alone": "true"}))
    method = replace(QUICK, passes=3)
    undisturbed, resumed = (tmp_path / name for name in ("undisturbed", "resumed"))
    expected = tune(method, lessons(), features, undisturbed, 0, SILENT)
    with pytest.raises(KeyboardInterrupt):
        tune(method, lessons(), features, resumed, 0, Interrupts(after=2, task="tuning"))
    with pytest.raises(KeyboardInterrupt):  # one pass is left
        tune(method, lessons(), features, resumed, 0, Interrupts(after=1, task="tuning"))
    assert tune(method, lessons(), features, resumed, 0, SILENT) == expected
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (resumed / ADAPTER / name).read_bytes() == (undisturbed / ADAPTER / name).read_bytes()


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
        tune(QUICK, lessons(), features, tmp_path, 0, SILENT)


def test_scores_from_disk_are_the_margins_training_saw(data: str, tmp_path: Path) -> None:
    train(TrainConfig(method="light", dataset=data, out=tmp_path / "head"))
    model = load_personal(tmp_path / "head")
    features = make_features("static")
    examples = prepare(open_training(data, None), features, joint=False, k=10)
    pairs = [pair for pair in load(data, split="train") if isinstance(pair, Pair)]
    scores = np.array(model.score([Ask(query_of(p, None, 10), a) for p in pairs for a in p.answers]))
    np.testing.assert_allclose(scores[::2] - scores[1::2], margins(model.head, examples, np.arange(48)), atol=1e-9)
