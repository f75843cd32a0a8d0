"""A small run in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from prb.evaluation.run import evaluate
from prb.models.scripted import ScriptedScorer
from prb.runs import Finished
from tests.conftest import Row
from tests.runs import by_length, settings


@pytest.fixture
def evaluated(write_jsonl: Callable[..., Path], tmp_path: Path) -> Callable[..., Finished]:
    """The run of a model, or of several by name, on rows or on a dataset; each in a folder of its own."""
    numbers = count()

    def run(rows: list[Row] | str, models: Any = None, **changes: Any) -> Finished:
        number = next(numbers)
        by_name = models if isinstance(models, Mapping) else {"mine": models or ScriptedScorer(by_length)}
        data = rows if isinstance(rows, str) else write_jsonl(rows, f"rows{number}.jsonl")
        config = settings(data, tmp_path / f"run{number}", **{"model": tuple(by_name), **changes})
        return evaluate(config, models=by_name)

    return run
