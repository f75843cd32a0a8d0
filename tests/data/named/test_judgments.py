"""People who judged replies: PRISM, PersonalRewardBench, Community Alignment, CoVal, BESPOKE.

Files in their formats, written here by hand, and the real rows that are at hand (PRISM, PersonalRewardBench).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prb.data.load import load, load_pairs
from prb.data.source import open_source
from prb.errors import BadInput
from tests.data.named.reading import Row, read
from tests.data.named.test_votes import assert_twins

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("spec", "says"),
    [("prism", "conversations.jsonl does not exist"), ("coval", "comparisons.jsonl does not exist"),
     ("bespoke", "holds no meta_test_set table")],
)  # fmt: skip
def test_a_folder_without_the_file_is_refused(spec, says, tmp_path) -> None:
    with pytest.raises(BadInput, match=says):
        open_source(f"{spec}?path={tmp_path}")


# PRISM


def prism_reply(n: int, text: str, score: int | None, chosen: bool = False, turn: int = 0) -> Row:
    return {"turn": turn, "role": "model", "content": text, "score": score, "if_chosen": chosen, "within_turn_id": n}


def prism_talk(own: str, user: str, prompt: str, *replies: Row) -> Row:
    history = [{"turn": 0, "role": "user", "content": prompt}, *replies]
    about = {"conversation_id": own, "user_id": user, "conversation_type": "values guided"}
    return {**about, "conversation_history": history}


TWO_TURNS = [
    prism_reply(0, "Many traditions say so.", 80, True),
    prism_reply(1, "No.", 20),
    prism_reply(2, "EMPTY STRING", 1),
    prism_reply(3, "Let us look at both sides.", 80),
    {"turn": 1, "role": "user", "content": "And fish?"},
    prism_reply(0, "The same.", 50, True, turn=1),
    prism_reply(1, "Not quite.", 10, turn=1),
]
PRISM = [
    prism_talk("c1", "u1", "Is it right to eat meat?", *TWO_TURNS),
    prism_talk("c2", "u1", "Who should govern?", prism_reply(0, "The wise.", 60, True), prism_reply(1, "The few.", 30)),
    prism_talk("c3", "u2", "Hello", prism_reply(0, "Hi!", 90, True), prism_reply(1, "What?", 10)),
]
SURVEY: list[Row] = [
    {"user_id": "u1", "self_description": "I farm.", "system_string": "Be plain with me.", "age": "55-64 years old"}
    | {"religion": {"simplified": "none"}},
    {"user_id": "u2", "self_description": "", "age": None},
]


@pytest.fixture
def prism(write_jsonl: Write) -> str:
    write_jsonl(SURVEY, name="survey.jsonl")
    return f"prism?path={write_jsonl(PRISM, name='conversations.jsonl').parent}"


def test_the_reply_a_user_continued_with_meets_those_scored_lower_in_every_turn(prism) -> None:
    # the missing reply and the one scored as high are no losers
    rows = read(prism)
    assert [(r["id"], r["question"], r["chosen"], r["rejected"]) for r in rows] == [
        ("c1-t0", "Is it right to eat meat?", "Many traditions say so.", "No."),
        ("c1-t1", "And fish?", "The same.", "Not quite."),
        ("c2-t0", "Who should govern?", "The wise.", "The few."),
        ("c3-t0", "Hello", "Hi!", "What?"),
    ]
    before = [("user", "Is it right to eat meat?"), ("assistant", "Many traditions say so.")]
    assert rows[1]["context"] == [{"role": role, "text": text} for role, text in before]
    assert "context" not in rows[0]


def test_a_user_is_what_they_wrote_and_chose_elsewhere_never_in_the_conversation_at_hand(prism) -> None:
    first, _, second, third = read(prism)
    assert [post["text"] for post in first["profile"]] == ["I farm.", "Be plain with me.", "Who should govern?"]
    assert [post["text"] for post in second["profile"]][2:] == ["Is it right to eat meat?", "And fish?"]
    assert first["choices"] == [{"question": "Who should govern?", "chosen": "The wise.", "rejected": "The few."}]
    assert [choice["question"] for choice in second["choices"]] == ["Is it right to eat meat?", "And fish?"]
    assert (third["profile"], third.get("choices")) == ([], None)
    assert (first["user"], first["groups"], third.get("groups")) == ("u1", {"age": "55-64 years old"}, None)
    assert {row["category"] for row in (first, second, third)} == {"values guided"}


def test_two_chosen_replies_are_both_right_and_turns_without_a_choice_end_the_conversation(write_jsonl) -> None:
    scores = (("a", 90, True), ("b", 80, True), ("c", 70, False), ("d", 1, False))
    both = prism_talk("c", "u", "Well?", *(prism_reply(n, *given) for n, given in enumerate(scores)))
    undecided = prism_talk("c4", "u3", "Well?", prism_reply(0, "a", None), prism_reply(1, "b", None))
    silent = prism_talk("c5", "u3", " ", prism_reply(0, "a", 9, True), prism_reply(1, "b", 1))
    # the file is named itself, and there is no survey
    [pair] = load_pairs(f"prism?path={write_jsonl([undecided, silent, both], name='talks.jsonl')}")
    assert (pair.answers, pair.n_best) == (("a", "b", "c", "d"), 2)


# PersonalRewardBench


def prb_choice(talk: str, user: str, split: str, question: str = "", **changes: Any) -> Row:
    row = {
        "conversation_id": talk,
        "user_id": user,
        "context": [{"role": "user", "content": question or f"Question of {talk}?"}],
        "chosen": {"role": "model", "content": f"Good {talk}"},
        "rejected": {"role": "model", "content": f"Bad {talk}"},
        "type": "unguided",
        "split": split,
    }
    return {**row, **changes}


WHERE = [("ann", "train"), ("ann", "test"), ("ann", "val"), ("bob", "train"), ("ann", "test")]
PRB = [prb_choice(f"c{n}", user, split) for n, (user, split) in enumerate(WHERE, 1)]


def test_the_test_rows_are_evaluated_and_the_others_are_the_history(write_jsonl) -> None:
    again = prb_choice("c6", "ann", "test", question="Question of c3?")
    spec = f"personalrewardbench?path={write_jsonl([*PRB, again])}"
    assert load(spec).index.ids == ["c2-test-2", "c5-test-5", "c6-test-6"]
    assert load(spec, split="validation").index.users == ["ann"]
    rows = {row["id"]: row for row in read(spec)}
    past = [{"question": f"Question of {t}?", "chosen": f"Good {t}", "rejected": f"Bad {t}"} for t in ("c1", "c3")]
    assert rows["c2-test-2"]["choices"] == rows["c5-test-5"]["choices"] == past
    assert rows["c1-train-1"]["choices"] == past[1:]
    assert "choices" not in rows["c4-train-4"]
    assert rows["c6-test-6"]["choices"] == past[:1]  # other prompts only


def test_earlier_turns_are_the_context(write_jsonl) -> None:
    messages = [{"role": r, "content": t} for r, t in (("user", "One?"), ("model", "Yes."), ("user", "Two?"))]
    row = prb_choice("c1", "ann", "test", context=messages)
    [made] = read(f"personalrewardbench?path={write_jsonl([row])}")
    assert made["question"] == "Two?"
    assert made["context"] == [{"role": "user", "text": "One?"}, {"role": "assistant", "text": "Yes."}]


def test_the_real_row_loads(shared_data) -> None:
    path = shared_data / "formats" / "personalrewardbench" / "prism_row.json"
    [pair] = load_pairs(f"personalrewardbench?path={path}", split="train")
    real = orjson.loads(path.read_bytes())
    assert (pair.user, pair.category, pair.split) == ("user584", "values guided", "train")
    said = [message["content"] for message in (real["context"][0], real["chosen"], real["rejected"])]
    assert [pair.question, pair.chosen, pair.rejected] == said


# Community Alignment


def community_turn(name: str, prompt: str, preferred: str, *replies: str) -> Row:
    texts = replies or tuple(f"{prompt} {x}" for x in "ABCD")
    columns = {f"{name}_turn_response_{x}": text for x, text in zip("abcd", texts, strict=False)}
    return {f"{name}_turn_prompt": prompt, f"{name}_turn_preferred_response": preferred, **columns}


def community_talk(own: str, user: str, *turns: Row, **more: Any) -> Row:
    row: Row = {"conversation_id": own, "annotator_id": user, "assigned_lang": "en", "annotator_age": "18-30", **more}
    for part in turns:
        row |= part
    return row


ANN = community_talk(
    "c1", "ann", community_turn("first", "Plan?", "response_b"), community_turn("second", "More?", "response_d")
)
BOB = community_talk("c2", "bob", community_turn("first", "Plan?", "response_a"), annotator_gender="f")
AGAIN = community_talk("c3", "ann", community_turn("first", "Tea?", "response_a"))


def test_each_turn_is_a_row_of_one_against_three_with_choices_of_other_conversations(write_jsonl) -> None:
    rows = {row["id"]: row for row in read(f"community-alignment?path={write_jsonl([ANN, BOB, AGAIN])}")}
    first, second = rows["c1-t0"], rows["c1-t1"]
    assert (first["chosen"], first["rejected"]) == ("Plan? B", ["Plan? A", "Plan? C", "Plan? D"])
    assert (second["question"], second["chosen"]) == ("More?", "More? D")
    assert [t["text"] for t in second["context"]] == ["Plan?", "Plan? B"]
    assert (first["category"], first["groups"]) == ("en", {"age": "18-30"})
    assert [c["question"] for c in second["choices"]] == ["Tea?"]
    assert [c["question"] for c in rows["c3-t0"]["choices"]] == ["Plan?", "More?"]
    assert "choices" not in rows["c2-t0"]


def test_annotators_who_preferred_different_replies_are_twins(write_jsonl) -> None:
    rows = read(f"community-alignment?path={write_jsonl([ANN, BOB, AGAIN])}&mirror=true")
    assert_twins(rows)
    assert [post["text"] for post in rows[1]["profile"]] == ["age: 18-30", "gender: f"]


def test_end_marks_missing_replies_and_double_replies_are_cleaned_up(write_jsonl) -> None:
    turn = community_turn("first", "Hi", "response_a", "One.<|end_of_text|>", "Two. ", "", "One.")
    [made] = read(f"community-alignment?path={write_jsonl([community_talk('c', 'u', turn)])}")
    assert (made["chosen"], made["rejected"]) == ("One.", "Two.")


def test_parquet_leaves_missing_turns_out_and_the_filtered_part_is_not_read_twice(tmp_path) -> None:
    pq.write_table(pa.Table.from_pylist([ANN, BOB]), tmp_path / "full.parquet")
    pq.write_table(pa.Table.from_pylist([{**BOB, "split": "filtered"}]), tmp_path / "part.parquet")
    assert [row["id"] for row in read(f"community-alignment?path={tmp_path}")] == ["c1-t0", "c1-t1", "c2-t0"]


# CoVal


def assessment(user: str, personal: str | None, world: str = "A>B>C>D") -> Row:
    blocks: Row = {"world": [{"ranking": world}]} | ({"personal": [{"ranking": personal}]} if personal else {})
    return {"annotator_id": user, "ranking_blocks": blocks}


def comparison(own: str, *assessments: Row) -> Row:
    replies = {x: [{"role": "assistant", "content": f"{own} says {x}."}] for x in "ABCD"}
    return {
        "prompt_id": own,
        "prompt": {"messages": [{"role": "user", "content": f"Question {own}?"}]},
        "responses": [{"response_index": x, "messages": messages} for x, messages in replies.items()],
        "metadata": {"assessments": list(assessments)},
    }


COVAL = [
    comparison("p1", assessment("ann", "B>A=C>D"), assessment("bob", "C>D>B>A"), assessment("cat", None)),
    comparison("p2", assessment("ann", "A=D>B>C")),
]
ANNOTATORS = [{"annotator_id": "ann", "demographics": {"age": "25-34", "gender": None}, "assessments": []}]


@pytest.fixture
def coval(write_jsonl: Write) -> str:
    write_jsonl(ANNOTATORS, name="annotators.jsonl")
    return f"coval?path={write_jsonl(COVAL, name='comparisons.jsonl').parent}"


def test_the_best_of_a_personal_ranking_meets_the_others(coval) -> None:
    rows = read(coval)
    assert [(r["id"], r["user"], r["chosen"]) for r in rows] == [
        ("p1-0", "ann", "p1 says B."),
        ("p1-1", "bob", "p1 says C."),
        ("p2-0", "ann", ["p2 says A.", "p2 says D."]),
    ]
    assert rows[0]["rejected"] == ["p1 says A.", "p1 says C.", "p1 says D."]
    assert rows[0]["choices"] == [{"question": "Question p2?", "chosen": "p2 says A.", "rejected": "p2 says C."}]
    assert (rows[0]["groups"], rows[0]["profile"][0]["text"]) == ({"age": "25-34"}, "age: 25-34")


def test_the_ranking_for_the_world_is_another_dataset(coval) -> None:
    assert [r["user"] for r in read(f"{coval}&block=world")] == ["ann", "bob", "cat", "ann"]
    assert open_source(f"{coval}&block=world").name.endswith("block=world")


def test_annotators_who_put_different_replies_first_are_twins(coval) -> None:
    rows = read(f"{coval}&mirror=true")
    assert_twins(rows)
    assert [row["id"] for row in rows] == ["p1-0~p1-1", "p1-1~p1-0"]


def test_the_file_may_be_named_itself_and_annotators_be_absent(write_jsonl) -> None:
    rows = read(f"coval?path={write_jsonl(COVAL)}")
    assert (len(rows), rows[0]["profile"]) == (3, [])


# BESPOKE


def response(contents: str, *scores: int) -> Row:
    names = ("need_alignment", "content_depth", "tone", "explanation_style")
    return {"contents": contents} | {name: {"score": score} for name, score in zip(names, scores, strict=True)}


BESPOKE = {
    "query": "Why is the sky blue?",
    "gold_information_need": "Physics, briefly.",
    "response_list": [response("Long.", 3, 3, 3, 3), response("Short.", 5, 4, 4, 4), response("Odd.", 1, 1, 5, 1)],
}


def write_bespoke(folder: Path, *values: Any) -> str:
    """Queries of one user, each with its value, as JSON or as text."""
    raw = [value if isinstance(value, str) else orjson.dumps(value).decode() for value in values]
    tables: dict[str, list[Row]] = {
        "meta_test/meta_test_set": [
            {"user": "u1", "query-id": str(n), "meta_test_set_value": value} for n, value in enumerate(raw, 1)
        ],
        "chat_history/chat_history": [{"user": "u1", "id": "x", "history": "user: hello"}],
        "search_history/search_history": [{"user": "u1", "id": "y", "history": "rayleigh"}],
    }
    for name, content in tables.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(content), path)
    return f"bespoke?path={folder}"


def test_the_answer_scored_highest_meets_those_below_and_equal_scores_give_no_row(tmp_path) -> None:
    other = {**BESPOKE, "query": "And the sea?", "gold_information_need": None}
    alike = {**BESPOKE, "response_list": [response("a", 1, 2, 3, 4), response("b", 4, 3, 2, 1)]}
    first, second = read(write_bespoke(tmp_path, BESPOKE, other, alike))
    assert (first["id"], first["question"]) == ("u1-1-1", "Why is the sky blue?")
    assert (first["chosen"], first["rejected"]) == ("Short.", ["Long.", "Odd."])
    posts = [(post["category"], post["text"]) for post in first["profile"]]
    assert posts == [("chat", "user: hello"), ("search", "rayleigh")]
    assert (first["rubric_aspects"], first["narrative"]) == ([{"aspect": "Physics, briefly."}], "Physics, briefly.")
    assert (second["rubric_aspects"], second["narrative"]) == ([], "")
    assert first["choices"] == [{"question": "And the sea?", "chosen": "Short.", "rejected": "Odd."}]
