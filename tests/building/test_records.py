"""Reading records, as JSONL and as LaMP-QA publishes them."""

from __future__ import annotations

import json

import pytest

from prb.building.records import read_records
from prb.errors import BadData, BadInput

LAMP = {
    "id": "0_0_1",
    "question": "Why?",
    "narrative": "Because I wonder.",
    "profile": [{"id": "p", "text": "x", "category": "anime"}],
    "category": "anime",
    "rubric_aspects": [{"aspect": "a", "evidence": "I wonder", "reason": "r"}],
}


def test_published_lamp_qa_files_are_read_with_the_benchmarks_category(tmp_path) -> None:
    folder = tmp_path / "Art_and_Entertainment"
    folder.mkdir()
    (folder / "test.json").write_text(json.dumps([LAMP]))
    (record,), rejects = read_records(f"lampqa:{tmp_path}")
    assert (record.category, record.rubric[0].aspect, record.posts[0].category) == (
        "Art_and_Entertainment",
        "a",
        "anime",
    )
    assert rejects == []


def test_lamp_qa_as_jsonl_takes_the_category_from_its_name(tmp_path) -> None:
    (tmp_path / "Society_and_Culture-test.jsonl").write_text(json.dumps(LAMP))
    assert read_records(f"lampqa:{tmp_path}")[0][0].category == "Society_and_Culture"


def test_a_real_lamp_qa_profile_is_read_as_it_is(shared_data, tmp_path) -> None:
    real = json.loads((shared_data / "lampqa" / "lampqa_real_fragments.json").read_text())
    row = {
        "id": "0_0_0",
        "question": "What happened?",
        "profile": real["train_row_0_profile_verbatim"],
        "narrative": "n",
    }
    (tmp_path / "Art_and_Entertainment.json").write_text(json.dumps([row]))
    (record,), _ = read_records(f"lampqa:{tmp_path}")
    assert len(record.posts) == 42
    assert record.posts[0].text == row["profile"][0]["text"]


@pytest.mark.parametrize("content", ["{", '{"a": 1}'])
def test_a_lamp_qa_file_that_is_no_list_is_bad_input(tmp_path, content) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadInput):
        read_records(f"lampqa:{tmp_path}")


BAD_ROWS = {
    "no question": ({"id": "1"}, "`question` is missing"),
    "posts that are a text": ({"id": "1", "question": "q", "posts": "p"}, "`posts` must be"),
    "a post that is a number": ({"id": "1", "question": "q", "posts": [{"text": 7}]}, "`posts` must be"),
    "a narrative that is a number": ({"id": "1", "question": "q", "narrative": 7}, "`narrative` must be a string"),
    "a rubric without aspects": ({"id": "1", "question": "q", "rubric_aspects": [{}]}, "`rubric_aspects` must be"),
    "no object": ([], "a record must be a JSON object"),
}


@pytest.mark.parametrize(("row", "what"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_record_is_named_with_its_line(write_jsonl, row, what) -> None:
    with pytest.raises(BadData, match=f"set.jsonl:1: {what}"):
        read_records(str(write_jsonl([row])))


def test_posts_may_be_plain_texts_and_other_fields_survive(write_jsonl) -> None:
    row = {"id": 7, "question": "q", "narrative": "n", "posts": ["one", " ", "two"], "split": "test", "mood": "fine"}
    row |= {"mirror": "x", "chosen": "y", "rubric_aspects": None}
    (record,), _ = read_records(str(write_jsonl([row])))
    assert [post.text for post in record.posts] == ["one", "two"]
    assert (record.id, record.user, record.other) == ("7", "7", {"split": "test", "mood": "fine"})
