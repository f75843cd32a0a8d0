from __future__ import annotations

import re

import pytest

from prb import errors
from prb.errors import BadData, PrbError, Problem, first_line, redact, redact_options, remember_secret
from prb.progress import Lines


def test_every_error_is_in_the_tree_of_the_docstring_with_its_exit_code():
    tree = {name: int(code) for name, code in re.findall(r"(\w+) +(\d)   ", str(errors.__doc__))}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PrbError)]
    assert {kind.__name__: kind.exit_code for kind in kinds} == tree


def test_problems_are_told_by_kind_with_a_count_and_up_to_three_places():
    assert str(BadData("x", [Problem("x", 1, "bad")])) == "x: 1 row with problems\n  x:1: bad"
    problems = [Problem("x", n, f"duplicate id 'r{n}', first seen at x:{n - 1}") for n in range(2, 8)]
    problems[1:1] = [Problem("x", 2, "`user` is empty"), Problem("y", 9, "`user` is empty")]
    error = BadData("x", problems)
    assert str(error).splitlines() == [
        "x: 7 rows with problems",
        "  x:2: duplicate id 'r2', first seen at x:1 (and 5 more: x:3, x:4, …)",
        "  x:2: `user` is empty (and 1 more: y:9)",
    ]
    assert error.problems == problems
    assert str(BadData("x", problems, shown=1)).splitlines()[2:] == ["  … and 1 more kinds of problems"]
    assert str(BadData("x", problems, shown=0)) == "x: 7 rows with problems"


def test_the_first_line_of_an_error_is_never_empty():
    assert first_line(ValueError("\nbad shape\n\nsee the docs")) == "bad shape"
    assert first_line(KeyError()) == "KeyError()"


# --- secrets stay out of whatever is shown or stored ---
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://user:geheim@host/x", "postgresql://user:[redacted]@host/x"),
        (
            "postgresql://host/x?password=geheim&sslmode=require",
            "postgresql://host/x?password=[redacted]&sslmode=require",
        ),
        (
            'loading judge?llm=(openai/m?extra_body={"api_key": "geheim"})',
            'loading judge?llm=(openai/m?extra_body={"api_key": "[redacted]"})',
        ),
        ("classifier?url=http://h&hf_token=geheim", "classifier?url=http://h&hf_token=[redacted]"),
        ("no verdict: the first token: A", "no verdict: the first token: A"),
        ("120 of 100 tokens; see key_env=RM_KEY", "120 of 100 tokens; see key_env=RM_KEY"),
        ("http://localhost:8000/v1 and http://[::1]:80", "http://localhost:8000/v1 and http://[::1]:80"),
    ],
)
def test_passwords_and_keys_that_were_typed_are_not_shown(text, shown, capsys):
    assert redact_options(text) == shown
    Lines().begin(text)
    assert capsys.readouterr().err == f"{shown}\n"


def test_a_key_that_was_read_is_removed_whole_and_cut_off():
    remember_secret("sk-a-secret-of-this-test")
    remember_secret("none")
    text = 'Your key is sk-a-secret-of-this-test, or "sk-a-secret-of"; none of it.'
    assert redact(text) == 'Your key is [redacted] or "[redacted]"; none of it.'
