"""What counts as a verdict, in the words of real models, and what does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prb.llm import Completion
from prb.models.judge import STYLES, read_choice, read_rating, weigh_choice, weigh_rating
from prb.types import Failure, Verdict
from tests.models.test_judge import SAYS

PAIRWISE = [name for name, style in STYLES.items() if style.kind == "pairwise"]
NAMES = [name for name, style in STYLES.items() if style.kind != "checklist"]
RATES = {"rating": "Rating: [[3]]", "rating-direct": "3"}


OTHER_SCALES = ("3 stars out of 5", "3 out of 5", "3/5", "3 of 5")
DOUBTFUL = ("5 (maybe 6)", "1e1", "5 %", "5+", "5, 6", "5 and 6", "1,000", "5 (6)", "5\n6", "5,6,7")


def read(reply: Completion | str, style: str = "pairwise") -> Any:
    """The choice or rating in a reply, why there is none, or None."""
    completion = Completion(text=reply) if isinstance(reply, str) else reply
    read_style = read_choice if style in PAIRWISE else read_rating
    match read_style(completion, STYLES[style]):
        case Verdict(choice=choice):
            return choice
        case Failure(reason=reason):
            return reason
        case rating:
            return rating


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("They like it brief. A is brief.\n\nResult: A", "first"),
        ("Result: tie", "tie"),
        ("**Result: A**", "first"),
        ("**Result:** B", "second"),
        ("Result: **A**.", "first"),
        ("Result: A tie", "tie"),
        ("Result: Answer B", "second"),
        ("Result: [A]", "first"),
        ('{"Result": "B"}', "second"),
        ("A has lists, B has prose, A and B are both right. Result: B", "second"),
        ("```\nResult: A\n```", "first"),
        ("Answer B holds:\n```\nResult: B, I promise you\n```\nResult: A", "first"),
        ("<think>Result: B? No.</think>\nResult: A", "first"),
        ("<reasoning>x</reasoning>Result: A<reasoning>Result: B</reasoning>", "first"),
        ("<think>one answer says </think> and Result: B</think>Result: A", "first"),
    ],
)
def test_a_verdict_is_found_as_real_models_write_it(text: str, says: str) -> None:
    assert read(text) == says


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I'm sorry, but I can't compare these answers.",
        "Result: A or B",
        "Result: A careful reader would want more.",
        "Result: unclear, both A and B",
        "I should finish with Result: A, Result: B or Result: tie.",
        "Answer B says:\n```\nResult: B, I promise you\n```",
        "Answer B says:\n```\nit is over\nResult: B",
        "<think>The person likes lists, so Result: A",
        "<reasoning>Result: A</reasoning>\n\n",
        "Result: A</think>",
        "[[A]]",
        "Result: A because B rambles",
        "Result: A\n\nI hope this helps! Answer B is fine too.",
        "Result: B\n\nWait, they wrote about lists. I change my mind.\n\nResult: A",
        "Result: A. Tie.",
        "Result: A (maybe a tie)",
    ],
)
def test_what_is_no_verdict_is_not_guessed(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("style", "text", "says"),
    [
        ("mtbench", "Assistant A is brief.\n\n[[A]]", "first"),
        ("mtbench", "Final verdict: [[ c ]].", "tie"),
        ("mtbench", "At first I leaned to [[B]] or so.\nBut the person wants lists.\n[[A]]", "first"),
        ("mtbench", "[[A]] (tie)", None),
        ("mtbench", "[[A]] or [[B]]?", None),
        ("mtbench", "[[A]] for A, [[B]] for B, [[C]] for neither", None),
        ("prometheus", "Feedback: B rambles. [RESULT] A", "first"),
        ("prometheus", "**Feedback:** good\n\n**[RESULT]** B", "second"),
        ("prometheus", "[RESULT] (Response B)", "second"),
        ("prometheus", "[RESULT] A or B", None),
        ("prometheus", "[RESULT] tie", None),
        ("pairwise-direct", "A", "first"),
        ("pairwise-direct", "(A)", "first"),
        ("pairwise-direct", "Answer: B\n\nIt is shorter.", "second"),
        ("pairwise-direct", "<think>B</think>\n\nA", "first"),
        ("pairwise-direct", "A or B", None),
        ("pairwise-direct", "A fair question", None),
        ("rating", "It is brief, as they like it.\n\nRating: [[7]]", 7.0),
        ("rating", "**Rating: [[10]]**", 10.0),
        ("rating", "**Rating:** 8/10", 8.0),
        ("rating", 'Rating: "[[ 3 ]]"', 3.0),
        ("rating", "Rating: [[7.5]]", 7.5),
        ("rating", "I first thought Rating: [[9]].\nBut it has no list.\nRating: [[4]]", None),
        ("rating", "<think>Rating: [[9]]</think>Rating: [[1]]", 1.0),
        ("rating", "```\nRating: [[5]]\n```", 5.0),
        ("rating", "Rating: 7-8", None),
        ("rating", "Rating: [[7]] or [[8]]", None),
        ("rating", "Rating: [[n]]", None),
        ("rating", "7", None),
        ("rating", "I can't rate this.", None),
        ("rating", "Rating: [[11]]", "rating outside the scale"),
        ("rating", "Rating: -3", "rating outside the scale"),
        ("rating", "Rating: 4/5", "rating outside the scale"),
        ("rating", "Rating: " + "9" * 5000, "rating outside the scale"),
        ("rating", "Rating: 7/" + "1" * 5000, "rating outside the scale"),
        *(("rating", f"Rating: {text}", "rating outside the scale") for text in OTHER_SCALES),
        *(("rating", f"Rating: {text}", None) for text in DOUBTFUL),
        ("rating-direct", "7", 7.0),
        ("rating-direct", "**9**", 9.0),
        ("rating-direct", "Rating: 3", 3.0),
        ("rating-direct", "0", "rating outside the scale"),
        ("rating-direct", "I'd say 7", None),
    ],
)
def test_every_style_reads_its_own_form(style: str, text: str, says: float | str | None) -> None:
    assert read(text, style) == says


@given(st.sampled_from(NAMES), st.text())
def test_no_reply_whatever_is_an_error(name: str, text: str) -> None:
    found = read(text, name)
    assert found is None or isinstance(found, str) or found > 0


@given(st.sampled_from(PAIRWISE), st.text(alphabet="abc .,\n", max_size=80), st.booleans())
def test_whatever_was_said_before_the_last_verdict_counts(name: str, before: str, second: bool) -> None:
    if STYLES[name].direct:
        before = ""
    text = f"{before}.\n\nSo:\n{SAYS[name][second]}" if before else SAYS[name][second]
    assert read(text, name) == ("second" if second else "first")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", ["*", "_", " \n", "[RESULT]", "Result: A ", "<think>", "```\n", "[[", "Rating: 7\n"])
def test_a_model_that_repeats_itself_for_ever_is_read_at_once(name: str, piece: str) -> None:
    for start in ("Result:", "[RESULT]", "Rating:"):
        began = time.process_time()
        read(start + piece * (20_000 // len(piece)), name)
        assert time.process_time() - began < 5  # quadratic readers take minutes


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_cut_off_has_not_come_to_its_verdict(name: str) -> None:
    says = SAYS[name][0] if name in PAIRWISE else RATES[name]
    assert (read(Completion(text=says, truncated=True), name) is None) == (not STYLES[name].direct)


def test_recorded_replies_of_rm_r1_have_their_verdicts(shared_data: Path) -> None:
    for name in ("instruct", "reasoning"):
        text = (shared_data / "formats" / "rm_r1" / f"{name}_reply.txt").read_text("utf-8")
        assert read(text, "rm-r1") == "first"


@pytest.mark.parametrize("value", [float("-inf"), float("inf")])
def test_log_probabilities_that_say_nothing_are_a_failure(value: float) -> None:
    first = {"A": value, "B": value, "1": value, "9": value}
    reply = Completion(text="A", first=first)
    for found in (weigh_choice(reply, STYLES["pairwise-direct"]), weigh_rating(reply, STYLES["rating-direct"])):
        assert str(found).startswith("no usable log-probabilities: ")
    one = weigh_choice(Completion(text="A", first={"A": float("-inf"), "B": -0.1}), STYLES["pairwise-direct"])
    assert one == Verdict(choice="second", text="log-probabilities: A -inf, B -0.1000")
