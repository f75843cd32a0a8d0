"""Files in PRISM's format, written here by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load_pairs
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
from tests.data.named.reading import read
from tests.runs import result

Write = Callable[..., Path]


def answer(n: int, text: str, score: int | None, chosen: bool = False, turn: int = 0) -> dict[str, Any]:
    return {"turn": turn, "role": "model", "content": text, "score": score, "if_chosen": chosen, "within_turn_id": n}


def conversation(own: str, user: str, prompt: str, *answers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    history = [{"turn": 0, "role": "user", "content": prompt}, *answers]
    row = {
        "conversation_id": own,
        "user_id": user,
        "conversation_type": "values guided",
        "conversation_history": history,
    }
    return {**row, **changes}


FIRST = conversation(
    "c1",
    "u1",
    "Is it right to eat meat?",
    answer(0, "Many traditions say so.", 80, True),
    answer(1, "No.", 20),
    answer(2, "EMPTY STRING", 1),
    answer(3, "Let us look at both sides.", 80),
    {"turn": 1, "role": "user", "content": "And fish?"},
    answer(0, "The same.", 50, True, turn=1),
    answer(1, "Not quite.", 10, turn=1),
)
SECOND = conversation("c2", "u1", "Who should govern?", answer(0, "The wise.", 60, True), answer(1, "The few.", 30))
THIRD = conversation("c3", "u2", "Hello", answer(0, "Hi!", 90, True), answer(1, "What?", 10))
SURVEY = [
    {
        "user_id": "u1",
        "self_description": "I farm.",
        "system_string": "Be plain with me.",
        "age": "55-64 years old",
        "religion": {"simplified": "none"},
    },
    {"user_id": "u2", "self_description": "", "age": None},
]


@pytest.fixture
def folder(write_jsonl: Write) -> Path:
    write_jsonl(SURVEY, name="survey.jsonl")
    return write_jsonl([FIRST, SECOND, THIRD], name="conversations.jsonl").parent


def test_the_reply_gone_on_with_meets_those_scored_lower_in_every_turn(folder: Path) -> None:
    # the missing reply and the one scored as high are no losers
    assert [(r["id"], r["question"], r["chosen"], r["rejected"]) for r in read(f"prism?path={folder}")] == [
        ("c1-t0", "Is it right to eat meat?", "Many traditions say so.", "No."),
        ("c1-t1", "And fish?", "The same.", "Not quite."),
        ("c2-t0", "Who should govern?", "The wise.", "The few."),
        ("c3-t0", "Hello", "Hi!", "What?"),
    ]
    assert [r["id"] for r in read(f"prism?path={folder}&turns=opening")] == ["c1-t0", "c2-t0", "c3-t0"]


def test_the_turns_before_are_the_context(folder: Path) -> None:
    assert [turn.role for turn in load_pairs(f"prism?path={folder}")[1].context] == ["user", "assistant"]
    first, second, *_ = read(f"prism?path={folder}")
    assert "context" not in first
    assert second["context"] == [
        {"role": "user", "text": "Is it right to eat meat?"},
        {"role": "assistant", "text": "Many traditions say so."},
    ]


def test_a_user_is_what_they_wrote_and_chose_elsewhere_never_in_the_conversation_at_hand(folder: Path) -> None:
    first, _, second, third = read(f"prism?path={folder}")
    assert [post["text"] for post in first["profile"]] == ["I farm.", "Be plain with me.", "Who should govern?"]
    assert [post["text"] for post in second["profile"]][2:] == ["Is it right to eat meat?", "And fish?"]
    assert first["choices"] == [{"question": "Who should govern?", "chosen": "The wise.", "rejected": "The few."}]
    assert [choice["question"] for choice in second["choices"]] == ["Is it right to eat meat?", "And fish?"]
    assert (third["profile"], third.get("choices")) == ([], None)
    assert (first["user"], first["groups"], third.get("groups")) == ("u1", {"age": "55-64 years old"}, None)
    assert {row["category"] for row in (first, second, third)} == {"values guided"}


def test_two_chosen_replies_of_a_turn_are_both_right_and_several_losers_one_row(write_jsonl: Write) -> None:
    both = conversation(
        "c",
        "u",
        "Well?",
        answer(0, "a", 90, True),
        answer(1, "b", 80, True),
        answer(2, "c", 70),
        answer(3, "d", 1),
    )
    [pair] = load_pairs(f"prism?path={write_jsonl([both], name='conversations.jsonl')}")
    assert (pair.answers, pair.n_best) == (("a", "b", "c", "d"), 2)


def test_the_survey_may_be_absent_and_the_file_be_named_itself(write_jsonl: Write) -> None:
    path = write_jsonl([FIRST, SECOND], name="talks.jsonl")
    assert [post["text"] for post in read(f"prism?path={path}")[0]["profile"]] == ["Who should govern?"]


def test_turns_without_a_choice_give_no_pair_and_end_the_conversation(write_jsonl: Write) -> None:
    undecided = conversation("c4", "u3", "Well?", answer(0, "a", None), answer(1, "b", None))
    silent = conversation("c5", "u3", " ", answer(0, "a", 9, True), answer(1, "b", 1))
    path = write_jsonl([undecided, silent, THIRD], name="conversations.jsonl")
    assert [row["id"] for row in read(f"prism?path={path}")] == ["c3-t0"]


def test_real_turns_load(shared_data: Path, write_jsonl: Write) -> None:
    """Real texts; the fragment holds pairs, put back into conversations here."""
    lines = (shared_data / "formats" / "prism_pairs" / "pairs.jsonl").read_text("utf-8").splitlines()
    pairs = [orjson.loads(line) for line in lines]
    talks = [
        conversation(f"c{n}", "u", p["question"], answer(0, p["chosen"], 90, True), answer(1, p["rejected"], 10))
        for n, p in enumerate(pairs)
    ]
    rows = load_pairs(f"prism?path={write_jsonl(talks, name='conversations.jsonl')}")
    assert [(r.question, r.chosen, r.rejected) for r in rows] == [
        (p["question"], p["chosen"], p["rejected"]) for p in pairs
    ]


def test_a_run_knows_the_right_user_from_another(folder: Path, tmp_path: Path) -> None:
    config = EvaluateConfig(
        model=("lexical",), condition=("profile", "shuffled"), dataset=f"prism?path={folder}", out=tmp_path / "run"
    )
    summary = evaluate(config).summary
    assert summary["dataset"]["clusters"] == 2
    assert result(summary, "profile", "lexical")["accuracy"]["n"] == 4
