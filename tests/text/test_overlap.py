from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prb.text.words import SharedWording, hidden_texts, near_duplicates, word_runs
from prb.types import Aspect


def test_near_duplicates_are_found_across_blocks() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(50, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    slow = {(i, j) for i in range(50) for j in range(i) if rows[i] @ rows[j] >= 0.8}
    assert slow
    for block in (7, 50, 1024):
        assert set(near_duplicates(rows, 0.8, block=block)) == slow


def test_word_runs_are_all_runs_of_n_words() -> None:
    assert word_runs("One two, three. FOUR!", 2) == {"one two", "two three", "three four"}


def test_a_text_shorter_than_n_words_has_no_word_runs() -> None:
    assert word_runs("one two", 3) == set()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12), st.integers(1, 5))
def test_every_run_stands_in_the_text(units: list[str], n: int) -> None:
    text = " ".join(units)
    assert all(f" {run} " in f" {text} " for run in word_runs(text, n))
    assert bool(word_runs(text, n)) == (len(units) >= n)


def test_scripts_that_do_not_separate_words_are_read_by_characters() -> None:
    assert word_runs("我喜欢喝茶。", 2) == {"我 喜 欢 喝", "喜 欢 喝 茶"}
    assert word_runs("tea 茶 is the best drink", 2) >= {"tea 茶", "best drink"}


def test_the_first_shared_run_is_named_and_allowed_ones_are_not() -> None:
    hidden = SharedWording(hidden_texts("Please be very brief today.", [Aspect("tone", "never shout at me", "")]), 3)
    assert hidden.first_in("Never SHOUT at anyone; be very brief.") == "be very brief"
    assert hidden.first_in("Please, be brief.") is None
    asked = SharedWording(["Please be very brief today."], 3, allowed="Could you be very brief today?")
    assert asked.first_in("I will be very brief today.") is None
    assert asked.first_in("please be very") == "please be very"


def test_nothing_hidden_means_nothing_shared() -> None:
    assert SharedWording([], 3).first_in("one two three") is None
    assert SharedWording(hidden_texts("", []), 3).first_in("") is None
