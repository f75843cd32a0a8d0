"""Tables in BESPOKE's format, written here by hand: no real row is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.source import open_source
from prb.errors import BadInput
from tests.data.named.reading import Row, read


def response(contents: str, *scores: int) -> Row:
    names = ("need_alignment", "content_depth", "tone", "explanation_style")
    return {
        "contents": contents,
        **{name: {"score": s, "feedback": "…"} for name, s in zip(names, scores, strict=True)},
    }


def query(user: str, number: str, value: Any) -> Row:
    raw = value if isinstance(value, str) else orjson.dumps(value).decode()
    return {"user": user, "query-id": number, "id": f"{user}{number}", "meta_test_set_value": raw}


VALUE = {
    "query": "Why is the sky blue?",
    "gold_information_need": "Physics, briefly.",
    "response_list": [response("Long.", 3, 3, 3, 3), response("Short.", 5, 4, 4, 4), response("Odd.", 1, 1, 5, 1)],
}


def write(folder: Path, *rows: Row) -> str:
    tables = {
        "meta_test/meta_test_set": list(rows),
        "chat_history/chat_history": [{"user": "u1", "id": "x", "history": "user: hello"}],
        "search_history/search_history": [{"user": "u1", "id": "y", "history": "rayleigh"}],
    }
    for name, content in tables.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(content), path)
    return f"bespoke?path={folder}"


def test_the_answer_scored_highest_meets_those_below(tmp_path: Path) -> None:
    other = {**VALUE, "query": "And the sea?", "gold_information_need": None}
    first, second = read(write(tmp_path, query("u1", "1", VALUE), query("u1", "2", other)))
    assert (first["id"], first["question"]) == ("u1-1-1", "Why is the sky blue?")
    assert (first["chosen"], first["rejected"]) == ("Short.", ["Long.", "Odd."])
    assert [(post["category"], post["text"]) for post in first["profile"]] == [
        ("chat", "user: hello"),
        ("search", "rayleigh"),
    ]
    assert (first["rubric_aspects"], first["narrative"]) == ([{"aspect": "Physics, briefly."}], "Physics, briefly.")
    assert (second["rubric_aspects"], second["narrative"]) == ([], "")
    assert first["choices"] == [{"question": "And the sea?", "chosen": "Short.", "rejected": "Odd."}]


def test_answers_scored_alike_give_no_row(tmp_path: Path) -> None:
    alike = {**VALUE, "response_list": [response("a", 1, 2, 3, 4), response("b", 4, 3, 2, 1)]}
    assert read(write(tmp_path, query("u2", "1", alike))) == []


def test_a_folder_without_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no meta_test_set table"):
        open_source(f"bespoke?path={tmp_path}")
