"""A participant's way: consent, posts, questions, wishes, ratings; the dataset it becomes; and taking it all back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from prb.building.stages import read_records
from prb.data.load import load
from prb.runs import read_lines
from prb.study import judgments as judging
from prb.study.config import ExportConfig
from prb.study.database import ASSIGNMENT, POST
from prb.study.judgments import MAX_TEXT, export
from prb.types import Pair, Rating
from tests.conftest import make_row
from tests.study.conftest import Make, Person, Study

SECRET = "my cat is called Quetzalcoatl"
WISH = "plain words, no lecture, please"


def take_part(
    study: Study, number: int = 0, *, picks: int = 2, own: str = "", posts: tuple[str, ...] = (SECRET, "Second post.")
) -> Person:
    """Up to the first question."""
    person = study.at_task(number, agree=True)
    for text in posts:
        person.follow("/posts", {"text": text})
    person.open("/questions")
    names = re.findall(r'name="(pick-\d+)"', person.text)[:picks]
    person.follow("/questions", {**dict.fromkeys(names, "yes"), "own": own})
    return person


def answer(person: Person, best: str = "A", **ratings: str) -> None:
    person.follow(person.action, {"narrative": WISH})
    step = re.search(r"/task/\d+/2", person.text)
    if step:
        person.follow(step[0], {"A-rating": "5", "B-rating": "2", "best": best, **ratings})


def test_nothing_can_be_given_before_consent(make: Make) -> None:
    study = make(kind="collect")
    person = study.person()
    assert "Before we begin" in person.open("/task")
    assert person.send("/posts", {"text": SECRET}).status_code == 403
    assert person.send("/questions", {"own": "?"}).status_code == 403
    assert "tick the box" in person.follow("/consent")
    assert person.status == 422
    assert study.count(POST) == 0


def test_posts_are_wanted_first_and_a_second_click_adds_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prb.study.site.MAX_POSTS", 3)
    study = make(kind="collect")
    person = study.at_task()
    assert "2 more to go" in person.follow("/consent", {"agree": "yes"})
    person.send("/posts", {"text": SECRET})
    assert "1 more to go" in person.follow("/posts", {"text": SECRET})
    assert "Write or paste something" in person.follow("/posts", {"text": "  "})
    person.open("/posts")
    person.follow("/posts", {"text": "two"})
    person.follow("/posts", {"text": "three"})
    assert "3 posts are enough" in person.follow("/posts", {"text": "four"})
    first = re.search(r"/posts/(\d+)/remove", person.open("/posts"))
    assert first
    assert SECRET not in person.follow(first[0])


def test_nobody_can_remove_a_post_of_somebody_else(make: Make) -> None:
    study = make(kind="collect")
    take_part(study, 0)
    other = take_part(study, 1, posts=("mine", "also mine"))
    first = study.scalars(sa.select(POST.c.id).where(POST.c.text == SECRET))[0]
    other.send(f"/posts/{first}/remove")
    assert study.count(POST) == 4


def test_the_export_is_a_dataset_that_loads(make: Make, tmp_path: Path) -> None:
    study = make(kind="collect")
    one = take_part(study, 0)
    answer(one)
    answer(one, best="neither")
    two = take_part(study, 1, picks=1, own="Why do cats wake people at five?", posts=("Short.", "Shorter."))
    answer(two, best="B")
    answer(two)
    counts = export(ExportConfig(study=study.where, out=tmp_path / "out"))
    assert counts == {"pairs.jsonl": 2, "ratings.jsonl": 6, "records.jsonl": 4}
    pairs = [p for p in load(str(tmp_path / "out" / "pairs.jsonl")) if isinstance(p, Pair)]
    ratings = [r for r in load(str(tmp_path / "out" / "ratings.jsonl"), task="ratings") if isinstance(r, Rating)]
    assert len({p.user for p in pairs}) == 2
    assert all(re.fullmatch(r"p-[0-9a-f]{10}", p.user) for p in pairs)
    assert [post.text for post in pairs[0].profile] == [SECRET, "Second post."]
    assert pairs[0].narrative == WISH
    # the best answer is the one that was shown as A and rated 5
    given = {r.answer: r.rating for r in ratings if r.user == pairs[0].user and r.question == pairs[0].question}
    assert given == {pairs[0].chosen: 1.0, pairs[0].rejected: 0.25}
    assert {r.rating for r in ratings} == {1.0, 0.25}
    records = read_records(str(tmp_path / "out" / "records.jsonl"))
    assert len(records) == 4
    assert [r.question for r in records].count("Why do cats wake people at five?") == 1


def test_new_questions_are_shown_checked_stored_and_exported(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Options in the first step and free text in the second: the opposite of the questions that are there."""
    plain = judging.collect_fields
    known, why = judging.FormField("topic", "Do you know it?", judging.SCALE), judging.FormField("why", "Why this one?")
    clearer = judging.FormField("clearer", "Which answer is clearer?", judging.PREFERENCE)
    added = {1: [known], 2: [why, clearer]}
    monkeypatch.setattr(judging, "collect_fields", lambda step, n: [*plain(step, n), *added[step]])
    study = make(kind="collect")
    person = take_part(study)
    assert len(re.findall(r'type="radio" name="topic"', person.text)) == 5
    assert "Please choose" in person.follow(person.action, {"narrative": WISH})
    person.follow(person.action, {"narrative": WISH, "topic": "3"})
    assert re.search(r'<textarea id="why" name="why"[^>]* required', person.text)
    chosen = {"A-rating": "5", "B-rating": "2", "best": "A"}
    assert "Please write something here" in person.follow(person.action, chosen)
    person.follow(person.action, {**chosen, "why": "the tone", "clearer": "B"})
    person.follow(person.action, {"narrative": WISH, "topic": "1"})  # of a second question, and not yet rated
    export(ExportConfig(study=study.where, out=tmp_path / "out"))
    tables = {path.stem: list(read_lines(path)) for path in (tmp_path / "out").glob("*.jsonl")}
    both = {"topic": "3", "why": "the tone", "clearer": tables["pairs"][0]["rejected"]}
    assert [row["replies"] for row in tables["pairs"]] == [both]
    assert [row["replies"] for row in tables["ratings"]] == [both, both]
    assert [row["replies"] for row in tables["records"]] == [both, {"topic": "1"}]
    assert len(load(str(tmp_path / "out" / "pairs.jsonl"))) == 1
    assert len(read_records(str(tmp_path / "out" / "records.jsonl"))) == 2


def test_the_order_of_answers_differs_between_people_and_stays_for_one(make: Make) -> None:
    study = make([make_row(n) for n in range(1, 9)], kind="collect", annotators=4)
    orders: list[dict[str, str]] = []
    for number in range(4):  # orders are random: four people agree on all of them once in 16 million times
        person = take_part(study, number, picks=8)
        orders.append({})
        for _ in range(8):
            person.follow(person.action, {"narrative": WISH})
            shown = re.search(r'plant number (\d).*?<div class="text " dir="auto">(\w+)', person.text, re.DOTALL)
            assert shown
            orders[-1][shown[1]] = shown[2]
            assert shown[2] in person.open("/task")
            person.follow(person.action, {"A-rating": "3", "B-rating": "3", "best": "A"})
    assert any(order != orders[0] for order in orders)
    assert {first for order in orders for first in order.values()} == {"Once", "It"}


def test_questions_with_few_takers_come_first_(make: Make) -> None:
    study = make([make_row(n) for n in range(1, 9)], kind="collect", annotators=3)
    take_part(study, 0, picks=3)
    taken = set(study.scalars(sa.select(ASSIGNMENT.c.item)))
    other = study.at_task(1, agree=True)
    offered = [int(n) for n in re.findall(r'name="pick-(\d+)"', other.open("/questions"))]
    assert set(offered[-3:]) == taken


def test_texts_that_are_too_long_are_refused_and_never_cut(make: Make) -> None:
    study = make(kind="collect")
    person = take_part(study)
    text = person.follow(person.action, {"narrative": "x" * (MAX_TEXT + 1)})
    assert "This text has 20,001 characters; at most 20,000 are allowed" in text
    assert person.send(person.action, {"narrative": "x" * 1_000_000}).status_code == 413
