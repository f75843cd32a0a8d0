"""LaMP-QA: real fragments, put into the published layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from prb.data.load import load_pairs
from tests.data.named.reading import Row, problems, read

Write = Callable[..., Path]
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


def graded(own: str, *scores: float) -> list[Row]:
    return [{"id": own, "answer": f"Answer {n}", "score": score} for n, score in enumerate(scores)]


def test_published_rows_are_questions_with_the_benchmarks_category(tmp_path: Path) -> None:
    [row] = read(f"lampqa?path={publish(tmp_path, ROW)}")
    assert row == {**ROW, "category": "Art_and_Entertainment", "split": "test"}


def test_fields_that_are_null_are_left_out(tmp_path: Path) -> None:
    nulls = {
        "profile": [{"id": None, "text": "A post.", "category": None}],
        "rubric_aspects": [{"aspect": "a", "evidence": None, "reason": "r"}],
        "narrative": None,
    }
    [row] = read(f"lampqa?path={publish(tmp_path, {**ROW, **nulls})}")
    assert (row["profile"], row["narrative"]) == ([{"text": "A post."}], "")
    assert row["rubric_aspects"] == [{"aspect": "a", "reason": "r"}]


def test_graded_answers_make_pairs_of_them(tmp_path: Path, write_jsonl: Write) -> None:
    folder = publish(tmp_path, ROW, {**ROW, "id": "0_1_8"}, {**ROW, "id": "0_2_9"})
    answers = write_jsonl([*graded("0_2_7", 0.5, 1.5, 0.5), *graded("0_1_8", 1, 0), *graded("0_2_9", 1, 1)])
    first, second = read(f"lampqa?path={folder}&answers={answers}")
    assert (first["chosen"], first["rejected"], first["split"]) == ("Answer 1", ["Answer 0", "Answer 2"], "test")
    assert (second["chosen"], second["rejected"], second["split"]) == ("Answer 0", "Answer 1", "validation")


def test_a_real_question_with_its_graded_answers_loads(tmp_path: Path, write_jsonl: Write, shared_data: Path) -> None:
    real = orjson.loads((shared_data / "lampqa" / "lampqa_real_fragments.json").read_bytes())["complete_pair_row"]
    row = {**real, "profile": real["profile_retrieved_top10_other_domains"]}
    scores = [{"id": row["id"], "answer": r["text"], "score": r["aspect_match_score"]} for r in real["responses"]]
    spec = f"lampqa?path={publish(tmp_path, row)}&answers={write_jsonl(scores)}"
    [pair] = load_pairs(spec, split="validation")
    assert (pair.question, len(pair.profile)) == ("How to efficiently farm iron nuggets?", 10)
    assert pair.chosen.startswith("To efficiently farm iron nuggets, start by identifying")
    assert pair.rubric[0].aspect == "Quantity of iron nuggets required"


def test_a_damaged_grade_is_named_too(tmp_path: Path, write_jsonl: Write) -> None:
    answers = write_jsonl([{"id": "0_2_7", "answer": "x", "score": "good"}])
    said = "set.jsonl:1: `score` must be a number, not text"
    assert problems(f"lampqa?path={publish(tmp_path, ROW)}&answers={answers}") == [said]
