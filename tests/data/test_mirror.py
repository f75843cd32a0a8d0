from __future__ import annotations

from typing import Any

import pytest

from prb.data.load import load, load_pairs
from prb.data.named.mirror import unfold_couple
from prb.data.source import Rows, open_source
from prb.types import Pair


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    splits = {row.data["split"] for row in open_source("mirror").rows()}
    return {pair.id: pair for split in sorted(splits) for pair in load_pairs("mirror", split=split)}


def want(answer: str, **more: Any) -> dict[str, Any]:
    return {"aspects": [{"aspect": "pace"}], "narrative": "Slowly.", "answer": answer, "bearing": [2], **more}


COUPLE: dict[str, Any] = {
    "couple": "c99",
    "split": "test",
    "people": {
        "ann": {"posts": [{"category": "Food", "text": "Tea."}, {"category": "Art", "text": "Rain."}]},
        "bob": {"posts": [{"category": "Food", "text": "Beer."}, {"category": "Art", "text": "Sun."}]},
    },
    "questions": [
        {
            "question": "Walk or run?",
            "category": "Society_and_Culture",
            "tier": "stated",
            "topic": "sport",
            "wants": {"ann": want("Walk."), "bob": want("Run.", drift=True)},
        }
    ],
}


def test_the_embedded_set_loads(pairs: dict[str, Pair]) -> None:
    assert len(load("mirror")) > 0
    assert {pair.id for pair in load_pairs("mirror")} <= set(pairs)


def test_every_row_has_a_twin_with_the_answers_swapped(pairs: dict[str, Pair]) -> None:
    for pair in pairs.values():
        assert pair.mirror is not None
        twin = pairs[pair.mirror]
        assert (twin.mirror, twin.question, twin.split) == (pair.id, pair.question, pair.split)
        assert (twin.chosen, twin.rejected) == (pair.rejected, pair.chosen)
        assert twin.user != pair.user


def test_no_person_is_in_two_splits(pairs: dict[str, Pair]) -> None:
    homes = {(pair.user, pair.split) for pair in pairs.values()}
    assert len(homes) == len({user for user, _ in homes})


def test_reading_it_twice_gives_the_same_bytes() -> None:
    assert [row.raw for row in open_source("mirror").rows()] == [row.raw for row in open_source("mirror").rows()]


def test_a_couple_unfolds_into_two_sound_rows() -> None:
    ann, bob = unfold_couple(COUPLE)
    assert (ann["id"], ann["mirror"], ann["user"]) == ("c99-q1-ann", "c99-q1-bob", "ann")
    assert (ann["chosen"], ann["rejected"]) == ("Walk.", "Run.")
    assert (bob["chosen"], bob["rejected"]) == ("Run.", "Walk.")
    assert [post["id"] for post in bob["profile"]] == ["bob-01", "bob-02"]
    assert bob["bearing_posts"] == ["bob-02"]
    assert "drift" not in ann
    assert bob["drift"] is True
    assert load(Rows("couple", [ann, bob])).index.clusters == ["ann", "ann"]
