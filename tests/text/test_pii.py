from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prb.text.pii import Match, find, mask, mask_query
from prb.types import Post, Query

PARTS = st.sampled_from(["ann", "@", ".", "com", " ", "+49 30 1234567", "DE89 3704 0044 0532 0130 00", "1994", "["])


PHONES = ["+49 30 1234567", "+442079460958", "(415) 555-2671", "415-555-2671", "020 7946 0958", "030 1234567"]
PERSONAL = {
    "e-mail": ["me@example.com", "foo.bar+news@ex-ample.org", "a_b@mail.example.co.uk", "jürgen@münchen.de", "X@Y.IO"],
    "handle": ["@anna", "@anna_k", "@anna.k", "@Anna99"],
    "phone": [*PHONES, "0171/1234567", "01 23 45 67 89"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PERSONAL.items() for text in texts])
def test_personal_data_is_masked_in_many_formats(kind, text) -> None:
    assert mask(f"Ask {text}, please.") == f"Ask [{kind}], please."
    if kind == "handle":
        assert mask(f"({text})") == "([handle])"


@pytest.mark.parametrize(
    "iban",
    [
        "DE89370400440532013000",
        "DE89 3704 0044 0532 0130 00",
        "GB82 WEST 1234 5698 7654 32",
        "FR14 2004 1010 0505 0001 3M02 606",
        "NO93 8601 1117 947",
        "MT84MALT011000012345MTLCAST001S",
    ],
)
@pytest.mark.parametrize("after", [".", ", thanks", " BIC COBADEFFXXX", " OK"])
def test_valid_ibans_are_masked_whatever_follows(iban, after) -> None:
    assert mask(f"Pay to {iban}{after}") == f"Pay to [IBAN]{after}"


@pytest.mark.parametrize("iban", ["DE88370400440532013000", "GB82 WEST 1234 5698 7654 33", "XX00 0000 0000 0000 0000"])
def test_a_wrong_check_digit_is_no_iban(iban) -> None:
    assert "IBAN" not in {hit.kind for hit in find(f"Pay to {iban} now")}


AT_SIGNS = ["x @ y", "at @ 5", "@", "a@b", "mail me @", "@@"]
NUMBERS = ["in 1994", "12.50", "2024-11-03", "1994-2004", "1994, 1995, 1996 and 1997", "$1,299.00", "EUR 1.234.567,89"]
NUMBERS += ["3.14159265358979", "192.168.178.21", "ISBN 978-3-16-148410-0", "10115 Berlin", "9:00-17:00"]
NUMBERS += ["24 x 36 x 1200"]


@pytest.mark.parametrize("text", [*AT_SIGNS, *NUMBERS])
def test_a_lone_at_sign_and_ordinary_numbers_stay(text) -> None:
    assert mask(text) == text


def test_a_very_long_word_takes_no_very_long_time() -> None:
    text = "a" * 200_000 + " me@example.com"
    assert mask(text) == "a" * 200_000 + " [e-mail]"


def test_finds_come_from_left_to_right_with_their_kind() -> None:
    text = "me@example.com or @anna or +49 30 1234567"
    assert find(text) == [Match(0, 14, "e-mail"), Match(18, 23, "handle"), Match(27, 41, "phone")]
    assert mask(text) == "[e-mail] or [handle] or [phone]"


@settings(deadline=None)
@given(st.text().filter(lambda text: not any(c.isdigit() or c == "@" for c in text)))
def test_text_without_digits_and_at_signs_is_never_changed(text) -> None:
    assert mask(text) == text


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab1290@.+- ()[]DE")) | st.lists(PARTS).map("".join))
@example("a@b.cc@dd")
@example("@anna@mastodon.social")
def test_masking_twice_changes_nothing_more(text) -> None:
    once = mask(text)
    assert mask(once) == once
    assert find(once) == []


def test_a_query_is_masked_in_all_the_user_wrote() -> None:
    query = Query(
        question="Is me@example.com fine?",
        user="u1",
        posts=(Post("p1", "Food", "Call 415-555-2671."), Post("p2", "", "Tea in 1994.")),
        plan=("answers @anna",),
    )
    assert mask_query(query) == Query(
        question="Is [e-mail] fine?",
        user="u1",
        posts=(Post("p1", "Food", "Call [phone]."), Post("p2", "", "Tea in 1994.")),
        plan=("answers [handle]",),
    )
