"""What the administrator sees."""

from __future__ import annotations

from typing import Any

from prb.study.admin import flags
from prb.study.app import fill
from prb.study.config import Judgment
from tests.conftest import make_row
from tests.study.conftest import Make
from tests.study.test_agreement import judged, rated, row


def test_progress_and_agreement_are_live(make: Make) -> None:
    study = make(checks=0)
    admin = study.admin()
    assert "0 of 12" in admin.open("/admin")
    for n in range(3):
        study.person(n).judge()
    text = admin.open("/admin")
    assert "3 of 12" in text
    assert "Krippendorff’s α" in text
    assert text.count(" 1/4<") == 3


def test_people_who_need_a_look_are_flagged() -> None:
    def said(first: str, before: str | None, **changes: Any) -> Judgment:
        return judged([row(1, 1, first=first, before=before, **changes)])[0]

    sides = [said(f, f) for f in ("chosen", "rejected") * 4]
    one_sided = ["nearly always picks the same side", "always gives the same rating"]
    assert flags(sides, [30.0] * 8, 30.0, (2, 2)) == one_sided
    fair = [said(f, "chosen", ratings=rated(4, 3)) for f in ("chosen", "rejected") * 4]
    assert flags(fair, [30.0] * 8, 30.0, (2, 2)) == []
    assert flags(fair, [5.0] * 8, 30.0, (0, 2)) == ["missed 2 of 2 checks", "much faster than the others"]
    assert flags([said("chosen", None, skipped="other")] * 6, [], 30.0, None) == ["skips many items"]
    assert flags(sides[:3], [1.0] * 3, 30.0, None) == []  # too little to say anything


def test_the_demo_is_filled_and_leaves_the_last_place_free(make: Make) -> None:
    study = make(annotators=6, checks=2)
    fill(study.database)
    text = study.admin().open("/admin")
    assert "missed" in text
    assert "What this user" in study.person(5).open("/task")


def test_items_are_shown_with_their_texts_and_votes(make: Make) -> None:
    study = make([make_row(1), make_row(2)], annotators=2, checks=1)
    for n in range(2):
        study.person(n).judge()
    assert study.person().client.get("/admin/items").status_code == 401
    text = study.admin().open("/admin/items")
    assert text.count("How do I water plant number") == 2  # no check, no practice
    assert text.count("Labeled answer") == text.count("Other answer") == 2
    assert "judgment" in text
    assert "mean rating 4.0" in text
