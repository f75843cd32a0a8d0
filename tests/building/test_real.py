"""The whole pipeline on a real LLM: SmolLM2 is far too small for it, so what matters is how it fails."""

from __future__ import annotations

import orjson
import pytest

from prb.building.config import BuildConfig
from prb.building.run import build
from prb.weights import here
from tests.building.author import make_record

pytest.importorskip("xllamacpp", reason="needs the llamacpp extra")
pytestmark = pytest.mark.skipif(here("smollm2") == "no", reason="needs SmolLM2: prb models pull smollm2")


@pytest.mark.slow
def test_a_model_that_is_too_small_leaves_rejects_with_reasons_and_no_crash(write_jsonl, tmp_path, monkeypatch) -> None:
    for name, value in {"stages.MAX_TOKENS": 16, "stages.CANDIDATES": 1, "run.ROUNDS": 1}.items():
        monkeypatch.setattr(f"prb.building.{name}", value)
    given = [{"aspect": "The answer is short."}, {"aspect": "The answer names a tool."}]
    source = write_jsonl([make_record(1), make_record(2, rubric_aspects=given)], "records.jsonl")
    config = BuildConfig(
        input=str(source),
        llm="llamacpp/smollm2?threads=1&context=2048",
        out=tmp_path / "out",
        words=15,
    )
    result = build(config)
    rejects = [orjson.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()]
    assert result.summary["counts"]["rows"] + len(rejects) == 2
    assert all(reject["reason"] and reject["gate"] != "endpoint" for reject in rejects)
    assert sum(cost["calls"] for cost in result.summary["cost"].values()) > 0
    assert build(config).summary == result.summary
