"""Strangers with a few labelled pairs: the same rows at every m, and never a row that was shown."""

from __future__ import annotations

import numpy as np
import pytest

from prb.errors import BadInput
from prb.training.protocols import curve, last_rows, seen_margins
from tests.training.numeric import conflicting_people

PEOPLE = conflicting_people(persons=40, pairs=20, size=6)


def test_shown_and_judged_rows_share_nothing_and_are_the_last_of_each() -> None:
    rows = np.arange(len(PEOPLE.examples))
    shown, judged = last_rows(PEOPLE.examples, rows, 2)
    assert sorted([*shown, *judged]) == rows.tolist()
    assert judged[:4].tolist() == [18, 19, 38, 39]


def test_somebody_with_too_few_rows_is_named() -> None:
    with pytest.raises(BadInput, match="'u0' has 2 rows"):
        last_rows(PEOPLE.examples, np.array([0, 1, 20, 21, 22]), 2)


def test_labelled_pairs_help_a_method_that_reads_them_and_no_other() -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    from prb.training.loop import Learning, learn

    person = PEOPLE.examples.person
    rows = np.arange(len(person))
    fit = Learning(l2=1e-4, lr=0.02, epochs=20, batch=128)
    points = {}
    for name in ("vpl", "bt"):
        head = learn(name, PEOPLE.examples, rows[person < 30], rows[:0], fit).head
        points[name] = [p["accuracy"] for p in curve(head, PEOPLE.examples, rows[person >= 30], (0, 10), 10)]
    assert points["vpl"][1]["value"] > points["vpl"][0]["value"] + 0.15
    assert points["bt"][0] == points["bt"][1]
    assert points["bt"][0]["n"] == 100


@pytest.mark.parametrize("name", ["lore", "vpl"])
def test_new_questions_of_seen_persons_are_judged_by_what_was_learned_of_them(name: str) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    from prb.training.loop import Learning, learn

    fit, new = last_rows(PEOPLE.examples, np.arange(len(PEOPLE.examples)), 5)
    head = learn(name, PEOPLE.examples, fit, fit[:0], Learning(l2=1e-4, lr=0.02, epochs=20, batch=128)).head
    assert set(head.codes) == set(PEOPLE.examples.users)
    assert (seen_margins(head, PEOPLE.examples, new) > 0).mean() > 0.7
