from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from prb.data import rules
from prb.data.rules import mirror_problems, reading_gap, row_rules, set_rules
from prb.types import Aspect, Pair, Post

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
_fresh = count()


def fresh(n: int) -> str:
    """A sentence of n words that no other text shares."""
    made = []
    for number in (next(_fresh) for _ in range(n)):
        third, rest = divmod(number, len(SYLLABLES) ** 2)
        made.append(SYLLABLES[rest // len(SYLLABLES)] + SYLLABLES[rest % len(SYLLABLES)] + SYLLABLES[third])
    return " ".join(made) + "."


QUOTES = [fresh(4), fresh(4), fresh(4)]
PAIR = Pair(
    id="x-ann",
    user="ann",
    question=fresh(12),
    profile=tuple(Post(f"p{n}", "", fresh(50)) for n in range(10)),
    chosen=fresh(80),
    rejected=fresh(80),
    category="Society_and_Culture",
    rubric=tuple(Aspect(f"aspect {n}", quote, "why") for n, quote in enumerate(QUOTES)),
    narrative=" ".join([*QUOTES, fresh(40)]),
    tier="stated",
    mirror="x-bob",
)
LONG = tuple(Post(f"p{n}", "", fresh(50)) for n in range(30))


@pytest.fixture(autouse=True)
def reviewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "reviewed_names", lambda: frozenset({"New York"}))


def broken(**changes: Any) -> list[str]:
    return list(row_rules(replace(PAIR, **changes)))


def with_post(text: str) -> tuple[Post, ...]:
    return (Post("px", "", text), *PAIR.profile[1:])


def test_a_pair_that_keeps_every_rule_has_no_problems() -> None:
    assert list(row_rules(PAIR)) == []


@pytest.mark.parametrize("n", [30, 40])
def test_a_long_history_keeps_the_rules_and_may_drift(n: int) -> None:
    history = (LONG * 2)[:n]
    assert broken(profile=history, drift=True) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"question": fresh(7)}, "`question` has 7 words, wants 8-25"),
        ({"question": fresh(26)}, "`question` has 26 words, wants 8-25"),
        ({"chosen": fresh(69), "rejected": fresh(70)}, "`chosen` has 69 words, wants 70-100"),
        ({"chosen": fresh(100), "rejected": fresh(101)}, "`rejected` has 101 words, wants 70-100"),
        ({"chosen": fresh(70), "rejected": fresh(78)}, "answers of 70 and 78 words differ by more than 10%"),
        ({"narrative": " ".join([*QUOTES, fresh(69)])}, "`narrative` has 81 words, wants 40-80"),
        ({"profile": PAIR.profile[:9]}, "profile has 9 posts, wants 10, or 30-40 for a long history"),
        ({"profile": LONG[:29]}, "profile has 29 posts, wants 10, or 30-40 for a long history"),
        ({"profile": with_post(fresh(39))}, "post 'px' has 39 words, wants 40-90"),
        ({"profile": with_post(fresh(91))}, "post 'px' has 91 words, wants 40-90"),
        ({"rubric": PAIR.rubric[:2]}, "rubric has 2 aspects, wants 3"),
        (
            {"rubric": (*PAIR.rubric[:2], Aspect("tone", "never said", ""))},
            "evidence is no quote of the narrative: 'never said'",
        ),
        ({"rubric": (*PAIR.rubric[:2], Aspect("tone", " ", ""))}, "evidence is no quote of the narrative: ' '"),
        ({"chosen": "- " + fresh(80)}, "one answer is a list, the other is not"),
        ({"rejected": "Thus:\n1. " + fresh(78)}, "one answer is a list, the other is not"),
        ({"tier": "guessed"}, "tier 'guessed' is none of stated, implied, situational"),
        ({"tier": None}, "tier None is none of stated, implied, situational"),
        ({"mirror": None}, "has no mirror"),
        ({"drift": True}, "drift needs a long history"),
        ({"question": "Mail ann@example.com? " + fresh(9)}, "holds personal data (e-mail): 'ann@example.com'"),
        ({"profile": with_post("Call +49 30 1234567. " + fresh(40))}, "holds personal data (phone): '+49 30 1234567'"),
        (
            {"chosen": "Yesterday in town, Karl Muster came. " + fresh(74)},
            "'Karl Muster' may be a private person's full name; see mirror/names.txt",
        ),
    ],
)
def test_each_rule_that_is_broken_is_named(changes: dict[str, Any], what: str) -> None:
    assert broken(**changes) == [what]


@pytest.mark.parametrize("name", ["chosen", "rejected"])
def test_four_words_shared_by_an_answer_and_a_post_are_named(name: str) -> None:
    four = fresh(4).rstrip(".")
    changes = {name: f"{four} {fresh(76)}", "profile": with_post(f"{four} {fresh(46)}")}
    assert broken(**changes) == [f"`{name}` shares {four!r} with post 'px'"]


def test_three_shared_words_are_fine() -> None:
    three = fresh(3).rstrip(".")
    assert broken(chosen=f"{three} {fresh(77)}", profile=with_post(f"{three} {fresh(47)}")) == []


def test_an_answer_may_not_repeat_the_narrative() -> None:
    quote = QUOTES[0].rstrip(".")
    assert broken(chosen=f"{quote} {fresh(76)}") == [f"`chosen` shares {quote!r} with the narrative"]


def test_two_lists_are_as_good_as_none() -> None:
    assert broken(chosen="- " + fresh(80), rejected="1) " + fresh(78) + " so so") == []


def test_reviewed_names_may_be_used() -> None:
    assert broken(chosen="Yesterday in New York it rained. " + fresh(75)) == []


def couple(n: int, tier: str) -> list[Pair]:
    first = replace(PAIR, id=f"{n}a", user=f"a{n}", tier=tier, question=fresh(12), chosen=fresh(80), rejected=fresh(80))
    return [first, replace(first, id=f"{n}b", user=f"b{n}", chosen=first.rejected, rejected=first.chosen)]


def test_tiers_are_balanced_to_about_a_third() -> None:
    even = [pair for n, tier in enumerate(rules.TIERS) for pair in couple(n, tier)]
    assert not [what for what in set_rules(even) if what.startswith("tier")]
    uneven = [*even, *couple(4, "stated"), *couple(5, "stated")]
    told = [what for what in set_rules(uneven) if what.startswith("tier")]
    assert told == [
        "tier 'stated' has 6 of 10 rows, wants about a third",
        "tier 'implied' has 2 of 10 rows, wants about a third",
        "tier 'situational' has 2 of 10 rows, wants about a third",
    ]


def test_a_person_has_one_history() -> None:
    other = replace(PAIR, id="y-ann", profile=LONG)
    assert "y-ann: the profile of 'ann' is not the one in x-ann" in list(set_rules([PAIR, other]))
    assert not [what for what in set_rules([PAIR, replace(PAIR, id="y-ann")]) if "profile" in what]


def test_questions_that_say_the_same_are_named() -> None:
    asked = ["How do I water my ferns in winter?", "How do I water my ferns in the winter?", "Who won the chess final?"]
    told = [what for what in set_rules([replace(PAIR, question=q) for q in asked]) if what.startswith("two questions")]
    assert len(told) == 1
    assert all(repr(question) in told[0] for question in asked[:2])


def test_answers_of_one_reading_level_are_asked_for() -> None:
    easy = "The cat sat. The dog ran. It was fun."
    hard = "Notwithstanding considerable difficulties, administrators implemented international regulations."
    uneven = replace(PAIR, chosen=easy, rejected=hard)
    assert reading_gap([uneven]) > 10
    assert any("reading grades differ by" in what for what in set_rules([uneven]))
    assert reading_gap([replace(PAIR, rejected=PAIR.chosen)]) == 0


def test_problems_of_rows_carry_their_line_and_those_of_the_set_line_zero() -> None:
    found = mirror_problems([("set", 3, PAIR), ("set", 4, replace(PAIR, id="y", mirror=None, profile=LONG))])
    assert "set:4: has no mirror" in map(str, found)
    assert not [problem for problem in found if problem.line == 3]
    assert "set:0: y: the profile of 'ann' is not the one in x-ann" in map(str, found)
    assert {problem.level for problem in found} == {"error"}


def test_an_empty_set_breaks_no_rule() -> None:
    assert mirror_problems([]) == []
