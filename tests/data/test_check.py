from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from prb.data.check import CATEGORIES, check, describe
from prb.data.load import load
from prb.data.source import MemorySource, open_source
from prb.errors import BadData, Problem
from tests.conftest import Row, make_row, make_twins
from tests.data.broken import sound

Write = Callable[..., Path]
EIGHT = "never begin an answer with a long apology"
SEVEN = "never begin an answer with an apology"


def warnings(*rows: Row, **settings: Any) -> list[Problem]:
    return [problem for problem in check(MemorySource("set", rows), **settings) if problem.level == "warning"]


def test_a_misspelled_category_is_a_warning_and_one_of_ones_own_is_fine() -> None:
    [problem] = warnings(sound(1), sound(2, category="Society_and_Cultre"))
    assert (problem.line, problem.what) == (2, "category 'Society_and_Cultre' is nearly 'Society_and_Culture'")
    assert warnings(*(sound(n, category=category) for n, category in enumerate([*CATEGORIES, "Cooking", ""]))) == []


HIDDEN = [
    {"narrative": f"Please {EIGHT}, thank you."},
    *(
        {"rubric_aspects": [{"aspect": "tone", "evidence": "", "reason": "", part: f"So {EIGHT}."}]}
        for part in ("aspect", "evidence", "reason")
    ),
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=["narrative", "aspect", "evidence", "reason"])
@pytest.mark.parametrize(
    ("shown", "where"),
    [
        ({"profile": [{"id": "p7", "text": f"Friends know: NEVER begin{EIGHT[11:]}!"}]}, "post 'p7'"),
        ({"chosen": f"I {EIGHT}, ever.", "rejected": "It depends on how the day went, and on whom."}, "`chosen`"),
        ({"rejected": f"I {EIGHT}, ever.", "chosen": "It depends on how the day went, and on whom."}, "`rejected`"),
    ],
    ids=["post", "chosen", "rejected"],
)
def test_hidden_wording_in_plain_sight_is_a_warning(hidden, shown, where) -> None:
    [problem] = warnings(sound(1), sound(2, **hidden, **shown))
    assert problem.line == 2
    assert problem.what == f"{where} shares 8 words in a row with the rubric or narrative: {EIGHT!r}"


def test_seven_shared_words_are_no_warning() -> None:
    assert len(SEVEN.split()) == 7
    shown = {"chosen": f"People {SEVEN}, ever.", "rejected": "It depends on how the day went, and on whom."}
    assert warnings(sound(1, narrative=f"Please {SEVEN}, thanks.", **shown)) == []


def test_answers_of_very_different_length_are_a_warning() -> None:
    [problem] = warnings(sound(1), sound(2, chosen="a" * 10, rejected="b" * 21))
    assert (problem.line, problem.what) == (2, "answers of very different length: 10 to 21 characters")
    assert warnings(sound(1, chosen="a" * 20, rejected="b" * 10)) == []


def test_ratings_are_checked_as_ratings() -> None:
    row = {"user": "u", "question": "Tea?", "answer": "Yes.", "rating": 0.5, "category": "Society_and_Cultre"}
    found = check(MemorySource("set", [row, {**row, "rating": 2, "category": None}]), task="ratings")
    assert [(problem.level, problem.line) for problem in found] == [("error", 2), ("warning", 1)]


def test_a_real_set_of_pairs_has_no_errors(shared_data) -> None:
    found = check(open_source(str(shared_data / "prefeval" / "pairs.jsonl")))
    assert [problem for problem in found if problem.level == "error"] == []
    assert not any("category" in problem.what for problem in found)


def test_past_choices_that_give_the_label_away_are_a_warning() -> None:
    row = sound(1)
    leak = {"question": row["question"], "chosen": "Yes.", "rejected": "No."}
    harmless = {"question": "Where do geese sleep?", "chosen": "Yes.", "rejected": "No."}
    [problem] = warnings({**row, "choices": [harmless, leak]})
    assert problem.what == "past choices that give the label away (number 2) are never shown"
    assert warnings({**row, "choices": [harmless]}) == []


# figures


@pytest.fixture
def small(write_jsonl: Write) -> Path:
    post = {"id": "p", "category": "", "text": "One two three."}
    alone = make_row(9, split="train", category="Society_and_Culture", profile=[post] * 30, drift=True)
    alone |= {"chosen": "One two three four.", "rejected": "One two three."}
    answers = {"chosen": "One two.", "rejected": "One two three four."}
    twins = make_twins(1, split="test", tier="stated", topic="plants", **answers)
    again = make_row(8, user="a1", split="test", chosen="One.", rejected="Two.", profile=twins[0]["profile"])
    return write_jsonl([alone, *twins, again])


def test_rows_users_and_clusters_are_counted_over_all_splits(small) -> None:
    figures = describe(str(small))
    assert (figures["rows"], figures["users"], figures["clusters"], figures["questions"]) == (4, 3, 2, 3)
    assert (figures["mirror_rows"], figures["drift_rows"]) == (2, 1)
    assert figures["splits"] == {"test": 3, "train": 1}
    assert figures["categories"] == {"Lifestyle_and_Personal_Development": 3, "Society_and_Culture": 1}
    assert figures["tiers"] == {"stated": 2}
    assert figures["fingerprint"] == load(str(small)).fingerprint
    assert orjson.loads(orjson.dumps(figures)) == figures


def test_ranges_are_over_users_for_posts_and_over_rows_for_texts(small) -> None:
    figures = describe(str(small))
    assert figures["posts_per_user"] == {"min": 2, "median": 2, "max": 30}
    assert figures["words"]["post"]["median"] == 3
    assert figures["words"]["answer"] == {"min": 1, "median": 2.5, "max": 4}
    assert figures["chosen_longer"] == 0.5


def test_a_set_without_splits_is_counted_whole_and_a_broken_one_not_at_all(write_jsonl) -> None:
    figures = describe(str(write_jsonl([make_row(1), make_row(2)])))
    assert (figures["rows"], figures["splits"], figures["tiers"]) == (2, {}, {})
    with pytest.raises(BadData, match=r"set.jsonl:2: `question` is missing"):
        describe(str(write_jsonl([make_row(1), make_row(2, question=None)])))
