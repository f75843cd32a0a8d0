"""Collaborative filtering on votes that are made up, with two kinds of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import prb
from prb.data.votes import votes_of
from prb.errors import BadInput
from prb.models import MODELS
from prb.models.personal.collaborative import factorize, ratings_of
from prb.types import Ask, Choice, Post, Query
from tests.conftest import make_row

LEFT = ("Raise the tax on land.", "Build more bicycle lanes.", "Close the old airport.", "Plant trees downtown.")
RIGHT = ("Lower the tax on land.", "Build a second highway.", "Enlarge the airport.", "Widen the parking lots.")


def query(agreed: tuple[str, ...] = (), disagreed: tuple[str, ...] = (), **more: Any) -> Query:
    posts = [Post(str(n), "", f"Agreed: {text}") for n, text in enumerate(agreed)]
    posts += [Post(f"d{n}", "", f"Disagreed: {text}") for n, text in enumerate(disagreed)]
    return Query(question="What should the city do?", posts=tuple(posts), **more)


def row(user: int, *, left: bool) -> dict[str, Any]:
    mine, others = (LEFT, RIGHT) if left else (RIGHT, LEFT)
    shown = [f"Agreed: {text}" for text in mine[1:]] + [f"Disagreed: {text}" for text in others[1:]]
    row = make_row(user, question="What should the city do?", chosen=mine[0], rejected=others[0], rubric_aspects=[])
    return {**row, "profile": shown, "narrative": ""}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("head") / "collaborative"
    rows = out.with_name("rows.jsonl")
    rows.write_bytes(b"".join(orjson.dumps(row(n, left=n % 2 == 0)) + b"\n" for n in range(40)))
    prb.train(method="collaborative?rank=2", dataset=str(rows), out=out, quiet=True)
    return out


def test_votes_are_read_from_posts_and_choices_and_contradictions_are_left_out():
    shown = query(("A.",), ("B.", "C."), choices=(Choice("q", "C.", "D."),))
    assert votes_of(shown) == {"A.": 1.0, "B.": -1.0, "D.": -1.0}


def test_factors_tell_two_kinds_of_users_apart():
    users = [
        dict.fromkeys(LEFT, 1.0) | dict.fromkeys(RIGHT, -1.0),
        dict.fromkeys(RIGHT, 1.0) | dict.fromkeys(LEFT, -1.0),
    ]
    ratings = ratings_of(users * 10)
    bias, items = factorize(ratings, rank=1, prior=0.1)
    side = {text: items[n, 1] for n, text in enumerate(ratings.items)}
    assert np.allclose(bias, 0, atol=1e-6)
    assert len({np.sign(side[text]) for text in LEFT}) == 1
    assert np.sign(side[LEFT[0]]) == -np.sign(side[RIGHT[0]])


def test_a_user_is_known_by_the_votes_shown_and_by_nothing_else(trained):
    model = MODELS.make(f"personal?path={trained}")
    left, right, nobody = query(LEFT[1:]), query(RIGHT[1:]), query()
    scores = model.score([Ask(q, text) for q in (left, right, nobody) for text in (LEFT[0], RIGHT[0])])
    margins = np.array(scores[::2]) - np.array(scores[1::2])
    assert margins[0] > 1
    assert margins[1] < -1
    assert margins[2] == pytest.approx(0, abs=1e-6)  # both kinds are equally frequent
    named = model.score([Ask(query(LEFT[1:], user=user), LEFT[0]) for user in ("u1", "u2")])
    assert named == [scores[0]] * 2


def test_one_vote_says_less_than_three(trained):
    model = MODELS.make(f"personal?path={trained}")
    asks = [Ask(query(LEFT[1:n]), text) for n in (2, 4) for text in (LEFT[0], RIGHT[0])]
    few, more = np.array(model.score(asks)).reshape(2, 2) @ [1, -1]
    assert 0 < few < more


def test_unknown_statements_are_placed_by_their_words(trained):
    model = MODELS.make(f"personal?path={trained}")
    near, far = "Build many more bicycle lanes now.", "Build a second and a third highway."
    scores = model.score([Ask(query(LEFT), near), Ask(query(LEFT), far)])
    assert scores[0] > scores[1]


def test_data_without_votes_is_refused_in_one_line(tmp_path, write_jsonl):
    rows = write_jsonl([make_row(n) for n in range(8)])
    with pytest.raises(BadInput, match="has no votes on single items"):
        prb.train(method="collaborative", dataset=str(rows), out=tmp_path / "x", quiet=True)


def test_a_folder_with_other_weights_than_its_card_says_is_refused(trained, tmp_path):
    card = (trained / "card.json").read_text("utf-8").replace("rank=2", "rank=3")
    (tmp_path / "card.json").write_text(card, "utf-8")
    (tmp_path / "weights.safetensors").write_bytes((trained / "weights.safetensors").read_bytes())
    with pytest.raises(BadInput, match="do not fit together"):
        MODELS.make(f"personal?path={tmp_path}")
