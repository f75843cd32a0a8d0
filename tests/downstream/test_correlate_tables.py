"""Tables of scores: every format, which columns are meant, and what is wrong with bad ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.downstream.correlate import ScoreColumn, Scores, checked, read_table, unfit
from prb.errors import BadInput, UnknownName

Write = Callable[..., Path]
ROWS = [
    {"model": "a", "bench": 0.5, "down": 1.0},
    {"model": "b", "bench": 0.6, "down": 3.0},
    {"model": "c", "bench": 0.7, "down": 2.0},
]
CSV = "model,bench,down\na,0.5,1\nb,0.6,3\nc,0.7,2\n"


@pytest.fixture
def table(tmp_path: Path) -> Write:
    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text, "utf-8")
        return tmp_path / name

    return write


def read(path: Path, bench: tuple[str, ...] = (), downstream: tuple[str, ...] = ()) -> Scores:
    return read_table(path, bench, downstream)


def test_every_format_says_the_same(table: Write, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    paths = [
        table(CSV),
        table("\ufeff" + CSV.replace(",", "\t"), "t.tsv"),
        table(orjson.dumps(ROWS).decode(), "t.json"),
        table("\n".join(orjson.dumps(row).decode() for row in ROWS) + "\n", "t.jsonl"),
        tmp_path / "t.parquet",
    ]
    for path in paths:
        found = read(path)
        assert found.models == ("a", "b", "c"), path
        assert [(c.name, c.values.tolist()) for c in found.columns] == [
            ("bench", [0.5, 0.6, 0.7]),
            ("down", [1.0, 3.0, 2.0]),
        ]


def test_headers_may_say_which_side_a_column_is_on(table: Write) -> None:
    found = read(table("model,downstream: ppo,bench: x,y\na,1,2,3\nb,2,3,1\nc,3,1,2\n"))
    assert ([c.name for c in found.bench], [c.name for c in found.downstream]) == (["x", "y"], ["ppo"])
    by_name = read(table("model,downstream: ppo,bench: x,y\na,1,2,3\nb,2,3,1\nc,3,1,2\n"), ("x",), ("y",))
    assert ([c.name for c in by_name.bench], [c.name for c in by_name.downstream]) == (["x"], ["y"])


def test_headers_broken_over_lines_are_one_name(table: Write) -> None:
    found = read(
        table('Kind,Model,"Arena  Elo\n[Feb]",Bench\nx,a,1,2\ny,b,2,1\ny,c,3,3\n'), downstream=("Arena Elo [Feb]",)
    )
    assert (found.models, [c.name for c in found.bench]) == (("a", "b", "c"), ["Bench"])


def test_a_column_of_standard_errors_belongs_to_its_column(table: Write) -> None:
    found = read(table("rm,x,x_se,y\na,1,0.1,1\nb,2,0.2,2\nc,3,0.3,3\n"), downstream=("y",))
    (column,) = found.bench
    assert column.errors is not None
    assert column.errors.tolist() == [0.1, 0.2, 0.3]
    assert found.downstream[0].errors is None


def test_short_rows_lack_scores_and_blank_rows_are_none(table: Write) -> None:
    found = read(table("model,x,y\na,1,\nb,2,3\n,,\n\nc,n/a,1\nd,4\n"))
    assert found.models == ("a", "b", "c", "d")
    assert np.isnan(found.bench[0].values).tolist() == [False, False, True, False]
    assert np.isnan(found.downstream[0].values).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,x,y\n", "holds no rows"),
        ("", "holds no rows"),
        (
            "model,x,y,z\na,1,2,3\n",
            "name the columns of downstream scores with --downstream; columns of numbers: 'x'",
        ),
        ("model,x\na,1\n", "columns of numbers: 'x'"),
        ("x,y\n1,2\n2,3\n", "no column of model names"),
        ("model,x,x\na,1,2\n", "has two columns named 'x'"),
        ("model,x,y\na,1,2,3\n", "row 1 has 4 cells, the header has 3"),
        ("model,x,y\n,1,2\n", "row 1 has no name in column 'model'"),
        ("model,x,x_se,downstream:y\na,1,-0.1,2\n", "'x_se' lacks a standard error of a score, or has a negative one"),
        ("model,x,x_se,downstream:y\na,1,,2\n", "'x_se' lacks a standard error of a score, or has a negative one"),
    ],
)
def test_bad_tables_are_told_what_is_wrong(table: Write, text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read(table(text))


def test_columns_that_are_not_there_or_hold_no_numbers_are_told(table: Write) -> None:
    path = table("model,x,y\na,1,high\nb,2,inf\nc,3,1\n")
    with pytest.raises(UnknownName, match="no column named 'xx'; did you mean 'x'"):
        read(path, ("xx",), ("y",))
    with pytest.raises(BadInput, match="column 'y' of 'a' is 'high', not a number"):
        read(path, ("x",), ("y",))
    with pytest.raises(BadInput, match="'x' cannot be on both sides"):
        read(path, ("x",), ("x",))
    with pytest.raises(BadInput, match="no column is left for a benchmark"):
        read(table("model,x,y\na,1,2\n"), (), ("x", "y"))


@pytest.mark.parametrize("cell", ["inf", "12*", "fifty"])
def test_a_column_of_numbers_with_a_word_in_it_is_told_and_not_passed_over(table: Write, cell: str) -> None:
    text = f"model,licence,x,z,y\na,mit,1,1,1\nb,2,2,{cell},2\nc,apache,3,3,5\n"
    with pytest.raises(BadInput, match=f"column 'z' of 'b' is '{re.escape(cell)}', not a number"):
        read(table(text), downstream=("y",))
    found = read(table(text), ("x",), ("y",))  # who names columns needs no others
    assert [column.name for column in found.columns] == ["x", "y"]


def test_files_that_are_no_tables_are_told(table: Write, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"model,x,y\n\xe9,1,2\n")
    (tmp_path / "bad.parquet").write_bytes(b"no")
    for path, says in (
        (tmp_path, "is a folder: give runs with --bench and --downstream"),
        (tmp_path / "nowhere.csv", "does not exist"),
        (table(CSV, "t.xlsx"), "unknown format"),
        (tmp_path / "latin.csv", "cannot be read as CSV in UTF-8"),
        (tmp_path / "bad.parquet", "cannot be read as Parquet"),
        (table("[1]", "b.json"), "row 1: must be an object, one per model"),
        (table("nonsense", "c.json"), "row 1: broken JSON"),
    ):
        with pytest.raises(BadInput, match=says):
            read(path)


def scores(x: list[float], y: list[float], names: str = "abcdefgh") -> Scores:
    return Scores(tuple(names[: len(x)]), (ScoreColumn("x", np.array(x)),), (ScoreColumn("y", np.array(y)),))


def test_a_model_that_lacks_a_score_is_left_out() -> None:
    kept, left_out = checked(scores([1, np.nan, 3, 4, 5], [1, 2, np.nan, 4, 3]))
    assert (kept.models, left_out) == (("a", "d", "e"), ["b", "c"])
    assert kept.bench[0].values.tolist() == [1, 4, 5]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (scores([1], [1]), "1 model with all scores: correlating needs 3"),
        (scores([1, 2], [1, 2]), "2 models with all scores"),
        (scores([2, 2, 2], [1, 2, 3]), "column 'x' is the same for all 3 models"),
        (scores([1, 2, 3], [1, 2, 3], names="aba"), "'a': more than one row"),
        (scores([1, np.nan, 3], [1, 2, 3]), r"2 models with all scores: .* \(1 model left out for a missing score\)"),
    ],
)
def test_what_cannot_be_correlated_is_refused(found: Scores, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        checked(found)


def test_some_models_of_a_column_keep_their_errors_and_draws() -> None:
    column = ScoreColumn("x", np.arange(3.0), np.array([0.1, 0.2, 0.3]), np.arange(6.0).reshape(2, 3))
    part = column.of([2, 0])
    assert part.errors is not None
    assert part.draws is not None
    assert (part.values.tolist(), part.errors.tolist()) == ([2, 0], [0.3, 0.1])
    assert part.draws.tolist() == [[2, 0], [5, 3]]
    assert unfit(scores([1, 2, 3], [3, 2, 1])) is None
