"""How much of a set needs the person: sets where the answer is known."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prb.data.source import MemorySource, open_source
from prb.errors import TooManyFailures
from prb.evaluation.audit import AuditConfig, BlindLearner, Reader, audit, check_failures, verdict, vote_tables
from prb.models.scripted import ScriptedScorer
from prb.reporting.results import Audit
from prb.runs import read_object
from prb.stats.estimate import share
from prb.types import Difference, Failure
from tests.conftest import Row, make_row, make_twins
from tests.runs import names

NOUNS = [
    f"{a}{b}"
    for a in ("river", "stone", "paper", "engine", "garden")
    for b in ("work", "house", "light", "song", "yard")
]
READS = {"reader": ScriptedScorer(lambda ask: float("weekly" in ask.answer) if ask.query.plan else 0.0, "reader")}


def row(n: int, **changes: Any) -> Row:
    """Chosen says `weekly`, rejected `seldom`; otherwise nothing tells them apart."""
    noun = NOUNS[n % len(NOUNS)]
    said = {"chosen": f"You do {noun} weekly, I think.", "rejected": f"You do {noun} seldom, I think."}
    return make_row(n, **{"question": f"How often does {noun} matter, case {n}?", **said, **changes})


def run(path: Path | str, out: Path, **changes: Any) -> dict[str, Any]:
    config = AuditConfig(dataset=str(path), out=out, **{"ceiling": "reader", **changes})
    return audit(config, models=READS).summary


def test_a_set_that_a_word_gives_away_needs_nobody(write_jsonl, tmp_path):
    result = run(write_jsonl([row(n) for n in range(25)]), tmp_path / "out")
    assert result["blind"]["question_and_answer"]["value"] == 1.0
    assert result["ceiling"]["accuracy"]["value"] == 1.0
    # nobody's answer differs, which bounds how many could: 0 of 25 users
    assert result["headroom"]["value"] == 0.0
    # the learner, right on all, may be worse on others than it was on these
    assert (result["headroom"]["low"], result["headroom"]["high"]) == pytest.approx((-0.133, 0.2), abs=0.001)
    assert {(w["word"], w["chosen"], w["rejected"]) for w in result["giveaways"]["words"]} == {
        ("weekly", 25, 0),
        ("seldom", 0, 25),
    }
    assert result["verdict"].startswith("set.jsonl: ")  # without its folders
    assert "much of it does not need the user" in result["verdict"]
    assert result["verdict"].endswith("so it is not shown that anything depends on the user.")


def test_mirror_twins_leave_a_blind_learner_exactly_half(write_jsonl, tmp_path):
    rows = [
        twin
        for n in range(12)
        for twin in make_twins(n, question=f"{NOUNS[n]} or what, {n}?", rejected=row(n)["rejected"])
    ]
    result = run(write_jsonl(rows), tmp_path / "out")
    for learner in ("question_and_answer", "answer"):
        assert [result["blind"][learner][key] for key in ("value", "low", "high")] == [0.5, 0.5, 0.5]
    assert (result["dataset"]["mirror_rows"], result["giveaways"]["words"]) == (24, [])
    assert result["length"]["chosen_longer"]["value"] == 0.5


def test_the_embedded_benchmark_audits_at_exactly_half_and_has_headroom(tmp_path):
    result = audit(AuditConfig(out=tmp_path / "out")).summary
    learner = result["blind"]["question_and_answer"]
    # the twins it learns from cancel, so it has nothing to say: all ties
    assert [learner[key] for key in ("value", "low", "high", "n", "failed", "ties")] == [0.5, 0.5, 0.5, 240, 0, 240]
    assert result["headroom"]["low"] > 0.1
    assert result["ceiling"]["accuracy"]["value"] - 0.5 == pytest.approx(result["headroom"]["value"])
    assert "at most +" in result["verdict"]
    assert "which depend on the user unless a better learner finds them without" in result["verdict"]
    assert names(tmp_path / "out") == ["audit.json", "ceiling", "floors"]
    assert read_object(tmp_path / "out" / "audit.json") == result


@pytest.mark.parametrize(
    ("score", "headroom", "dropped", "says"),
    [
        (lambda ask: -float("weekly" in ask.answer), -1.0, 0, "is worse than a user-blind learner."),
        (lambda _: Failure("timeout"), None, 25, "What the user adds is unknown: reader could read no rubric."),
    ],
    ids=["wrong", "broken"],
)
def test_a_reader_that_is_wrong_or_broken_is_named(score, headroom, dropped, says, write_jsonl, tmp_path):
    config = AuditConfig(dataset=str(write_jsonl([row(n) for n in range(25)])), out=tmp_path / "out", ceiling="reader")
    result = audit(config, models={"reader": ScriptedScorer(score, "reader")}).summary
    assert (result["headroom"]["value"], result["headroom"]["dropped"]) == (headroom, dropped)
    assert result["verdict"].endswith(says)


def test_a_reader_that_mostly_fails_is_an_error_and_rows_without_a_rubric_are_none(write_jsonl, tmp_path):
    data = write_jsonl([row(n, rubric_aspects=[] if n < 5 else row(n)["rubric_aspects"]) for n in range(12)])
    result = run(data, tmp_path / "out")
    assert result["ceiling"]["failures"] == {}
    check_failures(result, 0.1)
    broken = {"reader": ScriptedScorer(lambda _: Failure("timeout"), "broken")}
    config = AuditConfig(dataset=data, out=tmp_path / "broken", ceiling="reader")
    with pytest.raises(TooManyFailures, match=r"reader: 7 of 7 failed \(7 × timeout\)"):
        check_failures(audit(config, models=broken).summary, 0.1)


@pytest.mark.parametrize(
    ("changes", "missing", "says"),
    [
        ({"rubric_aspects": []}, "ceiling", "there is no rubric to read."),
        (
            {"question": "How often does it matter?"},
            "blind",
            "too few independent questions to fit a user-blind learner.",
        ),
    ],
)
def test_without_a_rubric_or_enough_questions_there_is_no_headroom_and_it_says_so(
    changes, missing, says, write_jsonl, tmp_path
):
    result = run(write_jsonl([row(n, **changes) for n in range(12)]), tmp_path / "out")
    assert (result[missing], result["headroom"]) == (None, None)
    assert result["verdict"].endswith(says)


def test_an_audit_measures_how_far_a_donor_is_from_the_topic(write_jsonl, tmp_path):
    about = {
        "Art_and_Entertainment": "painting oil canvas colors museum",
        "Society_and_Culture": "election parliament law vote court",
    }
    rows = []
    for n in range(40):
        category, words = list(about.items())[n % 2]
        posts = [{"id": f"p{n}", "category": category, "text": f"I think a lot about {words}, {NOUNS[n % 25]}."}]
        question = f"What about {words}, case {n}?"
        rows.append(row(n, category=category, question=question, profile=posts))
    topics = run(write_jsonl(rows), tmp_path / "out")["topics"]
    assert abs(topics["difference"]["value"]) < 0.02  # a donor of the same category writes about the same things
    alone = [{**row, "category": f"c{n}"} for n, row in enumerate(rows)]
    others = run(write_jsonl(alone), tmp_path / "any")["topics"]
    assert others["own"] == topics["own"] > others["donor"]  # else half of the donors are off topic
    assert others["difference"]["low"] > 0.05
    assert run(write_jsonl(rows), tmp_path / "blank", k=0)["topics"] is None


def test_near_duplicate_questions_are_never_on_both_sides_of_a_fold(write_jsonl, tmp_path):
    # six people ask nearly the same about each of twelve things, and like opposite answers about half of them
    rows = []
    for n, k in product(range(12), range(6)):
        flip = {"chosen": row(n)["rejected"], "rejected": row(n)["chosen"]} if n % 2 else {}
        question = f"How often does {NOUNS[n]} matter{'?' * (k + 1)}"
        rows.append(row(n, id=f"r{n}-{k}", user=f"u{n}-{k}", question=question, **flip))
    result = run(write_jsonl(rows), tmp_path / "out")
    assert (result["blind"]["groups"], result["blind"]["grouped_by"]) == (12, "person and question")
    # had the copies been split, each could be answered from the others
    assert result["blind"]["answer"]["value"] < 0.7


def test_one_person_alone_tells_nothing_of_others():
    half = share(np.array([0.5, 1.0]), np.array([0, 1]))
    low = replace(half, low=0.55)
    blind = BlindLearner(answer=half, question_and_answer=low, groups=2, grouped_by="question", features="")
    said = verdict("x", blind, Reader(model="m", accuracy=half), Difference(value=0.2, n=12, dropped=0, test="none"))
    assert "some of it does not need the user" in said
    assert said.endswith("What the user adds is unknown: 12 pairs of one user were read.")


def test_votes_are_divided_into_shared_group_individual_and_noise(write_jsonl, tmp_path):
    rng = random.Random(0)
    rows = []
    for user in range(24):
        for item in range(12):
            value = 0.3 + item / 30 + 0.2 * (user % 2 == item % 2) + rng.gauss(0, 0.05)
            about = {"user": f"u{user}", "groups": {"team": "red" if user % 2 else "blue"}}
            rated = {"question": "How good?", "answer": f"Item {item}.", "rating": min(1.0, max(0.0, value))}
            rows.append({**about, **rated})
    spec = str(write_jsonl(rows))
    result = audit(AuditConfig(dataset=spec, task="ratings", out=tmp_path / "run")).summary
    [table] = result["votes"]
    assert (table["votes"], table["users"], table["items"], table["attribute"]) == (288, 24, 12, "team")
    assert table["group"]["low"] > 0.2
    assert table["individual"]["value"] < 0.1
    assert "their team, at least" in result["verdict"]
    assert "With 24 users, an individual share below" in result["verdict"]
    [shown] = Audit(tmp_path / "run", result).numbers()
    assert shown.title == "Whose votes they are"


def test_votes_on_two_answers_and_on_items_are_read_from_their_sources(write_jsonl):
    votes = [
        {"user": f"u{user}", "prompt": f"p{n}", "answers": ["Yes.", "No."], "choice": int(n % 3 == 0)}
        for user in range(12)
        for n in range(6)
    ]
    [table] = vote_tables(open_source(f"votes?path={write_jsonl(votes)}"))
    assert (len(table.values), set(table.values)) == (72, {1.0})  # of one mind on every prompt
    cast = [{"user": "ann", "item": "Tea.", "vote": vote} for vote in ("agree", "disagree")]
    [table] = vote_tables(open_source(f"votes?path={write_jsonl(cast)}&item=item"))
    assert table.values.tolist() == [-1.0]  # the last vote counts
    assert vote_tables(MemorySource("rows", [])) == []
