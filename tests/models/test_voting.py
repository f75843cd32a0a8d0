"""Several opinions become one: majority and mean, cost of all, no result where too few have an opinion."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.errors import BadSpec
from prb.models import MODELS
from prb.models.judge import Panel, vote
from prb.models.scripted import ScriptedComparer, ScriptedScorer
from prb.types import Duel, Failure, Query, Reward, Verdict

QUERY = Query(question="Which?")
DUEL = Duel(QUERY, "one", "two")


@given(st.lists(st.sampled_from(["first", "second", "tie"]), min_size=1, max_size=9))
def test_the_majority_decides_whatever_the_order(choices: list[Any]) -> None:
    said = vote([Verdict(choice=choice, tokens=3, cost=0.5) for choice in choices])
    counts = Counter(choices)
    ahead = counts["first"] - counts["second"]
    assert said.choice == ("first" if ahead > 0 else "second" if ahead < 0 else "tie")
    assert (said.tokens, said.cost) == (3 * len(choices), 0.5 * len(choices))


def test_who_failed_has_no_vote_but_was_paid() -> None:
    failed = Failure("no verdict", "hm", prompt_tokens=5, completion_tokens=2, cost=0.1)
    said = vote([Verdict(choice="second", tokens=4, cost=0.2), failed])
    assert said == Verdict(choice="second", tokens=11, cost=pytest.approx(0.3))
    lost = vote([Verdict(choice="second", tokens=4, cost=0.2), failed, failed])
    assert (lost.reason, lost.detail) == ("no verdict", "1 of 3 votes; hm")
    assert (lost.prompt_tokens + lost.completion_tokens, lost.cost) == (18, pytest.approx(0.4))


def test_scorers_and_judges_sit_on_one_panel() -> None:
    longer = ScriptedScorer(lambda ask: Reward(float(len(ask.answer)), tokens=2, cost=0.1), "longer")
    first = ScriptedComparer(lambda _: Verdict(choice="first", tokens=5, cost=0.2), "first")
    broken = ScriptedScorer(lambda _: Failure("no"), "broken")
    panel = Panel([longer, first, longer])
    (verdict,) = panel.prefer([Duel(QUERY, "short", "much longer")])
    assert (verdict.choice, verdict.tokens, verdict.cost) == ("second", 13, pytest.approx(0.6))
    assert Panel([broken, broken, first]).prefer([DUEL])[0] == Failure("no", "1 of 3 votes; ")
    assert panel.fingerprint == "panel-longer+first+longer"


def test_a_panel_is_named_by_a_spec() -> None:
    panel = MODELS.make("panel?models=length|(noisy?model=length&sd=0.1)|(scripted-judge?says=tie)")
    assert panel.fingerprint.count("+") == 2
    for refused in ("length", "length|reader"):
        with pytest.raises(BadSpec, match="two or more models that can judge new answers"):
            MODELS.make(f"panel?models={refused}")
