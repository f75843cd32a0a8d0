from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from prb.data.check import describe
from prb.data.load import load
from prb.errors import BadData
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]


@pytest.fixture
def small(write_jsonl: Write) -> Path:
    post = {"id": "p", "category": "", "text": "One two three."}
    alone = make_row(
        9,
        split="train",
        category="Society_and_Culture",
        profile=[post] * 30,
        chosen="One two three four.",
        rejected="One two three.",
        drift=True,
    )
    twins = make_twins(
        1, split="test", tier="stated", topic="plants", chosen="One two.", rejected="One two three four."
    )
    again = make_row(8, user="a1", split="test", chosen="One.", rejected="Two.", profile=twins[0]["profile"])
    return write_jsonl([alone, *twins, again])


def test_rows_users_and_clusters_are_counted_over_all_splits(small: Path) -> None:
    found = describe(str(small))
    assert (found["rows"], found["users"], found["clusters"], found["questions"]) == (4, 3, 2, 3)
    assert (found["mirror_rows"], found["drift_rows"], found["topics"], found["long_histories"]) == (2, 1, 1, 1)


def test_tables_count_what_is_there(small: Path) -> None:
    found = describe(str(small))
    assert found["splits"] == {"test": 3, "train": 1}
    assert found["categories"] == {"Lifestyle_and_Personal_Development": 3, "Society_and_Culture": 1}
    assert found["tiers"] == {"stated": 2}


def test_ranges_are_over_users_for_posts_and_over_rows_for_texts(small: Path) -> None:
    found = describe(str(small))
    assert found["posts_per_user"] == {"min": 2, "median": 2, "max": 30}
    assert found["words"]["post"]["median"] == 3
    assert found["words"]["answer"] == {"min": 1, "median": 2.5, "max": 4}


def test_length_gaps_are_relative_to_the_chosen_answer(small: Path) -> None:
    found = describe(str(small))
    # 4 against 3 words, 2 against 4, 4 against 2, 1 against 1
    assert found["answer_length_gap"] == {"mean": pytest.approx((0.25 + 1.0 + 0.5 + 0.0) / 4), "max": 1.0}
    assert found["chosen_longer"] == 0.5


def test_the_fingerprint_is_the_one_of_a_load(small: Path) -> None:
    assert describe(str(small))["fingerprint"] == load(str(small)).fingerprint


def test_the_numbers_can_be_written_as_json(small: Path) -> None:
    found = describe(str(small))
    assert orjson.loads(orjson.dumps(found)) == found


def test_a_set_without_splits_is_counted_whole(write_jsonl: Write) -> None:
    found = describe(str(write_jsonl([make_row(1), make_row(2)])))
    assert (found["rows"], found["splits"], found["tiers"]) == (2, {}, {})


def test_a_broken_set_has_no_statistics(write_jsonl: Write) -> None:
    with pytest.raises(BadData, match=r"set.jsonl:2: `question` is missing"):
        describe(str(write_jsonl([make_row(1), make_row(2, question=None)])))
