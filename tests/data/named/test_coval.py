"""Files in CoVal's format, written here by hand: no real row is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.data.source import open_source
from prb.errors import BadInput
from tests.data.named.reading import Row, read

Write = Callable[..., Path]


def assessment(user: str, personal: str | None, world: str = "A>B>C>D") -> Row:
    blocks: Row = {"world": [{"ranking": world}]} | ({"personal": [{"ranking": personal}]} if personal else {})
    return {"annotator_id": user, "ranking_blocks": blocks, "importance": "High"}


def comparison(own: str, *assessments: Row, **changes: Any) -> Row:
    row = {
        "prompt_id": own,
        "prompt": {"messages": [{"role": "user", "content": f"Question {own}?"}]},
        "responses": [
            {"response_index": x, "messages": [{"role": "assistant", "content": f"{own} says {x}."}]} for x in "ABCD"
        ],
        "metadata": {"assessments": list(assessments)},
    }
    return {**row, **changes}


ROWS = [
    comparison("p1", assessment("ann", "B>A=C>D"), assessment("bob", "C>D>B>A"), assessment("cat", None)),
    comparison("p2", assessment("ann", "A=D>B>C")),
]
ANNOTATORS = [{"annotator_id": "ann", "demographics": {"age": "25-34", "gender": None}, "assessments": []}]


@pytest.fixture
def folder(write_jsonl: Write) -> Path:
    write_jsonl(ANNOTATORS, name="annotators.jsonl")
    return write_jsonl(ROWS, name="comparisons.jsonl").parent


def test_the_best_of_a_personal_ranking_meets_the_others(folder: Path) -> None:
    rows = read(f"coval?path={folder}")
    assert [(r["id"], r["user"], r["chosen"]) for r in rows] == [
        ("p1-0", "ann", "p1 says B."),
        ("p1-1", "bob", "p1 says C."),
        ("p2-0", "ann", ["p2 says A.", "p2 says D."]),
    ]
    assert rows[0]["rejected"] == ["p1 says A.", "p1 says C.", "p1 says D."]
    assert rows[0]["choices"] == [{"question": "Question p2?", "chosen": "p2 says A.", "rejected": "p2 says C."}]
    assert (rows[0]["groups"], rows[0]["profile"][0]["text"]) == ({"age": "25-34"}, "age: 25-34")


def test_the_ranking_for_the_world_is_another_dataset(folder: Path) -> None:
    assert [r["user"] for r in read(f"coval?path={folder}&block=world")] == ["ann", "bob", "cat", "ann"]
    assert open_source(f"coval?path={folder}&block=world").name.endswith("block=world")


def test_annotators_who_put_different_replies_first_are_twins(folder: Path) -> None:
    ann, bob = read(f"coval?path={folder}&mirror=true")
    assert (ann["chosen"], ann["rejected"]) == (bob["rejected"], bob["chosen"]) == ("p1 says B.", "p1 says C.")
    assert ann["mirror"] == bob["id"] == "p1-1~p1-0"


def test_the_file_may_be_named_itself_and_annotators_be_absent(write_jsonl: Write) -> None:
    rows = read(f"coval?path={write_jsonl(ROWS)}")
    assert (len(rows), rows[0]["profile"]) == (3, [])


def test_a_folder_without_comparisons_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"comparisons.jsonl does not exist"):
        open_source(f"coval?path={tmp_path}")
