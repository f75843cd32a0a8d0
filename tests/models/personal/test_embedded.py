"""The heads that ship with the package, and their recorded scores."""

from __future__ import annotations

from typing import get_args

import pytest

pytest.importorskip("torch")

from prb.data.load import load_pairs
from prb.models import MODELS
from prb.models.personal import EmbeddedHead
from prb.types import Ask, Query
from prb.weights import here

SLOW = {"qwen2.5-1.5b"}


@pytest.mark.parametrize(
    "lm", [pytest.param(lm, marks=[pytest.mark.slow] if lm in SLOW else []) for lm in get_args(EmbeddedHead)]
)
def test_the_recorded_scores_are_those_of_the_embedded_head(lm):
    if here(lm) == "no":
        pytest.skip(f"needs its LLM: prb models pull {lm}")
    head, recorded = (MODELS.make(f"{name}?lm={lm}") for name in ("personal", "personal-recorded"))
    pair = load_pairs("mirror", split="test")[0]
    query = Query(question=pair.question, user=pair.user, posts=tuple(pair.profile))
    record = recorded.recall(pair.id, "profile")
    assert head.score([Ask(query, answer) for answer in pair.answers]) == pytest.approx(list(record.scores), rel=1e-4)
