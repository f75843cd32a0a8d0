"""Files in RewardBench's two formats, written here by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import open_source
from prb.errors import BadData, BadInput, BadSpec
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from tests.data.named.reading import read
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


def test_several_answers_stay_one_row(write_jsonl: Write) -> None:
    several = {**SECOND, "chosen": ["4", "four"], "id": "tied:7", "subset": "Ties"}
    first, second, third = read(spec(write_jsonl([FIRST, SECOND, several])))
    assert (first["chosen"], first["rejected"]) == ("An apple.", "A brick, of course.")
    assert (second["id"], second["user"]) == ("math-7", "math-7")
    assert (second["chosen"], second["rejected"]) == ("4", ["5", "22, as everybody knows", "3"])
    assert (third["id"], third["chosen"]) == ("Ties-tied:7", ["4", "four"])


PROMPT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi {x}"},
    {"role": "assistant", "content": "Yes?"},
    {"content": "Help"},
]
CONTEXT = [
    {"role": "system", "text": "Be kind."},
    {"role": "user", "text": "Hi {x}"},
    {"role": "assistant", "text": "Yes?"},
]


@pytest.mark.parametrize("with_prompt", [True, False])
def test_conversations_keep_their_turns_and_their_last_message_is_the_answer(
    write_jsonl: Write, with_prompt: bool
) -> None:
    answers = [[*PROMPT, {"role": "assistant", "content": text}] for text in ("Sure.", "No.")]
    row = {**FIRST, "chosen": answers[0], "rejected": answers[1]}
    row = {**row, "prompt": PROMPT} if with_prompt else {k: v for k, v in row.items() if k != "prompt"}
    [pair] = read(spec(write_jsonl([row])))
    assert (pair["question"], pair["context"]) == ("Help", CONTEXT)
    assert (pair["chosen"], pair["rejected"]) == ("Sure.", "No.")


def test_a_single_message_is_the_question(write_jsonl: Write) -> None:
    [pair] = read(spec(write_jsonl([{**FIRST, "prompt": PROMPT[1:2]}])))
    assert pair["question"] == "Hi {x}"
    assert "context" not in pair


def test_an_answer_that_looks_like_a_list_stays_a_text(write_jsonl: Write) -> None:
    [pair] = read(spec(write_jsonl([{**FIRST, "prompt": "[1, 2]", "chosen": '["a"]', "rejected": "{}"}])))
    assert (pair["question"], pair["chosen"], pair["rejected"]) == ("[1, 2]", '["a"]', "{}")


def test_parquet_and_rows_without_id_or_subset_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    rows = [{key: FIRST[key] for key in ("prompt", "chosen", "rejected")}] * 2
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load(spec(path)).index.ids == ["all-1", "all-2"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chosen": None}, "`chosen` is missing"),
        ({"rejected": []}, "`rejected` must be text"),
        ({"rejected": ["a", 3]}, "`rejected` must be text"),
        ({"prompt": 7}, "`prompt` must be text"),
        ({"rejected": "An apple."}, "`chosen` and `rejected` are the same text"),
        ({"prompt": " "}, "`prompt` is empty"),
        ({"prompt": PROMPT[:3]}, "the last message of `prompt` must be the user's"),
        ({"prompt": None}, "`prompt` is missing"),
    ],
)
def test_bad_rows_are_told_with_their_line(write_jsonl: Write, change: dict[str, Any], says: str) -> None:
    path = write_jsonl([FIRST, {**FIRST, "id": 1, **change}])
    with pytest.raises(BadData, match=f"set.jsonl:2: {says}"):
        load(spec(path))
    assert len(load(spec(path), skip_bad=True)) == 1


def test_missing_fields_rows_that_are_no_objects_and_missing_files_are_told(write_jsonl: Write) -> None:
    path = write_jsonl([{"prompt": "p", "chosen": "c"}, [1]])
    with pytest.raises(BadData, match=r"`rejected` is missing(.|\n)*a row must be an object"):
        load(spec(path))
    with pytest.raises(BadInput, match="does not exist"):
        load("rewardbench?path=nowhere/at/all.jsonl")
    with pytest.raises(BadSpec, match="needs path="):
        load("rewardbench")


def test_of_the_two_parts_on_the_hub_the_filtered_one_is_used(write_jsonl: Write) -> None:
    rows = [{**FIRST, "split": "raw"}, {**FIRST, "id": 1, "split": "raw"}, {**FIRST, "split": "filtered"}]
    assert load(spec(write_jsonl(rows))).index.ids == ["chat-0"]


# a file given by its path alone


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (FIRST, "rewardbench"),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "preferences"),
        ({"chosen": [*PROMPT, {"content": "a"}], "rejected": [*PROMPT, {"content": "b"}]}, "preferences"),
    ],
)
def test_the_first_row_tells_the_format_and_the_name_says_it(
    write_jsonl: Write, row: dict[str, Any], name: str
) -> None:
    path = write_jsonl([row])
    assert open_source(str(path)).name == f"{name}?path={path}"
    assert read(str(path)) == read(f"{name}?path={path}")
    assert open_source(str(path.parent)).name == f"{name}?path={path.parent}"


def test_json_and_csv_files_of_that_shape_load_too(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text('[{"prompt": "p", "chosen": "a",\n "rejected": "b"}]')
    (tmp_path / "set.csv").write_text('prompt,chosen,rejected\np,"a\nb",c\n')
    assert [pair.answers for pair in load_pairs(str(tmp_path / "set.json"))] == [("a", "b")]
    assert [pair.answers for pair in load_pairs(str(tmp_path / "set.csv"))] == [("a\nb", "c")]


def test_rows_of_our_own_and_rows_without_answers_are_left_alone(write_jsonl: Write) -> None:
    for row in ({"question": "q", "prompt": "p", "chosen": "a", "rejected": "b"}, {"prompt": "p"}):
        path = write_jsonl([row])
        assert open_source(str(path)).name == str(path)


def test_a_run_reports_each_subset(write_jsonl: Write, tmp_path: Path) -> None:
    tied = {**SECOND, "id": "tie", "rejected": ["5", "3", "7"]}
    data = spec(write_jsonl([FIRST, SECOND, tied]))
    config = EvaluateConfig(model=("length",), condition=("none",), dataset=data, out=tmp_path / "run")
    row = result(evaluate(config).summary, "none", "length")
    # "4" loses to a longer answer, then it ties with three as long: best of four
    assert row["by_category"]["chat"]["value"] == 0.0
    assert row["by_category"]["math"]["value"] == (0 + 0.25) / 2
    assert row["accuracy"]["n"] == 3
