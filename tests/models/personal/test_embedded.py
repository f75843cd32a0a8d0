"""The head that ships with the package, and its recorded scores."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from prb.data.load import load_pairs
from prb.models import MODELS
from prb.types import Ask, Query
from prb.weights import here


@pytest.mark.skipif(here("smollm2") == "no", reason="needs SmolLM2: prb models pull smollm2")
def test_the_recorded_scores_are_those_of_the_embedded_head() -> None:
    head: Any = MODELS.make("personal?lm=smollm2")
    recorded: Any = MODELS.make("personal-recorded")
    pair = load_pairs("mirror", split="test")[0]
    query = Query(question=pair.question, user=pair.user, posts=tuple(pair.profile))
    record = recorded.recall(pair.id, "profile")
    assert head.score([Ask(query, answer) for answer in pair.answers]) == pytest.approx(list(record.scores), rel=1e-4)
