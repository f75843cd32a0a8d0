"""`prb data check | show | stats | convert`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Prb
from tests.conftest import make_row, make_twins

Write = Callable[..., Path]


@pytest.fixture
def clean() -> list[dict[str, Any]]:
    """Twins without even a warning: answers of much the same length."""
    rows = make_twins(1, chosen="Once a week, on Sundays.", rejected="When the soil feels dry.")
    return [*rows, *make_twins(2, chosen="Twice a week, on Sundays.", rejected="When the leaves hang low.")]


def test_a_sound_set_has_no_problems(prb: Prb, write_jsonl: Write, clean: list[dict[str, Any]]) -> None:
    data = write_jsonl(clean)
    assert prb("data", "check", data, "--strict") == (0, f"{data}: 0 errors, 0 warnings\n", "")
    assert prb("data", "check", data, "--json").json == []
    assert prb("data", "check", "--dataset", data).code == 0


def test_errors_are_listed_with_their_line_and_exit_2(
    prb: Prb, write_jsonl: Write, clean: list[dict[str, Any]]
) -> None:
    data = write_jsonl([*clean, make_row(9, chosen=[]), clean[0], make_row(10, chosen=[])])
    said = prb("data", "check", data)
    assert said.code == 2
    assert said.out.splitlines() == [
        "error    set.jsonl:5: `chosen` is empty (and 1 more: set.jsonl:7)",
        "error    set.jsonl:6: duplicate id 't1a', first seen at set.jsonl:1",
        f"{data}: 3 errors, 0 warnings",
    ]
    assert said.err == f"prb: {data}: 3 rows with problems\n"


def test_warnings_only_count_if_strict(prb: Prb, write_jsonl: Write) -> None:
    data = write_jsonl([make_row(1, category="Society_and_Cultre", rejected="It is dry on top, so water it now.")])
    said = prb("data", "check", data)
    assert (said.code, said.err) == (0, "")
    assert "warning  set.jsonl:1: category 'Society_and_Cultre' is nearly 'Society_and_Culture'" in said.out
    strict = prb("data", "check", data, "--strict")
    assert (strict.code, strict.out) == (2, said.out)
    assert strict.err == f"prb: {data}: 1 row with problems\n"


def test_a_row_is_shown_whole_with_what_is_hidden_from_models(prb: Prb, write_jsonl: Write) -> None:
    data = write_jsonl([make_row(1, tier="easy", topic="plants")])
    said = prb("data", "show", data, "r1")
    assert said.code == 0
    told = ["r1", "easy", "plants", "u1: 2 posts, oldest first", "u1-2", "How do I water plant number 1?", "chosen"]
    for part in [*told, "hidden from reward models", "brevity", "I read on the bus"]:
        assert part in said.out, part


def test_a_dataset_may_be_given_as_a_flag_as_with_other_verbs(prb: Prb, write_jsonl: Write, tmp_path: Path) -> None:
    data = write_jsonl([make_row(1), make_row(2)])
    for command in ("check", "stats"):
        assert prb("data", command, "--dataset", data).out == prb("data", command, data).out
    assert prb("data", "show", data).out == prb("data", "show", data, "r1").out  # the first row
    shown = prb("data", "show", data, "r1", "--json")
    assert shown.json["id"] == "r1"
    assert prb("data", "show", "r1", f"--dataset={data}", "--json").out == shown.out
    assert prb("data", "show", "--json", "--dataset", data, "r1").out == shown.out
    assert prb("data", "convert", tmp_path / "copy.jsonl", "--dataset", data).code == 0


def test_an_id_that_is_not_there_is_answered_with_the_nearest(prb: Prb, write_jsonl: Write) -> None:
    data = write_jsonl([make_row(12), make_row(777)])
    assert prb("data", "show", data, "r13") == (2, "", f"prb: no row of {data} named 'r13'; did you mean 'r12'?\n")
    assert prb("data", "show", data, "xyz").err.endswith("ids look like 'r12'\n")


@pytest.mark.parametrize("words", [[], ["--condition", "profile"]])
def test_a_row_with_errors_is_refused_with_what_is_wrong(words: list[str], prb: Prb, write_jsonl: Write) -> None:
    said = prb("data", "show", write_jsonl([make_row(1, chosen=None)]), "r1", *words)
    assert said.code == 2
    assert "set.jsonl r1: `chosen` is missing; the columns are user, question" in said.err


@pytest.mark.parametrize(
    ("condition", "says"),
    [("oracle", "r1: no rubric to show"), ("shuffled", "r1: no other user to borrow a history from")],
)
def test_a_prompt_that_cannot_be_made_says_why(condition: str, says: str, prb: Prb, write_jsonl: Write) -> None:
    data = write_jsonl([make_row(1, rubric_aspects=[])])
    assert prb("data", "show", data, "r1", "--condition", condition) == (1, "", f"prb: {says}\n")


def test_stats_are_a_table_of_what_is_there(prb: Prb, write_jsonl: Write) -> None:
    said = prb("data", "stats", write_jsonl(make_twins(1)))
    assert said.code == 0
    assert re.search(r"^posts per user +2 \(2 to 2\)$", said.out, re.M)


@pytest.mark.parametrize(("target", "says"), [("out.txt", "unknown format"), ("no/where.jsonl", "does not exist")])
def test_a_target_that_cannot_be_written_is_refused(
    target: str, says: str, prb: Prb, write_jsonl: Write, tmp_path: Path
) -> None:
    said = prb("data", "convert", write_jsonl([make_row(1)]), tmp_path / target)
    assert (said.code, says in said.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.jsonl"]


def test_a_text_gives_no_orders_to_a_terminal(prb: Prb, write_jsonl: Callable[..., Path]) -> None:
    data = write_jsonl([make_row(1, chosen="yes\x1b]0;title\x07 \u202eno"), make_row(2, category=3)])
    for words in (("show", data, "r1"), ("show", data, "r1", "--condition", "profile"), ("check", data)):
        said = prb("data", *words)
        assert not set(said.out + said.err) & set("\x1b\x07\u202e")
    assert "yes⟨U+001B⟩]0;title⟨U+0007⟩ ⟨U+202E⟩no" in prb("data", "show", data, "r1").out
    missing = prb("data", "show", data, "r\x1b[31m")
    assert "\x1b" not in missing.err


def test_named_datasets_are_listed_and_one_of_them_with_its_options(prb: Prb) -> None:
    assert {row["name"] for row in prb("data", "list", "--json").json} >= {"mirror", "votes", "prism"}
    assert re.search(r"^mirror +The embedded benchmark", prb("data", "list").out, re.M)
    assert re.search(r"^path +required$", prb("data", "list", "votes").out, re.M)
