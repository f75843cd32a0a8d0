"""A trained head as a reward model: what it sees, what it must not see, and that saving does not change it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.errors import BadInput, UnknownName
from prb.models import MODELS
from prb.models.personal.features import check_features, make_features
from prb.models.personal.head import Head, Personal, Scaler, fingerprint, read, save
from prb.types import Ask, Choice, Failure, Post, Query

SIZE = 256
UNSCALED = Scaler(*[np.stack([np.zeros(SIZE), np.ones(SIZE)])] * 2)
CARD = {
    "features": "static",
    "features_fingerprint": make_features("static").fingerprint,
    "train": {"k": 10, "ranker": "embedding"},
}
POSTS = (Post("1", "", "I love short answers about bread"), Post("2", "", "Trains are always late"))
ASK = Ask(Query(question="What bread should I bake?", user="ann", posts=POSTS), "Bake rye bread tonight.")


def light_head() -> Head:
    weights = np.random.default_rng(0).standard_normal(2 * SIZE + 1).astype(np.float32).astype(np.float64)
    return Head("light", {"weights": weights}, UNSCALED, np.zeros(0))


def lore_head() -> Head:
    basis = np.random.default_rng(0).standard_normal((SIZE, 2)).astype(np.float32).astype(np.float64)
    known = {"ann": np.array([3.0, -3.0])}
    people = np.array([[3.0, -3.0], [-3.0, 3.0]])
    return Head("lore?rank=2", {"basis": basis, "people": people}, UNSCALED, np.zeros(2), known)


def scorer(head: Head) -> Personal:
    return Personal(head, make_features("static"), "test")


def test_a_head_comes_back_from_disk_with_the_same_scores(tmp_path: Path) -> None:
    head = light_head()
    save(head, tmp_path / "head", CARD)
    again = MODELS.make(f"personal?path={tmp_path / 'head'}")
    assert again.score([ASK]) == scorer(head).score([ASK])  # type: ignore[union-attr]


def test_a_plan_is_read_in_the_place_of_posts() -> None:
    plan = Query(question=ASK.query.question, user="ann", plan=tuple(p.text for p in POSTS))
    posts, planned = scorer(light_head()).score([ASK, Ask(plan, ASK.answer)])
    assert posts == planned


def test_known_users_differ_and_new_users_are_all_the_same() -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    queries = [Query(question="q", user=user, posts=POSTS[:n]) for user, n in (("ann", 0), ("bob", 1), (None, 0))]
    known, stranger, unknown = scorer(lore_head()).score([Ask(query, "An answer") for query in queries])
    assert known != stranger
    assert stranger == unknown  # bit for bit: this method does not use posts


def test_past_choices_tell_a_head_with_codes_who_asks_and_others_ignore_them() -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    choices = tuple(Choice(f"What now, {n}?", "Bake rye bread.", "Take the late train.") for n in range(4))
    swapped = tuple(Choice(c.question, c.rejected, c.chosen) for c in choices)
    answers = ("Bake rye bread.", "Take the late train.")

    def margin(model: Personal, **known: Any) -> float:
        first, second = model.score([Ask(Query(question="q", **known), answer) for answer in answers])
        return float(first) - float(second)  # type: ignore[arg-type]

    lore = scorer(lore_head())
    told, opposite = margin(lore, user="bob", choices=choices), margin(lore, user="bob", choices=swapped)
    assert told > margin(lore, user="bob") > opposite
    assert margin(lore, user="ann", choices=choices) == told  # what was chosen counts, not the name
    assert margin(lore, choices=choices) == told
    light = scorer(light_head())
    assert margin(light, choices=choices) == margin(light)


def test_a_folder_without_a_head_and_other_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no trained head"):
        MODELS.make(f"personal?path={tmp_path}")
    save(light_head(), tmp_path / "head", {**CARD, "features_fingerprint": "another"})
    with pytest.raises(BadInput, match="was trained on features 'another'"):
        MODELS.make(f"personal?path={tmp_path / 'head'}")
    (tmp_path / "head" / "weights.safetensors").write_bytes(b"broken")
    with pytest.raises(BadInput, match="cannot be read as a trained head"):
        read(tmp_path / "head")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"params": {"weights": np.zeros(7)}}, r"weights has shape \(7,\), not \(513,\)"),
        ({"params": {}}, "it has no array 'weights'"),
        ({"params": {"weights": np.full(2 * SIZE + 1, np.nan)}}, "not all finite"),
        ({"scaler": Scaler(np.zeros((3, SIZE)), np.zeros((2, SIZE)))}, "scaler.answer has shape"),
        ({"prior_mean": np.zeros(5)}, "nobody has shape"),
    ],
)
def test_weights_that_do_not_fit_their_method_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    save(replace(light_head(), **change), tmp_path, CARD)
    with pytest.raises(BadInput, match=why):
        read(tmp_path)


def test_unknown_features_are_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'static'"):
        check_features("statics")
    with pytest.raises(BadInput, match="needs lm="):
        check_features("hidden")


def test_an_answer_that_cannot_be_read_is_a_failure_and_the_others_are_scored() -> None:
    class Picky:
        fingerprint = "picky"

        def texts(self, texts: Any) -> Any:
            return np.ones((len(texts), SIZE), dtype=np.float32)

        def answers(self, asks: Any) -> Any:
            return [Failure("too long") if "x" in a.answer else np.ones(SIZE, dtype=np.float32) for a in asks]

    scores = Personal(light_head(), Picky(), "t").score([Ask(ASK.query, "x"), ASK, Ask(ASK.query, "x y")])
    assert [isinstance(s, Failure) for s in scores] == [True, False, True]


def test_a_light_head_needs_no_torch(tmp_path: Path) -> None:
    save(light_head(), tmp_path / "head", CARD)
    code = (
        "import sys\nfrom prb.models import MODELS\nfrom prb.types import Ask, Query\n"
        f"model = MODELS.make('personal?path={tmp_path / 'head'}')\n"
        "print(model.score([Ask(Query(question='q'), 'a bread')]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


def test_the_fingerprint_covers_every_file_of_a_head(tmp_path: Path) -> None:
    save(lore_head(), tmp_path, CARD)
    before = fingerprint(tmp_path)
    for name in ("weights.safetensors", "card.json", "users.json"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content.replace(b"ann", b"bob") + b" ")
        assert fingerprint(tmp_path) != before
        (tmp_path / name).write_bytes(content)
    assert fingerprint(tmp_path) == before


def test_a_code_does_not_depend_on_who_else_is_asked_about() -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    histories = [tuple(Choice(f"Which, {n} or {k}?", f"This {n}.", "That.") for k in range(n)) for n in (1, 3, 2)]
    asks = [Ask(Query(question="q", choices=history), "An answer") for history in histories]
    together = scorer(lore_head()).score(asks)
    alone = [scorer(lore_head()).score([ask])[0] for ask in asks]
    assert together == pytest.approx(alone, abs=1e-12)
