"""Python input as people have it: frames, rows, objects and functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import prb
from prb.errors import BadInput
from prb.given import FunctionModel, as_dataset, as_models
from prb.types import Ask, Query
from tests.conftest import make_row

ROWS = [make_row(n, profile=[f"I like {n}."], category=None) for n in range(6)]


def shortest(prompt: str, response: str) -> float:
    return -len(response)


class Longest:
    fingerprint = "longest"

    def score(self, asks: Sequence[Ask]) -> list[float]:
        return [float(len(ask.answer)) for ask in asks]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("as_frame", [False, True])
def test_functions_objects_and_specs_are_evaluated_on_rows_at_hand(as_frame: bool) -> None:
    data: Any = ROWS
    if as_frame:
        pandas = pytest.importorskip("pandas", reason="needs the pandas extra")
        data = pandas.DataFrame([*ROWS[:-1], {**ROWS[-1], "category": "x"}])  # the others have NaN there
    same = lambda prompt, response: 0.0  # noqa: E731
    result = prb.evaluate(models=[shortest, Longest(), "length", same], dataset=data, condition="none", quiet=True)
    found = {model: result.accuracy(model, "none").value for model in ("shortest", "Longest", "length", "function")}
    assert found == {"shortest": 1.0, "Longest": 0.0, "length": 0.0, "function": 0.5}


def test_rows_of_a_frame_of_arrays_are_the_same_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the pandas extra")
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    assert as_dataset(pandas.read_parquet(tmp_path / "rows.parquet")) == as_dataset(ROWS)


def test_times_are_texts_and_missing_ones_are_null() -> None:
    pandas = pytest.importorskip("pandas", reason="needs the pandas extra")
    frame = pandas.DataFrame([{**ROWS[0], "at": pandas.Timestamp("2026-01-02")}, ROWS[1]])
    assert as_dataset(frame) == as_dataset([{**ROWS[0], "at": "2026-01-02T00:00:00"}, {**ROWS[1], "at": None}])


def test_a_map_names_objects_functions_and_specs() -> None:
    settings: dict[str, Any] = {"dataset": ROWS, "condition": "none", "quiet": True}
    result = prb.evaluate(models={"mine": shortest, "long": "length"}, **settings)
    assert [row["model"] for row in result.summary["results"]] == ["mine", "long"]
    result = prb.evaluate(model=("mine", "random"), models={"mine": Longest()}, **settings)
    assert [row["model"] for row in result.summary["results"]] == ["mine", "random"]
    result = prb.evaluate(models="length", **settings)
    assert [row["model"] for row in result.summary["results"]] == ["length"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "length", "models": ["random"]}, "model and models both list what to evaluate"),
        ({"models": []}, "models is empty"),
        ({"models": {}}, "models is empty"),
        ({"model": "length", "models": {"mine": shortest}}, "models has mine, which model does not name"),
        ({"model": shortest}, "model must be a spec"),
    ],
)
def test_models_given_in_two_ways_or_in_none_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        prb.evaluate(dataset=ROWS, quiet=True, **given)


def test_rows_are_kept_under_the_digest_of_their_content() -> None:
    assert as_dataset(ROWS) == as_dataset([dict(reversed(row.items())) for row in ROWS]) != as_dataset(ROWS[1:])
    assert as_dataset("mirror") == "mirror"


@pytest.mark.parametrize("dataset", [3, [1, 2], {"a": 1}, [{"question": object()}]])
def test_what_is_no_dataset_is_refused_without_printing_it(dataset: Any) -> None:
    with pytest.raises(BadInput, match=r"dataset must be|rows must hold") as raised:
        as_dataset(dataset)
    assert len(str(raised.value)) < 200


def test_a_changed_function_is_another_model_and_a_moved_one_is_not() -> None:
    def scale(by: int) -> Any:
        def score(prompt: str, response: str) -> float:
            return by * len(response)

        return score

    prints = [FunctionModel(f).fingerprint for f in (scale(1), scale(1), scale(2), shortest)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    moved: dict[str, Any] = {}
    exec("\n\n\ndef f(prompt, response):\n    return -len(response)", moved)
    exec("def g(prompt, response):\n    return -len(response)", moved)
    assert FunctionModel(moved["f"]).score([Ask(Query(question="q"), "abc")]) == [-3]


def test_models_of_one_name_are_told_apart() -> None:
    specs, objects = as_models([Longest(), Longest(), "length", lambda p, r: 0.0, lambda p, r: 1.0])
    assert specs == ("Longest", "Longest #2", "length", "function", "function #2")
    assert list(objects) == [spec for spec in specs if spec != "length"]
