"""PersonaMem: real questions of version 1 in the released layout, and files of version 2 written here by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.source import open_source
from prb.errors import BadInput
from tests.data.named.reading import Row, problems, read


def write_csv(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


CHAT = [
    {"role": "system", "content": "Current user persona: Kim"},
    {"role": "user", "content": "I do not eat meat."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "I moved to Oslo."},
]
FIRST = {
    "persona_id": 4,
    "question_id": "q1",
    "question_type": "recall",
    "topic": "food",
    "user_question_or_message": "Dinner?",
    "correct_answer": "(b)",
    "all_options": str(["(a) Steak.", "(b) It's lentils.", "(c) Fish.", "(d) Ham."]),
    "shared_context_id": "abc",
    "end_index_in_shared_context": 2,
}
SECOND = {
    "persona_id": 4,
    "chat_history_32k_link": "data/chats/kim.json",
    "user_query": str({"role": "user", "content": "Dinner?"}),
    "correct_answer": "Lentils.",
    "incorrect_answers": '["Steak.", "Fish.", "Ham."]',
    "preference": "Eats no meat.",
    "pref_type": "food",
    "conversation_scenario": "chat",
    "who": "self",
    "updated": "False",
}


def first(folder: Path, **changes: Any) -> Path:
    (folder / "shared_contexts_32k.jsonl").write_bytes(orjson.dumps({"abc": CHAT}) + b"\n")
    write_csv(folder / "questions_32k.csv", [FIRST, {**FIRST, "question_id": "q2", **changes}])
    return folder


def second(folder: Path, **changes: Any) -> Path:
    chat = folder / "data" / "chats" / "kim.json"
    chat.parent.mkdir(parents=True)
    chat.write_bytes(orjson.dumps({"metadata": {}, "chat_history": CHAT}))
    write_csv(folder / "benchmark" / "text" / "benchmark.csv", [SECOND, {**SECOND, **changes}])
    return folder


# version 1


def test_the_right_option_meets_the_others_and_the_chat_up_to_then_is_the_history(tmp_path) -> None:
    row, other = read(f"personamem?path={first(tmp_path, end_index_in_shared_context=4)}")
    assert (row["id"], row["user"], row["question"], row["topic"]) == ("q1", "persona4", "Dinner?", "food")
    assert (row["chosen"], row["rejected"]) == ("It's lentils.", ["Steak.", "Fish.", "Ham."])
    assert [post["text"] for post in row["profile"]] == ["Current user persona: Kim", "I do not eat meat."]
    assert [post["text"] for post in other["profile"]][2:] == ["I moved to Oslo."]


def test_the_real_questions_load(shared_data) -> None:
    rows = read(f"personamem?path={shared_data / 'formats' / 'personamem_v1'}")
    assert len(rows) == 8
    assert {len(row["rejected"]) for row in rows} == {3}
    assert not any(answer.startswith("(") for row in rows for answer in (row["chosen"], *row["rejected"]))
    assert all(row["profile"] for row in rows)


def test_a_size_that_is_not_there_and_a_lost_context_file_are_refused(tmp_path, shared_data) -> None:
    folder = first(tmp_path)
    with pytest.raises(BadInput, match=r"holds none of questions_128k.csv"):
        open_source(f"personamem?path={folder}&size=128k")
    (folder / "shared_contexts_32k.jsonl").unlink()
    with pytest.raises(BadInput, match=r"shared_contexts_32k.jsonl does not exist"):
        read(f"personamem?path={folder}")


# version 2


def test_version_2_has_its_chats_in_files_and_its_preference_is_hidden(tmp_path) -> None:
    row, again = read(f"personamem?path={second(tmp_path, user_query=orjson.dumps(CHAT[1]).decode())}")
    assert (row["user"], row["question"], row["chosen"]) == ("persona4", "Dinner?", "Lentils.")
    assert row["rejected"] == ["Steak.", "Fish.", "Ham."]
    assert (row["rubric_aspects"], row["narrative"]) == ([{"aspect": "Eats no meat."}], "Eats no meat.")
    assert [post["text"] for post in row["profile"]][1:] == ["I do not eat meat.", "I moved to Oslo."]
    assert row["groups"] == {"updated": "False", "who": "self"}
    assert again["question"] == "I do not eat meat."


@pytest.mark.parametrize("link", ["../outside.json", "absolute"])
def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path, link) -> None:
    outside, folder = tmp_path / "outside.json", tmp_path / "set"
    outside.write_bytes(orjson.dumps(CHAT))
    link = str(outside) if link == "absolute" else link
    said = f"benchmark.csv:3: `chat_history_32k_link` {link!r} does not exist"
    assert problems(f"personamem?path={second(folder, chat_history_32k_link=link)}") == [said]
