"""New users with a few labeled pairs: the same rows at every m, and never a row that was shown."""

from __future__ import annotations

import numpy as np
import pytest

from prb.errors import BadInput
from prb.training.loop import Learning, first_rows, learn, seen_margins
from prb.training.run import curve, last_rows
from tests.training.synthetic import conflicting_users

USERS = conflicting_users(users=40, pairs=20, size=6)


def test_shown_and_scored_rows_share_nothing_and_are_the_last_of_each() -> None:
    rows = np.arange(len(USERS.examples))
    shown, scored = last_rows(USERS.examples, rows, 2)
    assert sorted([*shown, *scored]) == rows.tolist()
    assert scored[:4].tolist() == [18, 19, 38, 39]


def test_a_user_with_too_few_rows_is_named() -> None:
    with pytest.raises(BadInput, match="'u0' has 2 rows"):
        last_rows(USERS.examples, np.array([0, 1, 20, 21, 22]), 2)


def test_labeled_pairs_help_a_method_that_reads_them_and_no_other() -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    user = USERS.examples.user
    rows = np.arange(len(user))
    fit = Learning(l2=1e-4, lr=0.02, epochs=20, batch=128)
    points = {}
    for name in ("vpl", "bt"):
        head = learn(name, USERS.examples, rows[user < 30], rows[:0], fit).head
        points[name] = [p["accuracy"] for p in curve(head, USERS.examples, rows[user >= 30], (0, 10), 10)]
    assert points["vpl"][1]["value"] > points["vpl"][0]["value"] + 0.15
    assert points["bt"][0] == points["bt"][1]
    assert points["bt"][0]["n"] == 100


def test_a_user_gives_half_of_the_rows_as_support_and_eight_at_most() -> None:
    user = np.repeat([4, 2, 7], [1, 5, 20])
    shown, rest = first_rows(user, None)
    assert {n: int((user[shown] == n).sum()) for n in (4, 2, 7)} == {4: 0, 2: 2, 7: 8}
    assert sorted([*shown, *rest]) == list(range(26))
    assert first_rows(user, 3)[0].tolist() == [0, 1, 2, 3, 6, 7, 8]


@pytest.mark.parametrize("name", ["lore", "vpl"])
def test_new_questions_of_seen_users_are_scored_by_what_was_learned_of_them(name: str) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    fit, new = last_rows(USERS.examples, np.arange(len(USERS.examples)), 5)
    head = learn(name, USERS.examples, fit, fit[:0], Learning(l2=1e-4, lr=0.02, epochs=20, batch=128)).head
    assert set(head.codes) == set(USERS.examples.users)
    assert (seen_margins(head, USERS.examples, new) > 0).mean() > 0.7
