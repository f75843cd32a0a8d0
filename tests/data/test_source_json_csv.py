"""JSON lists and CSV tables as sources."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import file_source, open_source
from prb.errors import BadInput
from tests.data.broken import sound


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# JSON


@pytest.mark.parametrize(
    "content",
    [
        '[{"id": 1}, {"id": 2}]',
        ' [\n {"id": 1}\n ,\n {"id": 2} ]\n',
        '{"id": 1}\n{"id": 2}\n',
        '\ufeff[{"id":1},{"id":2}]',
        '{"data": [{"id": 1}, {"id": 2}]}',
        '{ "rows":\n[{"id": 1},{"id": 2}], "version": 3}',
    ],
)
def test_a_list_of_objects_and_objects_in_a_row_are_rows(tmp_path: Path, content: str) -> None:
    rows = list(file_source(write(tmp_path / "x.json", content)).rows())
    assert [(row.line, row.data) for row in rows] == [(1, {"id": 1}), (2, {"id": 2})]


def test_one_object_is_one_row_and_an_empty_list_none(tmp_path: Path) -> None:
    assert [row.data for row in file_source(write(tmp_path / "x.json", '{\n"id": "a, [b]"}')).rows()] == [
        {"id": "a, [b]"}
    ]
    assert list(file_source(write(tmp_path / "y.json", "[]")).rows()) == []
    assert list(file_source(write(tmp_path / "z.json", "")).rows()) == []


def test_rows_of_a_json_file_load_like_any_other(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", orjson.dumps([sound(1), sound(2)], option=orjson.OPT_INDENT_2))
    assert load(str(path)).index.ids == ["r1", "r2"]


def test_objects_longer_than_what_is_read_at_once_stay_whole_and_memory_small(tmp_path: Path) -> None:
    rows = [{"id": n, "text": "x" * 300_000} for n in range(40)]
    path = write(tmp_path / "x.json", orjson.dumps(rows))
    tracemalloc.start()
    assert [row.data["id"] for row in file_source(path).rows()] == list(range(40))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ('[{"id": 1}, {"id": }]', 2, "broken JSON: Expecting value"),
        ('[{"id": 1}', 2, "broken JSON: the list is not closed"),
        ('[{"id": 1}, {"id"', 2, "broken JSON"),
        ('[{"id": NaN}]', 1, "broken JSON"),
        ('[{"id": "\\u0000"}]', 1, "holds a NUL byte"),
        ("[" * 100_000, 1, "broken JSON"),
    ],
)
def test_a_damaged_file_names_the_object(tmp_path: Path, content: str, line: int, says: str) -> None:
    last = list(file_source(write(tmp_path / "x.json", content)).rows())[-1]
    assert last.line == line
    assert str(last.problem).startswith(says)


@pytest.mark.parametrize("name", ["x.json", "x.csv"])
def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b'[{"id": "\xff"}]\n')
    with pytest.raises(BadInput, match=rf"{name} must be UTF-8: invalid start byte"):
        list(file_source(path).rows())


# CSV


def test_a_table_loads_with_json_in_its_structured_columns(tmp_path: Path) -> None:
    rows = [
        {**row, "profile": orjson.dumps(row["profile"]).decode(), "rubric_aspects": "", "narrative": "", "tier": ""}
        for row in (sound(1), sound(2, chosen='Two\nlines, and a "quote".'))
    ]
    pairs = load_pairs(str(write_csv(tmp_path / "x.csv", rows)))
    assert [pair.id for pair in pairs] == ["r1", "r2"]
    assert (pairs[1].chosen, pairs[1].rubric, pairs[1].narrative, pairs[1].tier) == (
        'Two\nlines, and a "quote".',
        (),
        "",
        None,
    )
    assert pairs[0].profile[0].text == sound(1)["profile"][0]["text"]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("x.csv", "Question;Chosen;Rejected;User ID\nTea, or not?;Yes.;No.;ann\n"),
        ("x.csv", 'Question, Chosen, Rejected, User ID\n"Tea, or not?", Yes., No., ann\n'),
        ("x.csv", "Question\tChosen\tRejected\tUser ID\nTea, or not?\tYes.\tNo.\tann\n"),
        ("x.tsv", "question\tchosen\trejected\tuser\r\nTea, or not?\tYes.\tNo.\tann\r\n"),
        ("x.csv", 'Question|CHOSEN|rejected|userId\n"Tea, or not?"|"Yes."|No.|ann\n'),
    ],
)
def test_tables_of_any_dialect_and_capital_headers_load(tmp_path: Path, name: str, table: str) -> None:
    (pair,) = load_pairs(str(write(tmp_path / name, table)))
    assert (pair.question, pair.answers, pair.user) == ("Tea, or not?", ("Yes.", "No."), "ann")


def test_a_row_is_placed_where_it_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", '\ufeffid,text\r\n1,"two\nlines"\r\n\r\n2,x\r\n')
    assert [(row.line, row.data) for row in open_source(str(path)).rows()] == [
        (2, {"id": "1", "text": "two\nlines"}),
        (5, {"id": "2", "text": "x"}),
    ]


def test_long_cells_are_read(tmp_path: Path) -> None:
    [row] = file_source(write_csv(tmp_path / "x.csv", [{"id": 1, "text": "x" * 500_000}])).rows()
    assert len(row.data["text"]) == 500_000


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("id,text\n1,a\n2\n", 3, "the row has 1 cells, the header 2"),
        ('id,text\n1,a\n2,"b\n', 3, "broken CSV: unexpected end of data"),
        ('id,text\n1,a\n2,"b"c\n', 3, "broken CSV"),
        ("id,text\n1,a\n2,b\0\n", 3, ""),
    ],
)
def test_a_damaged_table_names_the_line(tmp_path: Path, content: str, line: int, says: str) -> None:
    last = list(file_source(write(tmp_path / "x.csv", content)).rows())[-1]
    assert last.line == line
    assert last.problem is not None
    assert last.problem.startswith(says)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has two columns named 'id'"):
        list(file_source(write(tmp_path / "x.csv", "id,id\n1,2\n")).rows())


def test_a_folder_of_nothing_else_is_read(tmp_path: Path) -> None:
    write(tmp_path / "train.json", orjson.dumps([sound(1)]))
    write(tmp_path / "test.json", orjson.dumps([sound(2)]))
    assert load(str(tmp_path)).index.ids == ["r2"]
