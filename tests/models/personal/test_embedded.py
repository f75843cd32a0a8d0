"""The head that ships with the package, and its recorded scores."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from prb.data.load import load_pairs
from prb.models import MODELS
from prb.types import Ask, Query, Record, Recorded, Scorer
from prb.weights import here


@pytest.mark.skipif(here("smollm2") == "no", reason="needs SmolLM2: prb models pull smollm2")
def test_the_recorded_scores_are_those_of_the_embedded_head() -> None:
    head = MODELS.make("personal?lm=smollm2")
    recorded = MODELS.make("personal-recorded")
    assert isinstance(head, Scorer)
    assert isinstance(recorded, Recorded)
    pair = load_pairs("mirror", split="test")[0]
    query = Query(question=pair.question, user=pair.user, posts=tuple(pair.profile))
    record = recorded.recall(pair.id, "profile")
    assert isinstance(record, Record)
    assert head.score([Ask(query, answer) for answer in pair.answers]) == pytest.approx(list(record.scores), rel=1e-4)
