"""An annotator's way through a study, as a browser without JavaScript takes it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from prb.study import judgments as judging
from prb.study.database import ASSIGNMENT, AUDIT, ITEM, REPLY
from tests.conftest import make_row
from tests.study.conftest import AFTER, BEFORE, Make, Person


def test_the_wishes_are_shown_only_after_the_ratings(make: Make) -> None:
    person = make([make_row(1), make_row(2)], annotators=2, checks=0).person()
    first = person.open("/task")
    assert "How do I water plant number" in first
    assert "keep it short" not in first
    assert "on the bus" not in first
    second = person.follow(person.action, BEFORE)
    assert "What this user wants" in second
    assert "I read on the bus" in second
    assert "brevity" in second


def test_no_page_says_which_answer_is_which(make: Make) -> None:
    study = make()
    for number in range(3):
        person = study.person(number)
        for _ in range(2):
            assert not re.search("chosen|rejected|mirror|flipped|check", person.open("/task"))
            assert not re.search("chosen|rejected|mirror|flipped", person.follow(person.action, BEFORE))
            person.follow(person.action, AFTER)


def test_a_judgment_is_kept_in_all_its_parts(make: Make) -> None:
    study = make([make_row(1)], annotators=1, overlap=1, checks=0)
    before = {**BEFORE, "A-correctness": "2", "B-helpfulness": "5", "prefer": "neither"}
    study.person().judge(before, {"prefer": "A", "difference": "quality"})
    (row,) = study.judgments()
    first, second = row.first, "chosen" if row.first == "rejected" else "rejected"
    assert row.ratings[first] == {"correctness": 2, "relevance": 4, "helpfulness": 4}
    assert row.ratings[second] == {"correctness": 4, "relevance": 4, "helpfulness": 5}
    assert (row.before, row.after, row.difference) == ("neither", first, "quality")
    assert (row.item, row.skipped, row.revised) == ("r1", None, False)
    assert len(row.seconds) == 2


def test_one_comes_back_to_where_one_left_off(make: Make) -> None:
    study = make(checks=0)
    person = study.person()
    person.judge()
    person.open("/task")
    half = person.action
    person.follow(half, BEFORE)
    again = study.person()  # another device, the same link
    text = again.open("/task")
    assert again.action == half[:-1] + "2"
    assert "Item 2 of 4, step 2 of 2" in text


def test_missing_replies_are_asked_for_and_nothing_is_stored(make: Make) -> None:
    study = make()
    person = study.at_task()
    text = person.follow(person.action, {k: v for k, v in BEFORE.items() if k not in ("prefer", "B-relevance")})
    assert person.status == 422
    assert "2 fields are missing or invalid" in text
    assert text.count("Please choose") == 2
    assert text.count(" checked") == len(BEFORE) - 2  # what was given stands
    assert person.follow(person.action, {**BEFORE, "A-relevance": "9"}).count("Please choose one of these") == 1
    person.follow(person.action[:-1] + "2", AFTER)  # the second step before the first
    assert study.count(REPLY) == 0


def test_of_two_tabs_the_first_answer_stands_and_the_second_is_told(make: Make) -> None:
    study = make()
    person = study.at_task()
    action = person.action
    person.send(action, BEFORE)
    text = person.follow(action, {**BEFORE, "prefer": "B"})
    assert "already been answered, perhaps in another tab" in text
    assert [said["prefer"] for said in study.scalars(sa.select(REPLY.c.fields))] == ["A"]


def test_undo_takes_one_step_back_and_starts_from_what_was_said(make: Make) -> None:
    study = make(checks=0)
    person = study.person()
    person.judge()
    item = re.search(r"plant number \d", person.text)
    text = person.undo()
    assert "Taken back" in text
    assert re.search(r'value="B" data-key="b" required checked', text)
    assert "What this user wants" in text
    person.follow(person.action, {**AFTER, "prefer": "A"})
    assert re.search(r"plant number \d", person.text) == item or item
    row = study.judgments()[0]
    undone = study.scalars(sa.select(AUDIT.c.detail).where(AUDIT.c.what == "undone"))
    assert row.revised is False
    assert undone[0]["reply"] == AFTER


def test_ratings_changed_after_the_wishes_were_seen_are_marked(make: Make) -> None:
    study = make(checks=0)
    person = study.at_task()
    person.follow(person.action, BEFORE)
    person.undo()
    assert person.action.endswith("/1")
    person.follow(person.action, {**BEFORE, "prefer": "neither"})
    row = study.judgments()[0]
    assert (row.before, row.revised) == ("neither", True)
    person.judge()
    at = {"from": re.search(r'name="from" value="([^"]+)"', person.text)[1]}  # type: ignore[index]
    person.send("/undo", at)
    person.send("/undo", at)  # a second click does not undo twice
    assert study.count(REPLY) == 1


def test_skipping_needs_a_reason_and_can_be_undone(make: Make) -> None:
    study = make(checks=0)
    person = study.at_task()
    skip = person.action.replace("/task/", "/skip/")
    assert person.send(skip, {"reason": "bored"}).status_code == 422
    person.follow(skip, {"reason": "unknown"})
    row = study.judgments()[0]
    assert (row.skipped, row.before) == ("unknown", None)
    person.undo()
    assert study.count(REPLY) == 0
    assert not any(study.scalars(sa.select(ASSIGNMENT.c.revised)))  # nothing had been seen, so nothing is spoilt


def test_an_attention_check_has_an_answer_to_another_question(make: Make) -> None:
    study = make()
    items = study.rows(sa.select(ITEM))
    check = next(i for i in items if i.is_check).content
    by_question = {i.content["question"]: i.content["answers"] for i in items if not i.is_check}
    own, stray = check["answers"]
    assert own in by_question[check["question"]]
    assert stray not in by_question[check["question"]]
    assert any(stray in texts for texts in by_question.values())


def test_without_a_rubric_one_step_asks_everything(make: Make) -> None:
    rows = [make_row(n, rubric_aspects=[], narrative="") for n in (1, 2)]
    study = make(rows, annotators=1, overlap=1, checks=0)
    person = study.person(join=False)
    assert "asked again" not in person.open(f"/join/{study.tokens[0]}")
    person = study.person()
    text = person.open("/task")
    assert "What is the main difference" in text
    assert not re.search("Now that you know|What this user wants|asked again|step 1", text)
    person.follow(person.action, {**BEFORE, **AFTER})
    assert "Item 2 of 2" in person.text
    (row,) = study.judgments()
    assert row.before == row.after
    assert (row.difference, row.rubric) == ("preference", False)
    assert "rubric" not in study.admin().open("/admin")


@pytest.mark.parametrize("step", [1, 2])
def test_a_new_question_may_be_free_text(make: Make, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    plain = judging.validate_fields
    why = judging.FormField("why", "What made you decide?")
    monkeypatch.setattr(
        judging, "validate_fields", lambda at, **more: plain(at, **more) + ([why] if at == step else [])
    )
    study = make(checks=0)
    person = study.at_task()
    if step == 2:
        person.follow(person.action, BEFORE)
    assert re.search(r'<textarea id="why" name="why"[^>]* required', person.text)
    given = BEFORE if step == 1 else AFTER
    assert "Please write something here" in person.follow(person.action, given)
    person.follow(person.action, {**given, "why": "the tone"})
    assert study.judgments()[0].row()["why"] == "the tone"


def test_a_new_question_may_be_about_the_answers_and_is_exported_by_what_they_are(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = judging.validate_fields
    clearer = judging.FormField("clearer", "Which answer is clearer?", judging.PREFERENCE)
    monkeypatch.setattr(judging, "validate_fields", lambda at, **more: [*plain(at, **more), *[clearer] * (at == 1)])
    study = make(annotators=3, overlap=3, checks=0)
    for number in range(3):
        study.person(number).judge({**BEFORE, "clearer": "A"})
    rows = study.judgments()
    assert [row.row()["clearer"] for row in rows] == [row.first for row in rows]
    assert {row.first for row in rows} == {"chosen", "rejected"}


def test_the_practice_item_comes_first_and_is_not_counted(make: Make) -> None:
    study = make(practice=True, checks=0)
    person = study.person()
    assert "Practice: this item" in person.open("/task")
    person.judge()
    assert "Practice" not in person.text
    assert study.judgments() == []
    person.judge()
    assert len(study.judgments()) == 1


def test_one_public_link_gives_each_newcomer_a_place_and_brings_them_back(make: Make) -> None:
    study = make(public=True, annotators=2, overlap=1, checks=0, completion="C0DE42")
    (link,) = study.links.values()
    assert link.endswith("?PROLIFIC_PID={{%PROLIFIC_PID%}}")
    token = re.search(r"/take/([\w-]+)", link)[1]  # type: ignore[index]

    def come(name: str) -> Person:
        person = study.person(join=False)
        person.open(f"/take/{token}?PROLIFIC_PID={name}")
        person.follow("/take", {"public": token, "external": name})
        return person

    first, second = come("ann"), come("bob")
    first.judge()
    assert "Item 2 of 3" in come("ann").open("/task")
    assert "Item 1 of 3" in second.open("/task")
    assert "This study is full" in come("eve").text
    assert "participant id is missing" in first.open(f"/take/{token}")
    assert "This link is not known" in first.open("/take/guess?PROLIFIC_PID=ann")
    assert "ann" in study.admin().open("/admin")
    for _ in range(2):
        first.judge()
    assert "Your completion code is" in first.open("/task")
    assert "C0DE42" in first.text


@pytest.mark.parametrize(
    ("completion", "link"),
    [("https://app.example/complete?cc=1", True), ("javascript:alert(1)", False), ("<b>1</b>", False)],
)
def test_only_a_web_address_becomes_a_link_at_the_end(make: Make, completion: str, link: bool) -> None:
    person = make([make_row(1)], annotators=1, overlap=1, checks=0, completion=completion).person()
    text = person.judge()
    assert (f'href="{completion}"' in text) == link
    assert "<b>1" not in text


def test_consent_and_contact_are_there_if_the_study_has_them(make: Make, tmp_path: Path) -> None:
    (tmp_path / "consent.txt").write_text("We keep it <b>until</b> 2030.", "utf-8")
    study = make(consent=tmp_path / "consent.txt", contact="lead@example.org")
    person = study.person()
    assert "We keep it &lt;b&gt;until&lt;/b&gt; 2030." in person.open("/task")
    assert person.send("/task/1/1", BEFORE).status_code == 403
    assert "Which answer would this user prefer?" in person.follow("/consent", {"agree": "yes"})
    assert '<a href="mailto:lead@example.org">' in person.text
    assert "What you agreed to" in person.open("/data")


def test_a_study_can_be_closed_and_opened_again(make: Make) -> None:
    study = make()
    person, admin = study.person(), study.admin()
    person.open("/task")
    action, token = person.action, person.token
    admin.open("/admin")
    assert "The study is closed" in admin.follow("/admin/state", {"state": "closed"})
    assert "This study is closed" in person.open("/task")
    reply = person.client.post(action, data={"token": token, **BEFORE})
    assert (reply.status_code, study.count(REPLY)) == (503, 0)
    assert "Delete my data" in person.open("/data")
    assert admin.send("/admin/state", {"state": "lost"}).status_code == 400
    admin.open("/admin")
    admin.follow("/admin/state", {"state": "open"})
    person.judge()
    assert study.count(REPLY) == 2


def test_undo_takes_back_the_last_step_whatever_the_clock_says(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make(checks=0)
    person = study.person()
    person.judge()
    an_hour_ago = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: an_hour_ago)  # the clock is set back
    person = study.person()
    person.judge()
    person.undo()
    replies = sa.select(ASSIGNMENT.c.position, REPLY.c.step).join(REPLY, REPLY.c.assignment == ASSIGNMENT.c.id)
    assert sorted(map(tuple, study.rows(replies))) == [(0, 1), (0, 2), (1, 1)]
