"""Files in PRISM's format, written here by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prb.data.load import load, load_pairs
from prb.errors import BadData, BadInput
from prb.evaluation.config import EvaluateConfig
from prb.evaluation.run import evaluate
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


def test_the_answer_gone_on_with_meets_each_one_scored_lower(folder: Path) -> None:
    pairs = load_pairs(f"prism?path={folder}")
    # the missing answer and the one scored as high are no losers, later turns are not used
    assert [(p.id, p.chosen, p.rejected) for p in pairs] == [
        ("c1-1", "Many traditions say so.", "No."),
        ("c2-1", "The wise.", "The few."),
        ("c3-1", "Hi!", "What?"),
    ]
    assert [p.category for p in pairs] == ["values guided"] * 3


def test_a_user_is_what_they_wrote_elsewhere_never_in_the_conversation_at_hand(folder: Path) -> None:
    first, second, third = load_pairs(f"prism?path={folder}")
    assert [post.text for post in first.profile] == ["I farm.", "Be plain with me.", "Who should govern?"]
    assert [post.text for post in second.profile][2:] == ["Is it right to eat meat?", "And fish?"]
    assert tuple(third.profile) == ()
    assert (first.user, first.groups, third.groups) == ("u1", {"age": "55-64 years old"}, {})


def test_the_survey_may_be_absent_and_the_file_be_named_itself(write_jsonl: Write) -> None:
    path = write_jsonl([FIRST, SECOND], name="talks.jsonl")
    assert [post.text for post in load_pairs(f"prism?path={path}")[0].profile] == ["Who should govern?"]


def test_conversations_without_a_choice_give_no_pair(write_jsonl: Write) -> None:
    undecided = conversation("c4", "u3", "Well?", answer(0, "a", None), answer(1, "b", None))
    silent = conversation("c5", "u3", " ", answer(0, "a", 9, True), answer(1, "b", 1))
    path = write_jsonl([undecided, silent, THIRD], name="conversations.jsonl")
    assert load(f"prism?path={path}").index.ids == ["c3-1"]


def test_bad_rows_are_told_with_their_line(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [THIRD, {"conversation_id": "x", "user_id": "u"}, {**THIRD, "conversation_history": ["hi"]}]
    path = write_jsonl(rows, name="conversations.jsonl")
    with pytest.raises(BadData) as found:
        load(f"prism?path={path}")
    assert [(p.line, p.what) for p in found.value.problems] == [  # type: ignore[attr-defined]
        (2, "`conversation_history` is missing"),
        (3, "`conversation_history` must be a list of messages"),
    ]
    assert load(f"prism?path={path}", skip_bad=True).index.ids == ["c3-1"]
    with pytest.raises(BadInput, match=r"conversations.jsonl does not exist"):
        load(f"prism?path={tmp_path / 'empty'}/conversations.jsonl")


def test_a_run_knows_the_right_user_from_another(folder: Path, tmp_path: Path) -> None:
    config = EvaluateConfig(
        model=("lexical",), condition=("profile", "shuffled"), dataset=f"prism?path={folder}", out=tmp_path / "run"
    )
    summary = evaluate(config).summary
    assert summary["dataset"]["clusters"] == 2
    assert result(summary, "profile", "lexical")["accuracy"]["n"] == 3
