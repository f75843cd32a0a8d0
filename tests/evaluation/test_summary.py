"""From outcomes to `summary.json`: a run small enough to be worked out by hand, then the parts it does not reach."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from prb import __version__
from prb.errors import BadInput
from prb.evaluation.metrics import Rows
from prb.models.scripted import ScriptedScorer
from prb.reporting.evaluation_results import evaluation_table
from prb.runs import Finished, read_json
from prb.summary import METRICS, Metric, Summary
from prb.types import Ask, Failure
from tests.conftest import Row, make_row
from tests.runs import by_length, contrast, prefers, result

# Three people. A and B are twins on two questions, C asks two questions alone: six rows, two clusters.
# Each line holds the rewards of (x, y); A and C want x, B wants y. Under `shuffled` A and B can only be shown
# C's posts, since C is the one person outside their cluster; C is shown A's or B's, who get the same rewards.
#
#            nobody      A           B           C
REWARDS = {
    "q1": {None: (1, 0), "A": (3, 0), "B": (1, 2), "C": (1, 1)},
    "q2": {None: (0, 0), "A": (1, 2), "B": (0, 2), "C": (1, 0)},
    "q3": {None: (1, 2), "A": (0, 1), "B": (0, 1), "C": (5, 4)},
    "q4": {None: (2, 1), "A": (7, 7), "B": (7, 7), "C": (3, 3)},
}  # fmt: skip


def golden_rows() -> list[Row]:
    def row(question: str, user: str, category: str, **more: Any) -> Row:
        chosen, rejected = (
            (f"y of {question}", f"x of {question}") if user == "B" else (f"x of {question}", f"y of {question}")
        )
        post = {"id": f"{user}1", "category": "", "text": f"I am {user}."}
        fields = {"id": question + user, "user": user, "question": question, "chosen": chosen, "rejected": rejected}
        return make_row(1, **fields, profile=[post], category=category, **more)

    return [
        row("q1", "A", "Art", mirror="q1B", tier="easy"),
        row("q1", "B", "Art", mirror="q1A", tier="easy"),
        row("q2", "A", "Life", mirror="q2B", tier="hard"),
        row("q2", "B", "Life", mirror="q2A", tier="hard"),
        row("q3", "C", "Art"),
        row("q4", "C", "Life"),
    ]


def users_of(done: Finished) -> Any:
    return read_json(done.folder / "users.json")


@pytest.fixture
def golden(evaluated):
    def reward(ask: Ask) -> float:
        return REWARDS[ask.query.question][ask.query.user]["xy".index(ask.answer[0])]

    return evaluated(golden_rows(), ScriptedScorer(reward), batch=4)


# Credits, from the table above:     q1A  q1B  q2A  q2B  q3C  q4C
#   none                             1    0    ½    ½    0    1      sum 3
#   profile                          1    1    0    1    1    ½      sum 4½
#   shuffled                         ½    ½    1    0    0    ½      sum 2½
@pytest.mark.parametrize(
    ("condition", "accuracy", "strict", "ties"),
    [("none", 3 / 6, 2 / 6, 2), ("profile", 4.5 / 6, 4 / 6, 1), ("shuffled", 2.5 / 6, 1 / 6, 3)],
)
def test_golden_accuracy(golden, condition, accuracy, strict, ties):
    found = result(golden.summary, condition)
    assert found["accuracy"]["value"] == pytest.approx(accuracy)
    assert found["strict_accuracy"]["value"] == pytest.approx(strict)
    assert (found["accuracy"]["n"], found["accuracy"]["failed"], found["accuracy"]["ties"]) == (6, 0, ties)
    assert 0 <= found["accuracy"]["low"] <= found["accuracy"]["value"] <= found["accuracy"]["high"] <= 1


def test_golden_gain(golden):
    # profile − none by row: 0, 1, −½, ½ | 1, −½; sums of the clusters: 1 and ½.
    # Of the four sign patterns of (1, ½) two reach |1½|, so p = ½; Holm doubles it.
    found = contrast(golden.summary, "gain")
    assert found["value"] == pytest.approx(1.5 / 6)
    assert (found["p"], found["p_holm"], found["test"]) == (0.5, 1.0, "sign-flip")
    assert (found["n"], found["dropped"]) == (6, 0)


def test_golden_control(golden):
    # profile − shuffled by row: ½, ½, −1, 1 | 1, 0; sums of the clusters: 1 and 1, so again p = ½.
    # Five of six verdicts change: won → tied, won → tied, lost → won, won → lost, won → lost; q4C stays tied.
    found = contrast(golden.summary, "control")
    assert found["value"] == pytest.approx(2 / 6)
    assert (found["p"], found["p_holm"]) == (0.5, 1.0)
    assert contrast(golden.summary, "flip_rate")["value"] == pytest.approx(5 / 6)


def test_golden_mirror_metrics_under_profile(golden):
    # Margins of the twins: q1 m_A = 3, m_B = 1; q2 m_A = −1, m_B = 2.
    # Both right: only q1, so mirror accuracy ½. Sums 4 and 1 are positive, so person effect 1;
    # both twins are one cluster, whose sign alone says nothing: p = 1.
    # g = (m_A − m_B)/2 = 1 and −1½, p = (m_A + m_B)/2 = 2 and ½: share = 3¼ / (3¼ + 4¼) = 13/30.
    found = result(golden.summary, "profile")
    assert (found["mirror_accuracy"]["value"], found["mirror_accuracy"]["n"]) == (0.5, 2)
    assert (found["person_effect"]["value"], found["person_effect"]["p"]) == (1.0, 1.0)
    assert found["average_user_share"] == pytest.approx(13 / 30)


@pytest.mark.parametrize("condition", ["none", "shuffled"])
def test_golden_mirror_metrics_where_the_person_is_not_known(golden, condition):
    # The same margins with opposite signs: nothing of the person, all of the average user.
    found = result(golden.summary, condition)
    assert found["mirror_accuracy"]["value"] == 0.0
    assert found["person_effect"]["value"] == 0.5
    assert found["average_user_share"] == 1.0


def test_golden_breakdowns(golden):
    found = result(golden.summary, "profile")
    assert {name: part["value"] for name, part in found["by_category"].items()} == {"Art": 1.0, "Life": 0.5}
    # rows without a tier are in no tier
    assert {name: (part["value"], part["n"]) for name, part in found["by_tier"].items()} == {
        "easy": (1.0, 2),
        "hard": (0.5, 2),
    }


def test_golden_people(golden):
    # profile: A has 1 and 0, B 1 and 1, C 1 and ½
    (table,) = [row for row in users_of(golden)["results"] if row["condition"] == "profile"]
    assert users_of(golden)["users"] == ["A", "B", "C"]
    assert table == {"model": "mine", "condition": "profile", "accuracy": [0.5, 1.0, 0.75], "n": [2, 2, 2]}
    spread = result(golden.summary, "profile")["users"]
    assert (spread["n"], spread["mean"], spread["worst_decile"]) == (3, 0.75, 0.5)
    assert spread["spread"] == pytest.approx(0.25)


def test_golden_dataset(golden):
    about = golden.summary["dataset"]
    assert (about["rows"], about["users"], about["clusters"], about["left_out"]) == (6, 3, 2, 0)
    assert (golden.summary["prb"], golden.summary["task"]) == (__version__, "pairs")


@pytest.mark.parametrize(
    ("conditions", "kinds"),
    [
        (("none", "profile"), ["gain"]),
        (("shuffled", "profile"), ["control", "flip_rate"]),
        (("none", "shuffled", "oracle"), []),
        (("profile", "none", "shuffled"), ["gain", "control", "flip_rate"]),
    ],
)
def test_a_contrast_needs_both_of_its_conditions(conditions, kinds, evaluated):
    done = evaluated(golden_rows(), condition=conditions)
    assert [row["kind"] for row in done.summary["contrasts"]] == kinds


def raises(_: Rows) -> float:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (raises, "metric 'mine' failed: ZeroDivisionError: division by zero"),
        (lambda _: float("nan"), "metric 'mine' must give an Estimate, a finite number or None, not nan"),
        (lambda _: 0.5, "metric 'mine' is declared as tested, so it must give a p, not 0.5"),
    ],
)
def test_what_is_wrong_with_a_metric_of_another_package_is_one_line_that_names_it(of, says, evaluated, monkeypatch):
    mine = Metric(key="mine", label="mine", says="", of=of, tested="tested" in says)
    monkeypatch.setattr(METRICS, "_known", {**METRICS, "mine": mine})
    with pytest.raises(BadInput) as caught:
        evaluated(golden_rows(), condition=("none",))
    assert str(caught.value) == says


def test_holm_corrects_over_all_models_together(evaluated):
    # eight people alone, so McNemar's mid-p: always right with a person, always wrong without
    # 8 wins, 0 losses: 2·(1/256) − 1/256 = 1/256; the four tests give 4/256, 3/256, … made monotone: 4/256
    def personal(ask: Ask) -> float:
        mine = ask.query.user is not None and f"plant {ask.query.user[1:]} " in ask.answer
        return len(ask.answer) * (-1 if mine else 1)

    models = {name: ScriptedScorer(personal) for name in ("one", "two")}
    done = evaluated([make_row(n) for n in range(1, 9)], models)
    rows = [row for row in done.summary["contrasts"] if row["kind"] != "flip_rate"]
    assert [(row["model"], row["kind"]) for row in rows] == [*product(("one", "two"), ("gain", "control"))]
    assert [row["p"] for row in rows] == [pytest.approx(1 / 256)] * 4
    assert [row["p_holm"] for row in rows] == [pytest.approx(4 / 256)] * 4
    assert {row["test"] for row in rows} == {"mcnemar-midp"}


def test_a_scorer_has_no_position_bias_and_in_one_order_there_is_no_consistency(evaluated):
    models = {"scorer": ScriptedScorer(by_length), "judge": prefers(lambda _: True)}
    done = evaluated([make_row(1)], models, condition=("none",), orders="one")
    one_order = {"n": 1, "consistency": None, "first_share": 1.0}
    assert [row["biases"]["position"] for row in done.summary["results"]] == [None, one_order]


def rating_rows() -> list[Row]:
    """Two people with four rated answers each, and one with too few."""

    def row(user: str, n: int, rating: float, age: str) -> Row:
        about = {"user": user, "profile": [f"I am {user}."], "groups": {"age": age}}
        return {**about, "question": f"Question {n}?", "answer": "a" * n, "rating": rating}

    follows = [row("up", n, n / 10, "60+") for n in (1, 2, 4, 8)]
    against = [row("down", n, 1 - n / 10, "<60") for n in (1, 2, 4, 8)]
    return [*follows, *against, row("rare", 3, 0.5, "<60"), row("rare", 4, 0.5, "<60")]


def test_ratings_are_held_against_each_persons_own_scale(evaluated):
    # `up` rates by length: a line through the other rows predicts each exactly. `down` rates against it: the slope
    # is held at 0, so the prediction is the mean of the others, the baseline itself: skill 0. Ratings of `down`
    # are .9 .8 .6 .2, means of the others 1.6/3 1.7/3 1.9/3 2.3/3; errors (1.1 + .7 + .1 + 1.7)/3 = 1.2, over 4: .3
    done = evaluated(rating_rows(), task="ratings", condition=("profile",))
    found = result(done.summary, "profile")
    assert (found["n"], found["failed"], found["users"]) == (10, 0, 2)
    assert found["mae"]["value"] == pytest.approx((0 + 0.3) / 2)
    assert found["alignment"]["value"] == pytest.approx((1 + 0.7) / 2)
    assert found["skill"]["value"] == pytest.approx((1 + 0) / 2)
    assert found["spearman"]["value"] == pytest.approx((1 - 1) / 2)
    assert found["concordance"]["value"] == pytest.approx((1 + 0) / 2)
    assert found["by_group"]["age"]["60+"]["value"] == pytest.approx(1.0)
    assert found["by_group"]["age"]["<60"]["value"] == pytest.approx(0.7)
    assert done.summary["contrasts"] == []
    (people,) = users_of(done)["results"]
    assert users_of(done)["users"] == ["up", "down", "rare"]
    assert people["mae"] == [pytest.approx(0, abs=1e-9), pytest.approx(0.3), None]
    assert people["n"] == [4, 4, None]


@pytest.mark.parametrize(
    ("fails_on", "n", "users"), [("aaaaaaaa", 8, 2), ("aaaa", 3, 0)], ids=["some answers", "most answers"]
)
def test_ratings_without_a_score_are_counted_apart(fails_on, n, users, evaluated):
    def says(ask: Ask) -> float | Failure:
        failed = ask.answer == fails_on if len(fails_on) == 8 else len(ask.answer) != 4
        return Failure("busy") if failed else float(len(ask.answer))

    found = result(evaluated(rating_rows(), ScriptedScorer(says), task="ratings", condition=("none",)).summary, "none")
    assert (found["n"], found["failed"], found["users"]) == (n, 10 - n, users)
    assert found["failures"] == {"busy": 10 - n}
    assert (found["mae"]["value"] is None) == (users == 0)


def vote(user: str, prompt: str, choice: int) -> Row:
    return {"user": user, "prompt": prompt, "answers": [f"{prompt} Yes.", f"{prompt} No."], "choice": choice}


def test_the_noise_ceiling_of_votes_stands_beside_the_accuracy_and_changes_nothing(write_jsonl, evaluated):
    votes = [vote("ann", "Tea?", 0), vote("bob", "Tea?", 1), vote("ann", "Milk?", 1), vote("bob", "Milk?", 1)]
    again = [*votes, vote("ann", "Tea?", 0), vote("bob", "Milk?", 0), vote("cem", "Tea?", 0)]
    unknown, known = (
        evaluated(f"votes?path={write_jsonl(rows)}", {}, model=("length",)).summary for rows in (votes, again)
    )
    assert unknown["dataset"]["noise_ceiling"] is None
    assert known["dataset"]["noise_ceiling"] == {"agreement": 0.5, "n": 2}
    assert result(known, "none", "length")["accuracy"]["value"] == 4 / 7  # four of seven prefer `Yes.`, the longer
    assert "Noise ceiling: unknown, since nobody voted twice" in " ".join(evaluation_table(Summary.read(unknown)).notes)
    assert "test-retest agreement is 50.0 % (2 pairs of votes" in " ".join(evaluation_table(Summary.read(known)).notes)


def test_votes_that_link_everybody_into_one_cluster_still_have_an_interval(write_jsonl, evaluated):
    # 20 users vote on 30 prompts, so couples join them all; whoever likes short answers is read off the posts
    asked = [{"prompt": f"p{n}", "answers": [f"short {n}", f"a long answer {n}"]} for n in range(30)]
    cast = product(enumerate(asked), range(20))
    votes = [{**question, "user": f"u{user}", "choice": (user * n // 3) % 2} for (n, question), user in cast]
    spec = f"votes?path={write_jsonl(votes)}&mirror=true&per_pair=6"
    random = Random(1)
    own = {"coin": ScriptedScorer(lambda ask: random.random()), "long": ScriptedScorer(by_length)}
    done = evaluated(spec, own, condition=("none", "profile"))
    about = done.summary["dataset"]
    assert (about["clusters"], about["clustered_by"]) == (1, "users and questions, crossed")
    coin, blind = (result(done.summary, "profile", name) for name in own)
    assert 0.3 < coin["accuracy"]["low"] < 0.5 < coin["accuracy"]["high"] < 0.7
    assert coin["person_effect"]["test"] == "t"
    assert 0.001 < coin["person_effect"]["p"] <= 1
    assert (blind["accuracy"]["low"], blind["accuracy"]["high"], blind["person_effect"]["test"]) == (0.5, 0.5, "none")
    gain = contrast(done.summary, "gain", "coin")
    assert -0.25 < gain["low"] < 0 < gain["high"] < 0.25
