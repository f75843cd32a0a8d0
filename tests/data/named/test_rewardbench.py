"""Files in RewardBench's two formats, written here by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load, load_pairs
from prb.errors import BadData, BadInput, BadSpec
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from tests.runs import result

Write = Callable[..., Path]
FIRST = {"id": 0, "prompt": "Name a fruit.", "chosen": "An apple.", "rejected": "A brick, of course.", "subset": "chat"}
SECOND = {
    "id": "math-7",
    "prompt": "What is 2 + 2?",
    "chosen": ["4"],
    "rejected": ["5", "22, as everybody knows", "3"],
    "num_correct": 1,
    "subset": "math",
}


def spec(path: Path) -> str:
    return f"rewardbench?path={path}"


def test_one_rejected_answer_is_one_pair_without_a_user(write_jsonl: Write) -> None:
    (pair,) = load_pairs(spec(write_jsonl([FIRST])))
    assert (pair.id, pair.user, pair.category) == ("chat-0", "chat-0", "chat")
    assert (pair.question, pair.chosen, pair.rejected) == ("Name a fruit.", "An apple.", "A brick, of course.")
    assert (tuple(pair.profile), pair.rubric) == ((), ())


def test_several_rejected_answers_are_several_pairs_of_one_cluster(write_jsonl: Write) -> None:
    dataset = load(spec(write_jsonl([FIRST, SECOND])))
    assert dataset.index.ids == ["chat-0", "math-7-1-1", "math-7-1-2", "math-7-1-3"]
    assert dataset.index.clusters == ["chat-0", "math-7", "math-7", "math-7"]


def test_several_chosen_answers_each_meet_each_rejected_one(write_jsonl: Write) -> None:
    row = {**SECOND, "chosen": ["4", "four"], "rejected": ["5", "6"]}
    pairs = load_pairs(spec(write_jsonl([row])))
    assert [(p.chosen, p.rejected) for p in pairs] == [("4", "5"), ("4", "6"), ("four", "5"), ("four", "6")]


def test_conversations_become_one_text_and_their_last_message_the_answer(write_jsonl: Write) -> None:
    prompt = [{"role": "user", "content": "Hi {x}"}, {"role": "assistant", "content": "Yes?"}, {"content": "Help"}]
    answers = [[*prompt, {"role": "assistant", "content": text}] for text in ("Sure.", "No.")]
    row = {**FIRST, "prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
    (pair,) = load_pairs(spec(write_jsonl([row])))
    assert pair.question == "user: Hi {x}\n\nassistant: Yes?\n\nuser: Help"
    assert pair.answers == ("Sure.", "No.")
    (single,) = load_pairs(spec(write_jsonl([{**FIRST, "prompt": prompt[:1]}], name="single.jsonl")))
    assert single.question == "Hi {x}"


def test_parquet_and_rows_without_id_or_subset_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    rows = [{key: FIRST[key] for key in ("prompt", "chosen", "rejected")}] * 2
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load(spec(path)).index.ids == ["all-1", "all-2"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chosen": None}, "`chosen` must be text"),
        ({"rejected": []}, "`rejected` must be text"),
        ({"rejected": ["a", 3]}, "`rejected` must be text"),
        ({"prompt": 7}, "`prompt` must be text"),
        ({"rejected": "An apple."}, "`chosen` and `rejected` are the same text"),
        ({"prompt": " "}, "`question` is empty"),
    ],
)
def test_bad_rows_are_told_with_their_line(write_jsonl: Write, change: dict[str, Any], says: str) -> None:
    path = write_jsonl([FIRST, {**FIRST, "id": 1, **change}])
    with pytest.raises(BadData, match=f"set.jsonl:2: {says}"):
        load(spec(path))
    assert len(load(spec(path), skip_bad=True)) == 1


def test_missing_fields_rows_that_are_no_objects_and_missing_files_are_told(write_jsonl: Write) -> None:
    path = write_jsonl([{"prompt": "p", "chosen": "c"}, [1]])  # type: ignore[list-item]
    with pytest.raises(BadData, match=r"`rejected` is missing(.|\n)*a row must be an object"):
        load(spec(path))
    with pytest.raises(BadInput, match="does not exist"):
        load("rewardbench?path=nowhere/at/all.jsonl")
    with pytest.raises(BadSpec, match="needs path="):
        load("rewardbench")


def test_a_run_reports_each_subset(write_jsonl: Write, tmp_path: Path) -> None:
    data = spec(write_jsonl([FIRST, SECOND]))
    config = EvaluateConfig(model=("length",), condition=("none",), dataset=data, out=tmp_path / "run")
    row = result(evaluate(config).summary, "none", "length")
    # "4" loses to one longer answer and ties with two as long
    assert row["by_category"]["chat"]["value"] == 0.0
    assert row["by_category"]["math"]["value"] == pytest.approx(1 / 3)
    assert row["accuracy"]["n"] == 4
