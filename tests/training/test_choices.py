"""A head that reads past choices: as good as one that was given a user's labeled pairs, and lost without its user."""

from __future__ import annotations

from pathlib import Path

import pytest

from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from prb.training.config import TrainConfig
from prb.training.run import train

pytest.importorskip("torch", reason="needs the torch extra")
WORLD = "simulate?persons=600&seed=3"


@pytest.mark.slow
def test_past_choices_are_worth_as_much_as_labeled_pairs_and_somebody_elses_nothing(tmp_path: Path) -> None:
    train(TrainConfig(method="lore", dataset=WORLD, out=tmp_path / "head", quiet=True))
    config = EvaluateConfig(
        dataset=f"{WORLD}&posts=0&choices=8",
        model=(f"lore:=personal?path={tmp_path / 'head'}",),
        condition=("none", "profile", "shuffled"),
        out=tmp_path / "run",
    )
    results = {row["condition"]: row["accuracy"] for row in evaluate(config).summary["results"]}
    assert results["profile"]["low"] > 0.65
    for condition in ("none", "shuffled"):
        assert results[condition]["low"] < 0.55
        assert results[condition]["high"] < results["profile"]["low"]
