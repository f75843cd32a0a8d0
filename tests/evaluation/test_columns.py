"""Outcomes as columns, from memory and from the lines of an earlier process."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from prb.errors import BadInput
from prb.evaluation.columns import Columns
from prb.types import Outcome


def outcome(pair: str, **changes: Any) -> Outcome:
    base: dict[str, Any] = {"pair": pair, "user": "u", "cluster": "u", "model": "m", "condition": "none"}
    return Outcome(**{**base, **changes})


LINES = [
    outcome("1", scores=(2.0, 0.5), credit=1.0, margin=1.5, cut=2),
    outcome("2", scores=(None, 0.5), failure="busy", cut=1),
    outcome("3", verdicts=("first", "tie"), credit=0.75, margin=0.25),
    outcome("4", scores=(0.25,)),
    outcome("5", verdicts=(None, None), failure="busy: try again: later"),
]


def test_a_column_has_an_entry_for_every_line_and_nan_for_failures() -> None:
    columns = Columns(["m"], ["none"])
    columns.add(LINES)
    column = columns.of["m", "none"]
    np.testing.assert_array_equal(column.credit, [1.0, np.nan, 0.75, np.nan, np.nan])
    np.testing.assert_array_equal(column.margin, [1.5, np.nan, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(column.score, [np.nan, np.nan, np.nan, 0.25, np.nan])
    assert column.verdicts == [("first", "tie"), (None, None)]
    assert (column.failures, column.cut) == ({"busy": 2}, 3)


def test_failures_are_counted_by_reason_without_their_detail() -> None:
    columns = Columns(["m"], ["none"])
    columns.add([outcome(str(n), failure=f"no verdict: {n}") for n in range(3)] + [outcome("4", failure="busy")])
    assert columns.of["m", "none"].failures == {"no verdict": 3, "busy": 1}


def test_lines_read_back_give_the_same_column() -> None:
    fresh, stored = Columns(["m"], ["none"]), Columns(["m"], ["none"])
    fresh.add(LINES)
    for line in LINES:
        stored.read(orjson.loads(orjson.dumps(line)), expected=line.pair)
    a, b = fresh.of["m", "none"], stored.of["m", "none"]
    for name in ("credit", "margin", "score"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [list(v) for v in a.verdicts] == [list(v) for v in b.verdicts]
    assert (a.failures, a.cut) == (b.failures, b.cut)


def test_models_and_conditions_do_not_mix() -> None:
    columns = Columns(["m", "n"], ["none", "profile"])
    columns.add([outcome("1", credit=1.0), outcome("1", model="n", condition="profile", credit=0.0)])
    assert list(columns.of) == [("m", "none"), ("m", "profile"), ("n", "none"), ("n", "profile")]
    assert [len(column.credit) for column in columns.of.values()] == [1, 0, 0, 1]


@pytest.mark.parametrize("changes", [{"pair": "other"}, {"model": "x"}, {"condition": "oracle"}])
def test_a_line_that_this_run_would_not_have_written_is_refused(changes: dict[str, str]) -> None:
    columns = Columns(["m"], ["none"])
    line = {**orjson.loads(orjson.dumps(LINES[0])), **changes}
    with pytest.raises(BadInput, match="the run's outcomes are not those of this dataset"):
        columns.read(line, expected="1")


def test_a_line_without_its_fields_is_refused() -> None:
    with pytest.raises(BadInput, match="not those of this dataset at pair None"):
        Columns(["m"], ["none"]).read({}, expected="1")
