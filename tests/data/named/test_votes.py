"""Votes of many users on the same prompts: rows, histories, mirror pairs of real people, test-retest agreement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.load import load
from prb.data.source import open_source
from prb.errors import BadInput, BadSpec
from prb.summary import Retest
from tests.data.named.reading import Row, read

PANDALM = "prompt=instruction,input&answers=response1,response2&voters=annotator1,annotator2,annotator3&id=idx"


def vote(user: str, prompt: str, choice: Any, **more: Any) -> Row:
    return {"user": user, "prompt": prompt, "answers": [f"{prompt} Yes.", f"{prompt} No."], "choice": choice, **more}


VOTES = [
    vote("ann", "Tea?", 0),
    vote("bob", "Tea?", 1),
    vote("ann", "Milk?", "B"),
    vote("bob", "Milk?", "b"),
    vote("ann", "Cake?", "Cake? Yes."),
    vote("bob", "Cake?", "tie"),
]


# --- rows


def test_a_vote_is_a_pair_and_the_users_other_votes_are_its_history(write_jsonl) -> None:
    rows = read(f"votes?path={write_jsonl(VOTES)}")
    assert [(r["id"], r["user"], r["chosen"]) for r in rows] == [
        ("set-1", "ann", "Tea? Yes."),
        ("set-2", "bob", "Tea? No."),
        ("set-3", "ann", "Milk? No."),
        ("set-4", "bob", "Milk? No."),
        ("set-5", "ann", "Cake? Yes."),
    ]
    assert rows[0]["choices"] == [
        {"question": "Milk?", "chosen": "Milk? No.", "rejected": "Milk? Yes."},
        {"question": "Cake?", "chosen": "Cake? Yes.", "rejected": "Cake? No."},
    ]
    assert [choice["question"] for choice in rows[1]["choices"]] == ["Milk?"]
    assert (rows[0]["profile"], rows[0]["rubric_aspects"], rows[0]["narrative"]) == ([], [], "")


def test_the_history_holds_the_last_votes_and_never_one_on_the_same_prompt(write_jsonl) -> None:
    many = [vote("ann", f"Number {n}?", 0) for n in range(6)] + [vote("ann", "number  5?", 0)]
    rows = read(f"votes?path={write_jsonl(many)}&history=2")
    assert [c["question"] for c in rows[0]["choices"]] == ["Number 5?", "number  5?"]
    assert [c["question"] for c in rows[5]["choices"]] == ["Number 3?", "Number 4?"]
    assert "choices" not in read(f"votes?path={write_jsonl(many)}&history=0")[0]


def test_votes_of_the_test_split_are_nobodys_history(write_jsonl) -> None:
    split = [vote("ann", f"{n}?", 0, fold=fold) for n, fold in enumerate(("train", "dev", "test", "test"))]
    rows = read(f"votes?path={write_jsonl(split)}&split=fold")
    assert [row["split"] for row in rows] == ["train", "dev", "test", "test"]
    assert [[c["question"] for c in row["choices"]] for row in rows] == [["1?"], ["0?"], ["0?", "1?"], ["0?", "1?"]]


def test_more_than_two_answers_are_one_row_with_the_others_rejected(write_jsonl) -> None:
    row = {"who": 7, "text": "Pick.", "a": "One.", "b": "Two.", "c": "Three.", "d": "Two.", "best": "c"}
    [made] = read(f"votes?path={write_jsonl([row])}&prompt=text&answers=a,b,c,d&user=who&choice=best")
    assert (made["user"], made["chosen"], made["rejected"]) == ("7", "Three.", ["One.", "Two."])


def test_conversations_and_what_is_known_of_a_user_come_along(write_jsonl) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tea?"}]
    row = {**vote("ann", "Tea?", 0), "prompt": messages, "age": 61, "city": None, "kind": "food"}
    [made] = read(f"votes?path={write_jsonl([row])}&about=age,city&category=kind")
    assert (made["question"], made["context"]) == ("Tea?", [{"role": "system", "text": "Be brief."}])
    assert made["profile"] == [{"id": "ann-age", "category": "about", "text": "age: 61"}]
    assert (made["groups"], made["category"]) == ({"age": "61"}, "food")


def test_the_name_of_a_source_makes_it_again(write_jsonl) -> None:
    spec = f"votes?path={write_jsonl(VOTES)}&mirror=true&per_pair=1&about=age"
    source = open_source(spec)
    assert source.name == spec
    assert list(open_source(source.name).rows()) == list(source.rows())


def test_contradicting_options_and_missing_files_are_refused(write_jsonl) -> None:
    with pytest.raises(BadSpec, match="voters cannot be combined"):
        open_source(f"votes?path={write_jsonl(VOTES)}&choice=a&voters=b")
    with pytest.raises(BadInput, match=r"gone.jsonl does not exist"):
        open_source("votes?path=gone.jsonl")
    with pytest.raises(BadSpec, match="per_pair='0'"):
        open_source("votes?path=gone.jsonl&per_pair=0")


# --- mirror


def assert_twins(rows: Iterable[Row]) -> None:
    by_id = {row["id"]: row for row in rows}
    for row in by_id.values():
        twin = by_id[row["mirror"]]
        assert (twin["mirror"], twin["question"]) == (row["id"], row["question"])
        assert (twin["chosen"], twin["rejected"]) == (row["rejected"], row["chosen"])
        assert twin["user"] != row["user"]


def test_two_users_who_preferred_opposite_answers_are_twins(write_jsonl) -> None:
    rows = read(f"votes?path={write_jsonl(VOTES)}&mirror=true")
    assert [(r["id"], r["mirror"]) for r in rows] == [("set-1~set-2", "set-2~set-1"), ("set-2~set-1", "set-1~set-2")]
    assert_twins(rows)
    assert all("Tea?" not in [c["question"] for c in row["choices"]] for row in rows)


def test_of_four_answers_twins_get_the_two_that_were_preferred(write_jsonl) -> None:
    def ballot(user: str, choice: str) -> Row:
        shuffled = ["w", "x", "y", "z"] if user != "cat" else ["z", "y", "x", "w"]
        return {"user": user, "prompt": "?", "answers": shuffled, "choice": choice}

    rows = read(f"votes?path={write_jsonl([ballot('ann', 'A'), ballot('bob', 'C'), ballot('cat', 'D')])}&mirror=true")
    assert_twins(rows)  # cat preferred w, too: her answers were shown in another order
    assert {row["user"]: (row["chosen"], row["rejected"]) for row in rows} == {
        "ann": ("w", "y"),
        "bob": ("y", "w"),
        "cat": ("w", "y"),
    }


def crowd(users: int, prompts: int) -> list[Row]:
    return [vote(f"u{u}", f"Prompt {p}?", int((u * 7 + p * 3) % 5 > 1)) for p in range(prompts) for u in range(users)]


def test_nobody_dominates_and_the_seed_decides(write_jsonl) -> None:
    path = write_jsonl(crowd(users=10, prompts=30))
    rows = read(f"votes?path={path}&mirror=true&per_pair=2")
    assert_twins(rows)
    assert Counter(row["question"] for row in rows) == {f"Prompt {p}?": 4 for p in range(30)}
    couples = Counter(row["user"] for row in rows)
    assert max(couples.values()) - min(couples.values()) <= 1
    assert rows == read(f"votes?path={path}&mirror=true&per_pair=2")
    assert rows != read(f"votes?path={path}&mirror=true&per_pair=2&seed=1")


def test_users_who_contradict_themselves_are_in_no_couple(write_jsonl) -> None:
    path = write_jsonl([vote("ann", "Tea?", 0), vote("bob", "Tea?", 1), vote("bob", "Tea?", 0)])
    assert read(f"votes?path={path}&mirror=true") == []


def test_twins_are_of_one_split(write_jsonl) -> None:
    path = write_jsonl([vote("ann", "Tea?", 0, split="train"), vote("bob", "Tea?", 1, split="test")])
    assert read(f"votes?path={path}&mirror=true") == []


# --- repeated votes


def test_the_agreement_of_users_with_themselves_is_measured_where_they_voted_again(write_jsonl) -> None:
    again = [vote("ann", "Tea?", 0), vote("ann", "Milk?", 1), vote("bob", "Tea?", 1), vote("bob", "Tea?", "tie")]
    source = open_source(f"votes?path={write_jsonl([*VOTES, *again])}")
    # ann says the same twice; of bob's three votes two agree and one is a tie
    assert source.retest() == Retest(agreement=(1 + 1 + 1 + 0.5 + 0.5) / 5, n=5)


def test_without_repeated_votes_the_ceiling_is_unknown(write_jsonl) -> None:
    assert open_source(f"votes?path={write_jsonl(VOTES)}").retest() is None


# --- size, and real votes


def opposite_votes(path: Path) -> int:
    """The couples of PandaLM, counted the slow way: annotators of one mind who disagree on the same two answers."""
    ballots: dict[Any, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for row in orjson.loads(path.read_bytes()):
        answers = [row["response1"], row["response2"]]
        if all(isinstance(answer, str) and answer.strip() for answer in answers):
            for n in (1, 2, 3):
                pick = row[f"annotator{n}"]
                item = row["instruction"], row["input"], *sorted(answers)
                ballots[item][n].add(answers[pick - 1] if pick else None)
    minds = [[v.copy().pop() for v in users.values() if len(v) == 1 and None not in v] for users in ballots.values()]
    return sum(a != b for item in minds for a, b in combinations(item, 2))


def test_pandalm_gives_a_couple_for_each_two_opposite_votes(shared_data) -> None:
    path = shared_data / "pandalm" / "testset-v1.json"
    spec = f"votes?path={path}&{PANDALM}&mirror=true"
    dataset = load(spec, skip_bad=True)
    assert dataset.left_out == 60  # an answer is empty, or `true` instead of text
    assert len(dataset) == 2 * opposite_votes(path) == 2 * 122
    assert set(dataset.index.twins) == set(range(len(dataset)))
    rows = [row.data for row in open_source(spec).rows() if not row.problem]
    assert_twins(rows)
    assert {row["user"] for row in rows} == {"annotator1", "annotator2", "annotator3"}
    assert {len(row["choices"]) for row in rows} == {16}
    assert all(row["question"] not in [c["question"] for c in row["choices"]] for row in rows)
    assert len(load(f"{spec}&per_pair=1", skip_bad=True)) == 2 * 61
    # the same two answers were shown again: nearly always with the same result
    assert open_source(spec).retest() == Retest(agreement=pytest.approx(0.9966, abs=1e-4), n=447)
