"""PersonalLLM: a table of answers and scores written here by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import orjson
import pytest

from prb.data.named.judgments import SCALES, taste
from tests.data.named.reading import Row, read
from tests.data.named.test_votes import assert_twins


def table_row(n: int, **changes: Any) -> Row:
    """Reward model k likes answer k best, and k + 1 for the last two; all else is at its mean."""
    row: Row = {"prompt": f"Prompt {n}?", **{f"response_{r}": f"Answer {r} to {n}" for r in range(1, 9)}}
    for k, (model, (center, sd)) in enumerate(SCALES.items()):
        row |= {f"response_{r}_{model}": center + sd * (r == k % 8 + 1) for r in range(1, 9)}
    return {**row, **changes}


def spec(path: Path, **options: Any) -> str:
    return f"personalllm?path={path}" + "".join(f"&{key}={value}" for key, value in options.items())


def test_a_user_prefers_what_their_reward_model_likes_best(write_jsonl) -> None:
    rows = read(spec(write_jsonl([table_row(n) for n in range(40)]), users=5))
    models = list(SCALES)
    for row in rows:
        weights = taste(0, int(row["user"][1:]), 0.01)
        favorite = models.index(max(zip(weights, models, strict=True))[1]) % 8 + 1
        assert row["chosen"] == f"Answer {favorite} to {row['question'][7:-1]}"
    assert len({row["user"] for row in rows}) > 1
    assert {len(row["choices"]) for row in rows} <= set(range(17))


def test_tastes_are_weights_that_a_small_alpha_makes_one_sided() -> None:
    tastes = [taste(1, user, 0.01) for user in range(200)]
    assert all(sum(weights) == pytest.approx(1) for weights in tastes)
    assert mean(map(max, tastes)) == pytest.approx(0.944, abs=0.03)  # numpy: 0.944 over 5,000 draws
    favorites = Counter(weights.index(max(weights)) for weights in tastes)
    assert len(favorites) == 10
    even = [max(taste(1, user, 100.0)) for user in range(50)]
    assert max(even) < 0.2


def test_with_several_raters_there_are_twins(write_jsonl) -> None:
    rows = read(spec(write_jsonl([table_row(n) for n in range(20)]), users=50, raters=4, mirror="true"))
    assert rows
    assert_twins(rows)
    assert read(spec(write_jsonl([table_row(1)]), mirror="true")) == []


def test_the_scales_are_the_published_ones(shared_data) -> None:
    published = orjson.loads((shared_data / "formats" / "personalllm" / "reward_models.json").read_bytes())
    assert list(SCALES) == sorted(published)
    for model, (center, sd) in SCALES.items():
        assert (center, sd) == pytest.approx((published[model]["mean"], published[model]["sd"]), abs=1e-4)
