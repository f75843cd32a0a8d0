"""Conversations in the columns of Community Alignment, written here by hand: no real row is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prb.data.source import open_source
from prb.data.votes import retest
from tests.data.named.reading import Row, read

Write = Callable[..., Path]


def turn(name: str, prompt: str, preferred: str, *replies: str) -> Row:
    texts = replies or tuple(f"{prompt} {x}" for x in "ABCD")
    columns = {f"{name}_turn_response_{x}": text for x, text in zip("abcd", texts, strict=False)}
    return {f"{name}_turn_prompt": prompt, f"{name}_turn_preferred_response": preferred, **columns}


def talk(own: str, user: str, *turns: Row, **more: Any) -> Row:
    row: Row = {"conversation_id": own, "annotator_id": user, "assigned_lang": "en", "annotator_age": "18-30", **more}
    for part in turns:
        row |= part
    return row


ANN = talk("c1", "ann", turn("first", "Plan?", "response_b"), turn("second", "More?", "response_d"))
BOB = talk("c2", "bob", turn("first", "Plan?", "response_a"), annotator_gender="f")
AGAIN = talk("c3", "ann", turn("first", "Tea?", "response_a"))


def spec(path: Path) -> str:
    return f"community-alignment?path={path}"


def test_each_turn_is_a_row_of_one_against_three_in_its_context(write_jsonl: Write) -> None:
    first, second, *_ = read(spec(write_jsonl([ANN, BOB, AGAIN])))
    assert (first["id"], first["chosen"]) == ("c1-t0", "Plan? B")
    assert first["rejected"] == ["Plan? A", "Plan? C", "Plan? D"]
    assert (second["id"], second["question"], second["chosen"]) == ("c1-t1", "More?", "More? D")
    assert [t["text"] for t in second["context"]] == ["Plan?", "Plan? B"]
    assert (first["category"], first["groups"]) == ("en", {"age": "18-30"})


def test_past_choices_are_of_other_conversations(write_jsonl: Write) -> None:
    rows = {row["id"]: row for row in read(spec(write_jsonl([ANN, BOB, AGAIN])))}
    assert [c["question"] for c in rows["c1-t1"]["choices"]] == ["Tea?"]
    assert [c["question"] for c in rows["c3-t0"]["choices"]] == ["Plan?", "More?"]
    assert "choices" not in rows["c2-t0"]


def test_annotators_who_preferred_different_replies_are_twins(write_jsonl: Write) -> None:
    ann, bob = read(f"{spec(write_jsonl([ANN, BOB, AGAIN]))}&mirror=true")
    assert (ann["chosen"], ann["rejected"]) == (bob["rejected"], bob["chosen"]) == ("Plan? B", "Plan? A")
    assert [post["text"] for post in bob["profile"]] == ["age: 18-30", "gender: f"]


def test_end_marks_missing_replies_and_double_replies_are_cleaned_up(write_jsonl: Write) -> None:
    row = talk("c", "u", turn("first", "Hi", "response_a", "One.<|end_of_text|>", "Two. ", "", "One."))
    [made] = read(spec(write_jsonl([row])))
    assert (made["chosen"], made["rejected"]) == ("One.", "Two.")


def test_repeated_votes_give_the_noise_ceiling(write_jsonl: Write) -> None:
    again = {**ANN, "conversation_id": "c4", "first_turn_preferred_response": "response_a"}
    assert retest(open_source(spec(write_jsonl([ANN, again])))) == {"agreement": 0.0, "n": 1}


def test_parquet_leaves_missing_turns_out_and_the_filtered_part_is_not_read_twice(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([ANN, BOB]), tmp_path / "full.parquet")
    pq.write_table(pa.Table.from_pylist([{**BOB, "split": "filtered"}]), tmp_path / "part.parquet")
    assert [row["id"] for row in read(spec(tmp_path))] == ["c1-t0", "c1-t1", "c2-t0"]
