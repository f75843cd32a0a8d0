"""Outcomes as columns, from memory and from the lines of an earlier process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from prb.errors import BadInput
from prb.evaluation.outcomes import REQUIRED, Outcomes, read_outcomes
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


IDS = [line.pair for line in LINES]
CELL = ("m", "none")


def as_line(outcome: Outcome, **changes: Any) -> dict[str, Any]:
    return {**orjson.loads(orjson.dumps(outcome)), **changes}


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "outcomes.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder


def test_a_column_has_an_entry_for_every_line_and_nan_for_failures():
    outcomes = Outcomes(IDS, [CELL])
    outcomes.add(LINES)
    column = outcomes.of[CELL]
    np.testing.assert_array_equal(column.credit, [1.0, np.nan, 0.75, np.nan, np.nan])
    np.testing.assert_array_equal(column.margin, [1.5, np.nan, 0.25, np.nan, np.nan])
    np.testing.assert_array_equal(column.score, [np.nan, np.nan, np.nan, 0.25, np.nan])
    assert column.verdicts == [("first", "tie"), (None, None)]
    assert (column.failures, column.cut) == ({"busy": 2}, 3)


def test_lines_read_back_give_the_same_columns(tmp_path):
    fresh = Outcomes(IDS, [CELL])
    fresh.add(LINES)
    stored = read_outcomes(write(tmp_path, [as_line(line) for line in LINES]), details=True)
    a, b = fresh.of[CELL], stored.of[CELL]
    for name in ("credit", "margin", "score"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [list(v) for v in a.verdicts] == [list(v) for v in b.verdicts]
    assert (a.failures, a.cut) == (b.failures, b.cut)
    assert (stored.pairs, stored.users, list(stored.of)) == (IDS, ["u"] * 5, [CELL])
    assert [detail.failure for detail in b.details] == [line.failure for line in LINES]


def test_batches_that_alternate_between_conditions_are_read_back(tmp_path):
    batches = [("1", "2"), ("3", "4"), ("5",)]
    lines = [as_line(outcome(pair, condition=c)) for batch in batches for c in ("none", "profile") for pair in batch]
    outcomes = read_outcomes(write(tmp_path, lines))
    assert outcomes.pairs == IDS
    assert {cell: len(column) for cell, column in outcomes.of.items()} == {("m", "none"): 5, ("m", "profile"): 5}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pair": "other"}, "the outcome of pair 'other' is where the dataset has '1'"),
        ({"model": "x"}, "the run has no model 'x' under condition 'none'"),
        ({"condition": "oracle"}, "no model 'm' under condition 'oracle'"),
        ({"credit": 9.0}, "credit 9.0 is not between 0 and 1"),
        ({"credit": "1"}, r"Expected `float \| null`, got `str` - at `\$.credit`"),
        ({"margin": None}, "contradict each other"),
        ({"failure": "busy"}, "contradict each other"),
        ({"margin": True}, r"got `bool` - at `\$.margin`"),
        ({"scores": [1, "2"]}, r"got `str` - at `\$.scores"),
        ({"scores": [1e308, 1e308]}, "numbers must be finite"),
        ({"verdicts": ["third"]}, "verdicts .* are not as prb evaluate writes them"),
        ({"user": 3}, r"Expected `str`, got `int` - at `\$.user`"),
        ({"post_ids": "abc"}, r"Expected `array`, got `str` - at `\$.post_ids`"),
        ({"seen": "both"}, r"Invalid enum value 'both' - at `\$.seen`"),
        ({"failure_kind": "row"}, "failure_kind 'row' without a failure"),
        ({"cost": -1}, "cost, leaks and choices not negative"),
    ],
)
def test_a_line_that_this_run_would_not_have_written_is_refused(changes, says):
    outcomes = Outcomes(IDS, [CELL])
    with pytest.raises(BadInput, match=f"^here: .*{says}"):
        outcomes.read(as_line(LINES[0], **changes), "here")


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_line_without_one_of_its_fields_is_refused_with_its_place(name, tmp_path):
    lines = [as_line(line) for line in LINES]
    del lines[2][name]
    with pytest.raises(BadInput, match=rf"outcomes.jsonl, line 3: an outcome without {name}"):
        read_outcomes(write(tmp_path, lines))


def test_a_folder_without_outcomes_is_no_run(tmp_path):
    with pytest.raises(BadInput, match=r"is not an evaluation run: it has no outcomes\.jsonl"):
        read_outcomes(tmp_path)
    with pytest.raises(BadInput, match="holds no outcomes yet"):
        read_outcomes(write(tmp_path, []))
