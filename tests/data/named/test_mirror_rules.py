"""Each authoring rule of mirror pairs notices when it is broken."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from prb.types import Aspect, Pair, Post
from tests.data.named.mirror_rules import WRITTEN, reading_gaps, row_rules, set_rules

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
    answers=(fresh(80), fresh(80)),
    category="Society_and_Culture",
    rubric=tuple(Aspect(f"aspect {n}", quote, "why") for n, quote in enumerate(QUOTES)),
    narrative=" ".join([*QUOTES, fresh(40)]),
    tier="stated",
    mirror="x-bob",
)
LONG = tuple(Post(f"p{n}", "", fresh(50)) for n in range(30))


def changed(pair: Pair, **changes: Any) -> Pair:
    """Another pair; its answers can be changed one by one."""
    answers = changes.pop("chosen", pair.chosen), changes.pop("rejected", pair.rejected)
    return replace(pair, answers=answers, **changes)


def broken_rules(**changes: Any) -> list[str]:
    return list(row_rules(changed(PAIR, **changes)))


def with_post(text: str) -> tuple[Post, ...]:
    return (Post("px", "", text), *PAIR.profile[1:])


def test_a_pair_that_keeps_every_rule_has_no_problems() -> None:
    assert list(row_rules(PAIR)) == []


@pytest.mark.parametrize("n", [30, 40])
def test_a_long_history_keeps_the_rules_and_may_drift(n: int) -> None:
    history = (LONG * 2)[:n]
    assert broken_rules(profile=history, drift=True) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"question": fresh(7)}, "`question` has 7 words, must have 8-25"),
        ({"question": fresh(26)}, "`question` has 26 words, must have 8-25"),
        ({"chosen": fresh(69), "rejected": fresh(70)}, "`chosen` has 69 words, must have 70-100"),
        ({"chosen": fresh(100), "rejected": fresh(101)}, "`rejected` has 101 words, must have 70-100"),
        ({"chosen": fresh(70), "rejected": fresh(78)}, "answers of 70 and 78 words differ by more than 10%"),
        ({"narrative": " ".join([*QUOTES, fresh(69)])}, "`narrative` has 81 words, must have 40-80"),
        ({"profile": PAIR.profile[:9]}, "profile has 9 posts, must have 10 or 30-40"),
        ({"profile": LONG[:29]}, "profile has 29 posts, must have 10 or 30-40"),
        ({"profile": with_post(fresh(39))}, "post 'px' has 39 words, must have 40-90"),
        ({"profile": with_post(fresh(91))}, "post 'px' has 91 words, must have 40-90"),
        ({"rubric": PAIR.rubric[:2]}, "rubric has 2 aspects, must have 3"),
        (
            {"rubric": (*PAIR.rubric[:2], Aspect("tone", "never said", ""))},
            "evidence is not a quote from the narrative: 'never said'",
        ),
        ({"rubric": (*PAIR.rubric[:2], Aspect("tone", " ", ""))}, "evidence is not a quote from the narrative: ' '"),
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
            "'Karl Muster' may be a private person's full name; see mirror_names.txt",
        ),
    ],
)
def test_each_rule_that_is_broken_is_named(changes: dict[str, Any], what: str) -> None:
    assert broken_rules(**changes) == [what]


@pytest.mark.parametrize("name", ["chosen", "rejected"])
def test_four_words_shared_by_an_answer_and_a_post_are_named(name: str) -> None:
    four = fresh(4).rstrip(".")
    changes = {name: f"{four} {fresh(76)}", "profile": with_post(f"{four} {fresh(46)}")}
    assert broken_rules(**changes) == [f"`{name}` shares {four!r} with post 'px'"]


def test_three_shared_words_are_fine() -> None:
    three = fresh(3).rstrip(".")
    assert broken_rules(chosen=f"{three} {fresh(77)}", profile=with_post(f"{three} {fresh(47)}")) == []


def test_an_answer_may_not_repeat_the_narrative() -> None:
    quote = QUOTES[0].rstrip(".")
    assert broken_rules(chosen=f"{quote} {fresh(76)}") == [f"`chosen` shares {quote!r} with the narrative"]


def test_two_lists_are_as_good_as_none() -> None:
    assert broken_rules(chosen="- " + fresh(80), rejected="1) " + fresh(78) + " so so") == []


def test_reviewed_names_may_be_used() -> None:
    assert broken_rules(chosen="Yesterday in New York it rained. " + fresh(75)) == []


def couple(n: int, tier: str) -> list[Pair]:
    first = changed(PAIR, id=f"{n}a", user=f"a{n}", tier=tier, question=fresh(12), chosen=fresh(80), rejected=fresh(80))
    return [first, changed(first, id=f"{n}b", user=f"b{n}", chosen=first.rejected, rejected=first.chosen)]


def test_tiers_are_balanced_to_about_a_third() -> None:
    even = [pair for n, tier in enumerate(WRITTEN.tiers) for pair in couple(n, tier)]
    assert not [what for what in set_rules(even) if what.startswith("tier")]
    uneven = [*even, *couple(4, "stated"), *couple(5, "stated")]
    reported = [what for what in set_rules(uneven) if what.startswith("tier")]
    assert reported == [
        "tier 'stated' has 6 of 10 rows, must have 25% to 42%",
        "tier 'implied' has 2 of 10 rows, must have 25% to 42%",
        "tier 'situational' has 2 of 10 rows, must have 25% to 42%",
    ]


def test_a_user_has_one_history() -> None:
    other = replace(PAIR, id="y-ann", profile=LONG)
    assert "y-ann: the profile of 'ann' differs from that in x-ann" in list(set_rules([PAIR, other]))
    assert not [what for what in set_rules([PAIR, replace(PAIR, id="y-ann")]) if "profile" in what]


def test_questions_that_say_the_same_are_named() -> None:
    asked = ["How do I water my ferns in winter?", "How do I water my ferns in the winter?", "Who won the chess final?"]
    reported = [
        what for what in set_rules([replace(PAIR, question=q) for q in asked]) if what.startswith("two questions")
    ]
    assert len(reported) == 1
    assert all(repr(question) in reported[0] for question in asked[:2])


def test_answers_of_one_reading_level_are_asked_for() -> None:
    easy = "The cat sat. The dog ran. It was fun."
    hard = "Notwithstanding considerable difficulties, administrators implemented international regulations."
    uneven = changed(PAIR, chosen=easy, rejected=hard)
    assert reading_gaps([uneven])[0] > 10
    assert any("reading grades of the two answers differ by" in what for what in set_rules([uneven]))
    assert reading_gaps([changed(PAIR, rejected=PAIR.chosen)]) == [0]
