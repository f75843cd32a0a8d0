from __future__ import annotations

import pytest

from prb.errors import (
    BadData,
    BadInput,
    BadSpec,
    GateFailed,
    MissingExtra,
    PrbError,
    RunConflict,
    UnknownName,
    first_line,
    unknown,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (PrbError, 1),
        (GateFailed, 1),
        (BadInput, 2),
        (BadSpec, 2),
        (UnknownName, 2),
        (BadData, 2),
        (RunConflict, 2),
        (MissingExtra, 2),
    ],
)
def test_every_error_knows_its_exit_code(kind: type[PrbError], code: int) -> None:
    assert issubclass(kind, PrbError)
    assert kind.exit_code == code


def test_one_problem_is_told_in_the_singular() -> None:
    assert str(BadData("x", ["x:1: bad"])) == "x: 1 problem\n  x:1: bad"


def test_as_many_problems_are_told_as_a_person_wants_to_read() -> None:
    error = BadData("x", ["a", "b", "c"], shown=2)
    assert str(error) == "x: 3 problems\n  a\n  b\n  … and 1 more; `prb data check x` lists all"
    assert error.problems == ["a", "b", "c"]
    assert str(BadData("x", ["a", "b"], shown=2)) == "x: 2 problems\n  a\n  b"


def test_an_unknown_name_brings_the_nearest() -> None:
    assert str(unknown("tool", "hamer", ["saw", "hammer"])) == "no tool named 'hamer'; did you mean 'hammer'?"


def test_an_unknown_name_like_no_other_brings_a_hint_or_all() -> None:
    assert str(unknown("tool", "zzz", ["saw", "axe"])) == "no tool named 'zzz'; there are: axe, saw"
    assert str(unknown("tool", "zzz", ["saw"], hint="look up")) == "no tool named 'zzz'; look up"


def test_a_missing_extra_says_how_to_get_it() -> None:
    message = "training needs the 'train' extra: pip install 'personalized-rewardbench[train]'"
    assert str(MissingExtra("training", "train")) == message


def test_the_first_line_of_an_error_is_never_empty() -> None:
    assert first_line(ValueError("\nbad shape\n\nsee the docs")) == "bad shape"
    assert first_line(KeyError()) == "KeyError()"
