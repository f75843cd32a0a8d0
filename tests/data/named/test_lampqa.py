"""LaMP-QA: real fragments, put into the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.data.named.reading import Row, read

ROW: Row = {
    "id": "0_2_7",
    "question": "Why?",
    "narrative": "Because I wonder.",
    "profile": [{"id": "p", "text": "A post.", "category": "anime"}],
    "category": "anime",
    "rubric_aspects": [{"aspect": "a", "evidence": "I wonder", "reason": "r"}],
}


def publish(folder: Path, *rows: Any) -> Path:
    path = folder / "published" / "Art_and_Entertainment" / "test.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(orjson.dumps(list(rows)))
    return folder / "published"


def test_published_rows_are_questions_with_the_benchmarks_category(tmp_path) -> None:
    [row] = read(f"lampqa?path={publish(tmp_path, ROW)}")
    assert row == {**ROW, "category": "Art_and_Entertainment", "split": "test"}


def test_fields_that_are_null_are_left_out(tmp_path) -> None:
    nulls = {
        "profile": [{"id": None, "text": "A post.", "category": None}],
        "rubric_aspects": [{"aspect": "a", "evidence": None, "reason": "r"}],
        "narrative": None,
    }
    [row] = read(f"lampqa?path={publish(tmp_path, {**ROW, **nulls})}")
    assert (row["profile"], row["narrative"]) == ([{"text": "A post."}], "")
    assert row["rubric_aspects"] == [{"aspect": "a", "reason": "r"}]
