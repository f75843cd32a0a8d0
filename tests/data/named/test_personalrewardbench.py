"""Files in PersonalRewardBench's format: the one real row that is public in print, and rows written like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import open_source
from prb.errors import BadSpec
from tests.data.named.reading import Row, read

Write = Callable[..., Path]


def choice(talk: str, user: str, split: str, question: str = "", **changes: Any) -> Row:
    row = {
        "conversation_id": talk,
        "user_id": user,
        "context": [{"role": "user", "content": question or f"Question of {talk}?"}],
        "chosen": {"role": "model", "content": f"Good {talk}"},
        "rejected": {"role": "model", "content": f"Bad {talk}"},
        "turns": 1,
        "type": "unguided",
        "split": split,
        "flip": False,
    }
    return {**row, **changes}


ROWS = [
    choice("c1", "ann", "train"),
    choice("c2", "ann", "test"),
    choice("c3", "ann", "val"),
    choice("c4", "bob", "train"),
    choice("c5", "ann", "test"),
]


def spec(path: Path) -> str:
    return f"personalrewardbench?path={path}"


def test_the_test_rows_are_evaluated_and_the_others_are_the_history(write_jsonl: Write) -> None:
    path = write_jsonl(ROWS)
    assert load(spec(path)).index.ids == ["c2-test-2", "c5-test-5"]
    assert load(spec(path), split="validation").index.users == ["ann"]
    rows = {row["id"]: row for row in read(spec(path))}
    past = [{"question": f"Question of {t}?", "chosen": f"Good {t}", "rejected": f"Bad {t}"} for t in ("c1", "c3")]
    assert rows["c2-test-2"]["choices"] == rows["c5-test-5"]["choices"] == past
    assert rows["c1-train-1"]["choices"] == past[1:]
    assert "choices" not in rows["c4-train-4"]


def test_a_user_may_have_a_shorter_history_and_never_one_on_the_same_prompt(write_jsonl: Write) -> None:
    again = choice("c6", "ann", "test", question="Question of c3?")
    path = write_jsonl([*ROWS, again])
    rows = {row["id"]: row for row in read(f"{spec(path)}&history=1")}
    assert [c["question"] for c in rows["c2-test-2"]["choices"]] == ["Question of c3?"]
    assert [c["question"] for c in rows["c6-test-6"]["choices"]] == ["Question of c1?"]
    assert open_source(f"{spec(path)}&history=1").name == f"{spec(path)}&history=1"


def test_earlier_turns_are_the_context(write_jsonl: Write) -> None:
    messages = [{"role": r, "content": t} for r, t in (("user", "One?"), ("model", "Yes."), ("user", "Two?"))]
    [row] = read(spec(write_jsonl([choice("c1", "ann", "test", context=messages)])))
    assert row["question"] == "Two?"
    assert row["context"] == [{"role": "user", "text": "One?"}, {"role": "assistant", "text": "Yes."}]


def test_a_history_is_never_negative(write_jsonl: Write) -> None:
    with pytest.raises(BadSpec, match="history='-1'"):
        open_source(f"{spec(write_jsonl(ROWS))}&history=-1")


def test_the_real_row_loads(shared_data: Path) -> None:
    path = shared_data / "formats" / "personalrewardbench" / "prism_row.json"
    [pair] = load_pairs(spec(path), split="train")
    real = orjson.loads(path.read_bytes())
    assert (pair.user, pair.category, pair.split) == ("user584", "values guided", "train")
    assert (pair.question, pair.answers) == (
        real["context"][0]["content"],
        (real["chosen"]["content"], real["rejected"]["content"]),
    )
