"""`train`: from rows to a folder, and every way it can be refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prb.data.load import load
from prb.errors import BadInput, RunConflict, UnknownName
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.models import MODELS
from prb.models.personal.features import make_features
from prb.models.personal.head import load_personal
from prb.runs import read_json
from prb.training.config import TrainConfig
from prb.training.learning import margins, open_training, prepare
from prb.training.run import train
from prb.types import Ask, Pair, Query
from tests.training.synthetic import rows_of_twelve


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


def test_scores_from_disk_are_the_margins_training_saw(data: str, tmp_path: Path) -> None:
    train(TrainConfig(method="light", dataset=data, out=tmp_path / "head"))
    model = load_personal(tmp_path / "head")
    features = make_features("static")
    examples = prepare(open_training(data, None), features, joint=False, k=10)
    pairs = [pair for pair in load(data, split="train") if isinstance(pair, Pair)]
    queries = [Query(question=p.question, user=p.user, posts=tuple(p.profile)) for p in pairs]
    scores = np.array(model.score([Ask(q, a) for q, p in zip(queries, pairs, strict=True) for a in p.answers]))
    np.testing.assert_allclose(scores[::2] - scores[1::2], margins(model.head, examples, np.arange(48)), atol=1e-9)
